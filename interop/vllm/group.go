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

// Group is one rank of a group. It is safe for concurrent use by one collective operation
// (BroadcastObj, AllGatherObj, Broadcast, AllReduce, Barrier), one receive, and one send to each
// rank at a time; another one is pgroup.ErrBusy.
type Group struct {
	cfg   Config
	store *store.Store
	lease *store.Lease // nil if the store has neither leases nor times to live, as a TCPStore of Python

	ctx   context.Context // cancelled by Close
	close context.CancelFunc
	once  sync.Once

	collective sync.Mutex // held during a collective operation
	broadcasts []uint64   // by source: how many this rank has sent or received; protected by collective
	barriers   uint64     // protected by collective
	gathers    uint64     // protected by collective

	in  inbox
	out []outbox // by destination

	mu           sync.Mutex    // protects the fields below; never held during I/O
	lastActivity *call         // the operation that this rank published last; nil if that was deleted
	entries      []expiringKey // without lease: the keys that this rank has set, the oldest first
}

// expiringKey is a key that this rank deletes when it is too old.
type expiringKey struct {
	key string
	at  time.Time
}

// Join joins the group as a rank. On rank 0 it returns when all ranks have joined, as vLLM's create
// does, unless c.Shared is set; on the others at once. More ranks than Size, or two Go processes with the same rank, are
// pgroup.ErrConflict. The caller must Close the group.
func Join(ctx context.Context, c Config) (*Group, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Group{cfg: c, store: c.Store, broadcasts: make([]uint64, c.Size), out: make([]outbox, c.Size)}
	g.ctx, g.close = context.WithCancel(context.Background())
	ctx, done := g.withTimeout(ctx)
	defer done()
	join := &joining{call: &call{Group: g, op: "join"}}
	if err := join.claimRank(ctx); err != nil {
		g.close()
		g.shortly(join.undo)
		return nil, err
	}
	return g, nil
}

// Rank returns this process's rank.
func (g *Group) Rank() int { return g.cfg.Rank }

// Size returns the number of ranks.
func (g *Group) Size() int { return g.cfg.Size }

// Close ends all calls in progress with pgroup.ErrClosed, and publishes to other Go ranks that this
// one has left. What it has sent is kept, and the store stays open. A second Close does nothing.
func (g *Group) Close() error {
	g.once.Do(func() {
		g.close()
		g.shortly(func(ctx context.Context) {
			_ = g.store.Set(ctx, note(joined, g.cfg.Rank), []byte(stateLeft), nil)
			if g.lease != nil {
				_ = g.lease.Close(ctx)
			}
		})
	})
	return nil
}

// shortly calls last with a short deadline: a store that is unreachable must not block Close.
func (g *Group) shortly(last func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	last(ctx)
}

// withTimeout gives ctx the default timeout if it has no deadline, and cancels it when the group is
// closed.
func (g *Group) withTimeout(ctx context.Context) (context.Context, func()) {
	cancelTimeout := func() {}
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancelTimeout = context.WithTimeout(ctx, g.cfg.Timeout)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		cancelTimeout()
	}
}

// joining is a Join in progress: what it has done so far.
type joining struct {
	*call
	claimed, counted bool
}

// claimRank claims this rank and counts it.
func (c *joining) claimRank(ctx context.Context) error {
	if _, err := c.store.Swap(ctx, note(joined, c.cfg.Rank), nil, []byte(stateJoined+uuid())); errors.Is(err, store.ErrConflict) {
		return c.conflict("another process has joined as this rank, now or in an earlier run", err)
	} else if err != nil {
		return c.asRankError(err)
	}
	c.claimed = true
	if err := c.announce(ctx); err != nil {
		return c.asRankError(err)
	}
	if c.cfg.Shared {
		return nil
	}
	n, err := c.store.Add(ctx, joinCount, 1)
	if err != nil {
		return c.asRankError(err)
	}
	c.counted = true
	switch {
	case n > int64(c.cfg.Size):
		return c.conflict(fmt.Sprintf("this is number %d to join %d ranks, with those of an earlier run", n, c.cfg.Size), nil)
	case c.cfg.Rank == 0:
		return c.waitForAll(ctx, n)
	}
	return nil
}

