package vllm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Group is one rank of a group. It may be used by many goroutines: one collective verb (BroadcastObj, AllGatherObj, Broadcast,
// AllReduce, Barrier) at a time, one receive, and one send to each rank; another is pgroup.ErrBusy. Neither waits for the other.
type Group struct {
	cfg   Config
	store *store.Store
	lease *store.Lease // nil if the store has none

	life  context.Context // until Close
	close context.CancelFunc
	once  sync.Once

	together sync.Mutex // held for the whole of a collective verb
	casts    []uint64   // by source: how many broadcasts this rank has sent, or taken; guarded by together
	barriers uint64     // guarded by together
	gathers  uint64     // guarded by together

	in  inbox
	out []outbox // by destination

	mu      sync.Mutex // protects the fields below; never held during I/O
	said    *call      // what of this rank's verbs has told the others of itself last; nil if that is taken back
	plain   bool       // the store has no times to live
	entries []aging    // then: what this rank has set, the oldest first
}

// aging is a key that goes when it is too old.
type aging struct {
	key string
	at  time.Time
}

// Join makes this process a rank. On rank 0 it returns when all ranks have come, as vLLM's create does, on the others at once.
// More ranks than Size, or a rank of Go that is there twice, are pgroup.ErrConflict.
func Join(ctx context.Context, c Config) (*Group, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Group{cfg: c, store: c.Store, casts: make([]uint64, c.Size), out: make([]outbox, c.Size)}
	g.life, g.close = context.WithCancel(context.Background())
	ctx, done := g.bound(ctx)
	defer done()
	join := &entering{call: &call{Group: g, op: "join"}}
	if err := join.enter(ctx); err != nil {
		g.bye(join.retreat)
		g.close()
		return nil, err
	}
	return g, nil
}

// Rank is this process's rank.
func (g *Group) Rank() int { return g.cfg.Rank }

// Size is how many ranks there are.
func (g *Group) Size() int { return g.cfg.Size }

// Close ends every call in progress with pgroup.ErrClosed, and tells the other ranks of Go that this one has left. What it sent
// stays, and the store stays open. It may be called twice.
func (g *Group) Close() error {
	g.once.Do(func() {
		g.close()
		g.bye(func(ctx context.Context) {
			_ = g.store.Set(ctx, note(joined, g.cfg.Rank), []byte(hasLeft), nil)
			if g.lease != nil {
				_ = g.lease.Close(ctx)
			}
		})
	})
	return nil
}

// bye calls last, which has not long: a store that is gone keeps nobody.
func (g *Group) bye(last func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	last(ctx)
}

// bound is ctx with a deadline, which ends with the group too.
func (g *Group) bound(ctx context.Context) (context.Context, func()) {
	var cancels []func()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, g.cfg.Timeout)
		cancels = append(cancels, cancel)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.life, cancel)
	return ctx, func() {
		stop()
		cancel()
		for _, c := range cancels {
			c()
		}
	}
}

// entering is a Join, and how far it has come.
type entering struct {
	*call
	claimed, counted bool
}

// enter takes this rank's place.
func (c *entering) enter(ctx context.Context) error {
	if _, err := c.store.Swap(ctx, note(joined, c.cfg.Rank), nil, []byte(isHere+uuid())); errors.Is(err, store.ErrConflict) {
		return c.conflict("another process has joined as this rank", err)
	} else if err != nil {
		return c.fault(err)
	}
	c.claimed = true
	if err := c.live(ctx); err != nil {
		return c.fault(err)
	}
	n, err := c.store.Add(ctx, comers, 1)
	if err != nil {
		return c.fault(err)
	}
	c.counted = true
	switch {
	case n > int64(c.cfg.Size):
		return c.conflict(fmt.Sprintf("this is number %d to join %d ranks", n, c.cfg.Size), nil)
	case c.cfg.Rank == 0:
		return c.muster(ctx, n)
	}
	return nil
}

func (c *call) conflict(why string, err error) error {
	return c.rankError(&wire.Failure{Code: wire.CodeConflict, By: -1, Reason: why + ", or had in an earlier run: a group needs a store of its own"}, err)
}

// retreat takes back what enter did.
func (c *entering) retreat(ctx context.Context) {
	if c.counted {
		_, _ = c.store.Add(ctx, comers, -1)
	}
	if c.lease != nil {
		_ = c.lease.Close(ctx)
	}
	if c.claimed {
		_, _ = c.store.Delete(ctx, note(joined, c.cfg.Rank))
	}
}

