package collective

import (
	"context"
	"fmt"
	"sync"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// Send sends x to another rank, which receives equally many elements of the same type. It returns
// when x may be changed. Messages from one rank to another arrive in order. They do not count among
// the verbs of all ranks, and run concurrently with them; one at a time in each direction between
// two ranks.
func Send[T tensor.Number](ctx context.Context, c *Comm, dst int, x []T) error {
	return c.pair(ctx, planOf(send, 0, rooted(dst), x, nil), dst)
}

// Recv receives a message of another rank into x: equally many elements of the same type.
func Recv[T tensor.Number](ctx context.Context, c *Comm, src int, x []T) error {
	return c.pair(ctx, planOf(receive, 0, rooted(src), x, nil), src)
}

// pair runs Send or Recv.
func (c *Comm) pair(ctx context.Context, p plan, peer int) error {
	out := p.verb == send
	if err := c.check(&p); err != nil {
		return err
	}
	if peer == c.rank() {
		return c.invalid(p.verb, "rank %d is this one", peer)
	}
	p.peer = peer
	k := pairKey{peer, out}
	seq, ok := c.pairs.take(k)
	if !ok {
		return fmt.Errorf("collective: %v of group %q on rank %d: rank %d: %w", p.verb, c.name, c.rank(), peer, pgroup.ErrBusy)
	}
	defer c.pairs.free(k)
	if !out {
		p.root = c.rank() // the receiver
	}
	return c.perform(ctx, &p, seq, func(cl *call) error {
		if out {
			return cl.sendPair(peer, p.x)
		}
		return cl.receivePair(peer, p.x)
	})
}

func (c *call) sendPair(to int, x vector) error {
	out, err := c.conns.to(c.ctx, connKey{to, forPairs})
	if err != nil {
		return c.broken(to, err)
	}
	h := c.head
	_ = pieces(x, func(n uint32, piece vector) error {
		h.part = n
		out.send(&h, piece)
		return nil
	})
	if err := out.flush(); err != nil {
		return c.broken(to, err)
	}
	return nil
}

func (c *call) receivePair(from int, x vector) error {
	in, err := c.conns.from(c.ctx, connKey{from, forPairs})
	if err != nil {
		return c.broken(from, err)
	}
	return pieces(x, func(n uint32, piece vector) error { return in.receive(c, from, n, piece) })
}

// pairs numbers the messages to and from each other rank. In each direction, one message is in
// progress at a time.
type pairs struct {
	mu   sync.Mutex // protects the fields below
	busy map[pairKey]bool
	seq  map[pairKey]uint64
}

type pairKey struct {
	rank int
	out  bool
}

// take begins a message, and returns its number; ok is false if another is in progress.
func (p *pairs) take(k pairKey) (seq uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[k] {
		return 0, false
	}
	if p.busy == nil {
		p.busy, p.seq = map[pairKey]bool{}, map[pairKey]uint64{}
	}
	p.busy[k] = true
	p.seq[k]++
	return p.seq[k], true
}

func (p *pairs) free(k pairKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy[k] = false
}
