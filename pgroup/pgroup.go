// Package pgroup provides process groups: any set of processes can form a group, get ranks,
// exchange small objects, and synchronize. A process may be in any number of groups.
//
//	cfg, err := pgroup.FromEnv()               // torchrun, Open MPI, Slurm, Kubernetes, muster run
//	world, err := pgroup.Create(ctx, cfg)      // returns when all ranks have joined, or an error that names the missing ones
//	defer world.Close()
//	id, err = pgroup.Broadcast(ctx, world, 0, id)
//	err = world.Barrier(ctx)
//
// All ranks call the collective operations of a group (Barrier, Broadcast, Gather, AllGather,
// Scatter, AllToAll, AllReduce, Split) in the same order, one at a time; a second one at the same
// time is ErrBusy. Send and Recv may be called at any time, and [Group.Channel] has its own sequence
// of operations. The store decides each collective operation once: all ranks get the same result. A
// failure is a *[RankError], which says why, and names the ranks at fault.
//
// A context bounds an operation for all ranks: the earliest deadline of the ranks that have called
// it counts, and a rank that cancels ends the operation for all. A context without a deadline gets
// Config.Timeout.
//
// Objects are small, at most 16 MiB, of any type that Config.Codec (msgpack) can encode: configs, names, counts.
// For slices of numbers of any size, from some KiB on, use package collective, which sends them directly between
// ranks and reduces them in place; for tensors onto one rank, package gather. A slice of
// bytes is sent as it is. Values that are passed in may be reused after the call. Values that are
// returned belong to the caller, except that the root of a Broadcast gets back the value that it
// passed.
package pgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// Group is one rank's handle of a group, or of a channel of a group: a sequence of operations. It
// is safe for concurrent use.
//
// A Group holds a reference to its connection to the store, or on the rank that hosts the store to
// the server. Sub, Split and Shrink return groups that share it. The last one that is closed closes
// it.
type Group struct {
	*membership
	channel string // "" is the group itself
	log     *slog.Logger

	mu   sync.Mutex    // held during a collective operation: a caller that finds it locked gets ErrBusy
	mem  sharedMemory  // see its fields
	seq  atomic.Uint64 // of the last collective operation; changed with mu held
	call call          // the operation in progress; protected by mu
	buf  []byte        // buffer for encoded objects; protected by mu

	inbox  peers[inbox]  // streams to this rank, by source
	outbox peers[outbox] // streams from this rank, by destination
	use    *channelUse   // of a channel; nil for the group itself
}

// Name returns the name of the group. That of a Sub or a Split begins with the name of its parent.
func (g *Group) Name() string { return g.name }

// Rank returns this process's rank: 0 ≤ Rank < Size.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks.
func (g *Group) Size() int { return g.size }

// String returns the group, its channel if it is one, and this rank, for logs.
func (g *Group) String() string {
	s := fmt.Sprintf("group %q", g.name)
	if g.channel != "" {
		s += fmt.Sprintf(" channel %q", g.channel)
	}
	return fmt.Sprintf("%s rank %d of %d", s, g.rank, g.size)
}

// Config returns the configuration that the group was created with, with its defaults filled in. A
// group that Sub, Split or Shrink made has the configuration of the group that it was made of,
// Name, Rank and Size included.
func (g *Group) Config() Config { return g.cfg }

// Trace returns the sink that gets an event for each operation of this group, as Config.Trace and
// Config.TraceDir set it; nil if none. Packages with their own operations on a group send theirs
// to it too.
func (g *Group) Trace() trace.Sink { return g.cfg.sink }

// Generation returns the number of this group on its store. The store never uses it again: a group
// that is created or shrunk later has a higher one.
func (g *Group) Generation() uint64 { return g.generation }

// Store returns the store of the group, below a prefix that only this generation has. Its Close, which
// is not needed, ends this rank's use of it. The store deletes the keys when no rank of the generation is
// left. Those that begin with a NUL byte are the group's own.
func (g *Group) Store() *store.Store { return g.prefixed }