// live makes the end of this process known to ranks of Go, if the store can.
func (g *Group) live(ctx context.Context) error {
	l, err := g.store.Lease(ctx, lease)
	if errors.Is(err, store.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	g.lease = l
	if err := g.store.Set(ctx, note(alive, g.cfg.Rank), nil, &store.SetOptions{Lease: l}); err != nil {
		return err
	}
	return g.store.Set(ctx, note(joined, g.cfg.Rank), []byte(isLeased), nil)
}

// muster waits until all ranks have come, n of whom are there. Python only counts itself, so there is nothing that one could wait for.
func (c *call) muster(ctx context.Context, n int64) error {
	began := time.Now()
	for pause := time.Millisecond; n < int64(c.cfg.Size); pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return c.rankError(&wire.Failure{
				Code: c.ended(ctx), By: -1, Waited: time.Since(began), Reason: fmt.Sprintf("%d of %d ranks have joined%s", n, c.cfg.Size, c.present()),
			}, ctx.Err())
		}
		now, err := c.store.Add(ctx, comers, 0)
		if err != nil && ctx.Err() == nil {
			return c.fault(err)
		}
		n = max(n, now)
	}
	return nil
}

// present names the ranks of Go that have joined.
func (c *call) present() string {
	ctx, cancel := c.grace()
	defer cancel()
	told := c.listen(ctx, nil)
	var there []string
	for rank := range c.cfg.Size {
		if told[note(joined, rank)] != "" {
			there = append(there, strconv.Itoa(rank))
		}
	}
	if there == nil {
		return ""
	}
	return "; of those of Go " + strings.Join(there, ", ")
}

// check refuses a rank that is none.
func (c *call) check(rank int) error {
	if rank < 0 || rank >= c.cfg.Size {
		return c.invalid("rank %d of a group of %d: ranks are 0 to %d", rank, c.cfg.Size, c.cfg.Size-1)
	}
	return nil
}

// invalid is the error of an argument that makes no sense.
func (c *call) invalid(format string, args ...any) error {
	return invalid("%s of group %q on rank %d: %s", c.op, c.cfg.Name, c.cfg.Rank, fmt.Sprintf(format, args...))
}

// alone runs a verb, with lock held, unless another one has it.
func (c *call) alone(ctx context.Context, lock *sync.Mutex, verb func(ctx context.Context) error) error {
	if c.life.Err() != nil {
		return c.closed()
	}
	if !lock.TryLock() {
		return fmt.Errorf("vllm: %s of group %q on rank %d: %w", c.op, c.cfg.Name, c.cfg.Rank, pgroup.ErrBusy)
	}
	defer lock.Unlock()
	ctx, done := c.bound(ctx)
	defer done()
	err := verb(ctx)
	c.report(err)
	return err
}

// set sets a key that goes after DataExpiration, and reports whether the store keeps to that.
func (g *Group) set(ctx context.Context, key string, value []byte) (keeps bool, err error) {
	g.mu.Lock()
	plain := g.plain
	g.mu.Unlock()
	if !plain {
		err := g.store.Set(ctx, key, value, &store.SetOptions{TTL: g.cfg.DataExpiration})
		if !errors.Is(err, store.ErrUnsupported) {
			return true, err
		}
		g.mu.Lock()
		g.plain = true
		g.mu.Unlock()
	}
	return false, g.store.Set(ctx, key, value, nil)
}

// put sets a key that goes after DataExpiration; in a store that does not keep to it, this rank does when it puts another one.
func (g *Group) put(ctx context.Context, key string, value []byte) error {
	if err := g.expire(ctx); err != nil {
		return err
	}
	keeps, err := g.set(ctx, key, value)
	if err != nil || keeps {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entries = append(g.entries, aging{key, time.Now()})
	return nil
}

// expire deletes what is too old, of what the store keeps.
func (g *Group) expire(ctx context.Context) error {
	var old []string
	g.mu.Lock()
	for len(g.entries) > 0 && time.Since(g.entries[0].at) > g.cfg.DataExpiration {
		old = append(old, g.entries[0].key)
		g.entries = g.entries[1:]
	}
	g.mu.Unlock()
	if old == nil {
		return nil
	}
	_, err := g.store.Delete(ctx, old...)
	return err
}
