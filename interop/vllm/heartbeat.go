package vllm

import (
	"context"
	"sync"
	"time"

	"github.com/muster-pg/muster/wire"
)

// A TCPStore of Python has no leases, so Go ranks count heartbeats there: each rank increments its
// alive key. A rank that waits for another one reads that key with each check. If the count stays the
// same for livenessTimeout, by the clock of the rank that waits, the other one has failed. A process
// that was stopped for so long counts as failed, too; its next heartbeat ends that.
const (
	heartbeat       = time.Second
	livenessTimeout = 5 * time.Second
)

// heartbeats are the counts that this rank has read, and the goroutine that sends its own.
type heartbeats struct {
	sending sync.WaitGroup

	mu   sync.Mutex // protects seen
	seen map[int]lastBeat
}

// lastBeat is a count, and when this rank has read it first.
type lastBeat struct {
	count string
	at    time.Time
}

// beat sends the first heartbeat, publishes that others follow, and sends them until the group is
// closed.
func (g *Group) beat(ctx context.Context) error {
	key := note(alive, g.cfg.Rank)
	if _, err := g.store.Add(ctx, key, 1); err != nil {
		return err
	}
	if err := g.store.Set(ctx, note(joined, g.cfg.Rank), []byte(stateBeats), nil); err != nil {
		return err
	}
	g.beats.sending.Go(func() {
		every := time.NewTicker(heartbeat)
		defer every.Stop()
		for {
			select {
			case <-every.C:
				_, _ = g.store.Add(g.ctx, key, 1) // a store that has ended is reported by the operations
			case <-g.ctx.Done():
				return
			}
		}
	})
	return nil
}

// silent reports whether count, the heartbeats of rank so far, has not changed for livenessTimeout.
func (h *heartbeats) silent(rank int, count string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen == nil {
		h.seen = map[int]lastBeat{}
	}
	if last, ok := h.seen[rank]; ok && last.count == count {
		return time.Since(last.at) > livenessTimeout
	}
	h.seen[rank] = lastBeat{count, time.Now()}
	return false
}

// lost returns the failure of the rank that n waits for, if Go ranks detect that it has failed.
func (c *call) lost(t peerNotes, n need) *wire.Failure {
	count, ok := t[note(alive, n.from)]
	switch t[note(joined, n.from)] {
	case stateLeased:
		if ok {
			return nil
		}
	case stateBeats:
		if !ok || !c.beats.silent(n.from, count) {
			return nil
		}
	default:
		return nil
	}
	return &wire.Failure{Code: wire.CodeLost, By: -1, Lost: []int{n.from}, Reason: "without the key " + quoted([]need{n})}
}
