package nfsws_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/nfsws"
)

// publish publishes a number of states in a directory, one after the other.
func publish(ctx context.Context, arg string) error {
	rounds, dir, _ := strings.Cut(arg, " ")
	w, err := nfsws.Open(ctx, dir, 0, nil)
	for n := range must(strconv.Atoi(rounds)) {
		if err == nil {
			_, err = write(w, uint32(n+1), small)
		}
	}
	return err
}

// TestModelOptHalfAState checks failure 9: a process writes a thousand states, one over the other,
// while another reads. The reader never sees a partial state, and never an older one after a newer
// one.
func TestModelOptHalfAState(t *testing.T) {
	rounds := testcluster.Form(200, 1000)
	dir := t.TempDir()
	w := open(t, dir, 1, nil)
	publisher := testcluster.Start(t, "publisher", fmt.Sprint(rounds, " ", dir))
	seen, last := 0, uint32(0)
	for last < uint32(rounds) {
		s, err := w.Wait(t.Context(), 0)
		require.NoError(t, err)
		n, err := whole(s)
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, last)
		if n > last {
			seen++
		}
		last = n
	}
	<-publisher.Done()
	require.NoError(t, publisher.Err())
	t.Logf("saw %d of %d states", seen, rounds)
	require.Len(t, names(t, dir), 4)
}
