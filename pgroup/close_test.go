package pgroup_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// TestASendThatCloseInterruptsIsUnknown checks the error of a Send whose answer a Close does not
// wait for. It may have delivered its message, and the error says so.
func TestASendThatCloseInterruptsIsUnknown(t *testing.T) {
	addr := serve(t)
	proxy := testcluster.NewProxy(t, addr)
	created := make(chan *pgroup.Group, 1)
	go func() {
		g, err := pgroup.Create(t.Context(), pgroup.Config{Rank: 1, Size: 2, Address: "muster://" + addr})
		assert.NoError(t, err)
		created <- g
	}()
	g, err := pgroup.Create(t.Context(), pgroup.Config{Rank: 0, Size: 2, Address: "muster://" + proxy.Addr(), Timeout: 20 * time.Second})
	other := <-created
	require.NoError(t, err)
	require.NotNil(t, other)
	defer func() { _ = other.Close() }()
	proxy.Down.Stall(true)
	sent := make(chan error, 1)
	go func() { sent <- pgroup.Send(t.Context(), g, 1, "m") }()
	// it is delivered, which its sender does not know
	if got, err := pgroup.Recv[string](t.Context(), other, 0); err != nil || got != "m" {
		t.Fatal(got, err)
	}
	_ = g.Close() // cannot leave properly
	if err := <-sent; !errors.Is(err, pgroup.ErrClosed) || !errors.Is(err, store.ErrUnknown) {
		t.Errorf("got %v, want ErrClosed and ErrUnknown", err)
	}
}
