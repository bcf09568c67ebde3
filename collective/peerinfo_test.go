package collective_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// TestNoSharedBuffer has a rank without memory that others could map: all ranks use connections.
func TestNoSharedBuffer(t *testing.T) {
	const n = 3
	meet := store.New(new(store.Memory))
	defer meet.Close()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			g, err := pgroup.Create(ctx, pgroup.Config{Rank: i, Size: n, Store: meet, Host: "node"})
			if !assert.NoError(t, err) {
				return
			}
			defer g.Close()
			if i == 1 {
				withoutSharedBuffer(ctx, t, g)
				return
			}
			c, err := collective.Open(ctx, g, nil)
			if assert.NoError(t, err) {
				_, some := c.SharesMemory()
				assert.False(t, some)
				assert.NoError(t, c.Close())
			}
		})
	}
	all.Wait()
}

// withoutSharedBuffer opens as a Comm does, by hand.
func withoutSharedBuffer(ctx context.Context, t *testing.T, g *pgroup.Group) {
	sub, err := g.Sub(ctx, "collective", 0, 1, 2)
	if !assert.NoError(t, err) {
		return
	}
	defer sub.Close()
	m, err := link.Open(ctx, sub, link.Options{Name: "collective", Accept: func(c *link.Conn) { _ = c.Close() }})
	if !assert.NoError(t, err) {
		return
	}
	defer m.Close()
	assert.NoError(t, collective.ReportNoMemory(ctx, sub))
	_ = sub.Barrier(ctx) // until the others have opened, and closed
}