func (c *call) conflict(why string, err error) error {
	return c.rankError(&wire.Failure{Code: wire.CodeConflict, By: -1, Reason: why + ": a group needs a store of its own, or a prefix (Config.Shared)"}, err)
}

// undo takes back what claimRank did.
func (c *joining) undo(ctx context.Context) {
	if c.counted {
		_, _ = c.store.Add(ctx, joinCount, -1)
	}
	if c.lease != nil {
		_ = c.lease.Close(ctx)
	}
	if c.claimed {
		_, _ = c.store.Delete(ctx, note(joined, c.cfg.Rank))
	}
}

// announce makes failure detection of this process possible for Go ranks, by a lease, if the store
// has leases.
func (g *Group) announce(ctx context.Context) error {
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
	return g.store.Set(ctx, note(joined, g.cfg.Rank), []byte(stateLeased), nil)
}

// waitForAll waits until all ranks have joined; n have. It polls: a Python rank only increments a
// counter, which no wait can wait for.
func (c *call) waitForAll(ctx context.Context, n int64) error {
	began := time.Now()
	for pause := time.Millisecond; n < int64(c.cfg.Size); pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return c.rankError(&wire.Failure{
				Code: c.ended(ctx), By: -1, Waited: time.Since(began), Reason: fmt.Sprintf("%d of %d ranks have joined%s", n, c.cfg.Size, c.present()),
			}, ctx.Err())
		}
		now, err := c.store.Add(ctx, joinCount, 0)
		if err != nil && ctx.Err() == nil {
			return c.asRankError(err)
		}
		n = max(n, now)
	}
	return nil
}

// present lists the Go ranks that have joined.
func (c *call) present() string {
	ctx, cancel := c.shortContext()
	defer cancel()
	notes := c.readNotes(ctx, nil)
	var there []string
	for rank := range c.cfg.Size {
		if notes[note(joined, rank)] != "" {
			there = append(there, strconv.Itoa(rank))
		}
	}
	if there == nil {
		return ""
	}
	return "; of those of Go " + strings.Join(there, ", ")
}

// check refuses an invalid rank.
func (c *call) check(rank int) error {
	if rank < 0 || rank >= c.cfg.Size {
		return c.invalid("rank %d of a group of %d: ranks are 0 to %d", rank, c.cfg.Size, c.cfg.Size-1)
	}
	return nil
}

// invalid returns the error of an invalid argument.
func (c *call) invalid(format string, args ...any) error {
	return invalid("%s of group %q on rank %d: %s", c.op, c.cfg.Name, c.cfg.Rank, fmt.Sprintf(format, args...))
}

// exclusive runs an operation with lock held; if another operation holds it, the error is
// pgroup.ErrBusy.
func (c *call) exclusive(ctx context.Context, lock *sync.Mutex, verb func(ctx context.Context) error) error {
	if c.ctx.Err() != nil {
		return c.closed()
	}
	if !lock.TryLock() {
		return fmt.Errorf("vllm: %s of group %q on rank %d: %w", c.op, c.cfg.Name, c.cfg.Rank, pgroup.ErrBusy)
	}
	defer lock.Unlock()
	ctx, done := c.withTimeout(ctx)
	defer done()
	err := verb(ctx)
	c.report(err)
	return err
}

// set sets a key, with DataExpiration as its time to live if the store supports that.
func (g *Group) set(ctx context.Context, key string, value []byte) error {
	var o *store.SetOptions
	if g.lease != nil {
		o = &store.SetOptions{TTL: g.cfg.DataExpiration}
	}
	return g.store.Set(ctx, key, value, o)
}

// put is set; if the store has no times to live, a later put deletes the key.
func (g *Group) put(ctx context.Context, key string, value []byte) error {
	if g.lease != nil {
		return g.set(ctx, key, value)
	}
	if err := g.expire(ctx); err != nil {
		return err
	}
	if err := g.set(ctx, key, value); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entries = append(g.entries, expiringKey{key, time.Now()})
	return nil
}

// expire deletes the keys that are too old in a store without times to live.
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