// Channel returns a handle of the group with its own sequence of operations, without a round trip.
// Collectives on different channels may run at the same time, and Send and Recv on a channel are
// streams of their own. The same name returns the same channel until that is closed. "" is the
// group itself; names that begin with a NUL byte are reserved.
//
// Close of a channel ends this rank's use of it, and of nothing else. The store frees a channel
// when all ranks that use it have closed it. A rank may use the name again at once, as a new
// channel. A group may have 4,096 channels and 1,048,576 streams at a time; one more is ErrFull.
// Close of the group closes all of its channels.
func (g *Group) Channel(name string) *Group { return g.handle(name) }

// Barrier returns when all ranks have called it. It takes one round trip.
func (g *Group) Barrier(ctx context.Context) error {
	cl, err := g.begin(&wire.Contribution{Verb: "barrier", Root: -1, Want: wire.WantNothing})
	if err != nil {
		return err
	}
	defer cl.end()
	_, err = cl.vote(ctx, nil)
	return err
}

// Context returns a context that ends when the group can no longer be used: a rank has failed,
// ranks called different operations, a rank aborted, or g is closed. Its cause is then the
// *RankError, or ErrClosed. The first call starts a goroutine that waits for the store to report
// it; Close ends that.
func (g *Group) Context() context.Context { return g.groupContext() }

// Expired returns how many messages that this rank has sent have expired unread (Config.Expiry)
// since its last call. Their receivers get ErrExpired, once for each message.
func (g *Group) Expired(ctx context.Context) (int, error) {
	whole := g.handle("")
	if whole.isClosed() {
		return 0, whole.closedError("expire")
	}
	bounded, cancel := whole.withTimeout(ctx, time.Now())
	defer cancel()
	start := trace.Now(g.cfg.sink)
	n, err := g.store.Expire(bounded, g.request())
	if err != nil {
		n, err = 0, whole.asRankError("expire", 0, err)
	}
	whole.traceOp(ctx, "expire", start, 0, err)
	return n, err
}

// Skip skips the operations of this channel, or of the group, up to sequence number seq: the next
// one is seq+1, or a later one if this rank is beyond that. A rank whose operation ended with
// ErrUnknown uses it to continue where the other ranks are. A rank that waits for this rank in a
// skipped operation gets ErrSkipped when this rank calls its next one.
func (g *Group) Skip(seq uint64) {
	for old := g.seq.Load(); old < seq && !g.seq.CompareAndSwap(old, seq); old = g.seq.Load() {
	}
}

// Abort ends the group for all ranks: pending and later operations return a *RankError that matches
// ErrAborted, with the text of cause and the rank that aborted. g must still be closed.
func (g *Group) Abort(cause error) {
	s := g.membership
	c := s.request()
	c.No, c.Reason = wire.CodeAborted, "no cause given"
	if cause != nil {
		c.Reason = clip(cause.Error(), wire.MaxKey)
	}
	start := trace.Now(s.cfg.sink)
	s.leaveMemory()
	s.leave(c)
	s.handle("").traceOp(context.Background(), "abort", start, 0, cause)
}

// Shutdown waits until all ranks have called it, and closes g: so no rank waits for a rank that has
// left. The rank that hosts the store ends last: it waits, until ctx ends, for the other ranks to
// disconnect. g is closed even if Shutdown fails; one that is called while another is in progress
// returns ErrBusy. Shutdown of a channel is a barrier, and then closes the channel.
func (g *Group) Shutdown(ctx context.Context) error {
	if g.channel != "" {
		return errors.Join(g.Barrier(ctx), g.Close())
	}
	return g.shutdown(ctx)
}

// Close leaves the group at once; ranks that wait for this rank get ErrLeft. It unblocks all
// operations of this handle with ErrClosed, and waits for the goroutines that the handle owns. On
// the rank that hosts the store, Close of the last handle also stops the server, after it has sent
// its answers and its clients have disconnected, or after 10 s. A second Close does nothing.
//
// Close of a channel ends this rank's use of that channel alone (see Channel). Operations of this
// rank on the channel are cancelled; operations of other ranks that need this rank on the channel
// get ErrSkipped. It waits up to 10 s for a store that is busy or restarts.
func (g *Group) Close() error {
	if g.channel != "" {
		return g.closeChannel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainWait)
	defer cancel()
	return g.closeWithin(ctx)
}
