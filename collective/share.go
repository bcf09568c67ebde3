package collective

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
)

func (c *core) card() card {
	mine := card{Algorithm: c.opts.Algorithm, Process: thisProcess()}
	if c.rank() == 0 {
		mine.Room = rand.Text()
	}
	return mine
}

// share makes what the ranks of this node have in common. All ranks come to the same, whether nodes share memory: on all nodes that have several
// ranks, or on none.
func (c *core) share(_ context.Context, cards []card) error {
	c.shared = false
	for _, ranks := range c.hosts {
		for _, r := range ranks {
			if cards[r].Process != cards[ranks[0]].Process {
				return nil
			}
		}
		c.shared = c.shared || len(ranks) > 1
	}
	for host, ranks := range c.hosts {
		if me := slices.Index(ranks, c.rank()); me >= 0 && len(ranks) > 1 {
			name := fmt.Sprint(cards[0].Room, " ", host)
			c.local = &local{medium: newInProcess(name, len(ranks), me), ranks: ranks, me: me}
		}
	}
	return nil
}
