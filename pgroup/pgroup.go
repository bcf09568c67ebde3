// Package pgroup is stateless process groups: any set of processes, any number of overlapping
// groups in each.
//
//	cfg, err := pgroup.FromEnv()               // torchrun, Open MPI, Slurm, Kubernetes, muster run
//	world, err := pgroup.Create(ctx, cfg)      // returns when all ranks are there, or says who is not
//	defer world.Close()
//	id, err = pgroup.Broadcast(ctx, world, 0, id)
//	err = world.Barrier(ctx)
//
// Every rank calls the collective verbs of a group (Barrier, Broadcast, Gather, AllGather, Scatter, AllToAll,
// AllReduce, Split) in the same order, one at a time; a second one at the same time is ErrBusy. Send and Recv are
// free of that, and [Group.Channel] has a sequence of its own. A verb is decided once, for all: every rank
// hears the same verdict, and if it is a failure, a *[RankError] says why, and who.
//
// A context bounds a verb for every rank: the earliest deadline among those who called decides, and a rank
// that cancels ends the verb for all. A context without a deadline gets Config.Timeout.
//
// Objects are small, at most 16 MiB: any type that Config.Codec (msgpack) can encode. A slice of bytes
// passes as it is, without a copy by the codec.
// Values passed in may be reused on return; values returned are the caller's, except that the root
// of a Broadcast gets back the value that it passed.
package pgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// Group is one rank's handle of a group, or of a channel of one: a sequence of verbs. Many goroutines may use it.
//
// It holds on to what the group meets through: the connection, or, on the rank that hosts it, the server.
// Sub, Split and Shrink give groups that share it; it goes when the last of them is closed.
type Group struct {
	*seat
	channel string // "" is the group itself
	log     *slog.Logger

	mu  sync.Mutex    // held for the whole of a collective verb: whoever finds it locked is ErrBusy
	seq atomic.Uint64 // of the last collective verb; changed with mu
	buf []byte        // room to encode objects; guarded by mu

	inboxes inboxes
	use     *use // of a channel
}

// Name is the name of the group; that of a Sub or a Split starts with its parent's.
func (g *Group) Name() string { return g.name }

// Rank is this process's rank: 0 ≤ Rank < Size.
func (g *Group) Rank() int { return g.rank }

// Size is the number of ranks.
func (g *Group) Size() int { return g.size }

// String names the group, its channel if it is one, and this rank, for logs.
func (g *Group) String() string {
	s := fmt.Sprintf("group %q", g.name)
	if g.channel != "" {
		s += fmt.Sprintf(" channel %q", g.channel)
	}
	return fmt.Sprintf("%s rank %d of %d", s, g.rank, g.size)
}

// Config is what the group was created with, its defaults filled in. A Sub, a Split and what Shrink makes have that of the
// group they were made of: its Name, Rank and Size are of that.
func (g *Group) Config() Config { return g.cfg }

// Trace is what is told of this group's verbs, by Config.Trace and Config.TraceDir; nil is nobody. Packages that do more with a group tell
// it too.
func (g *Group) Trace() trace.Sink { return g.cfg.sink }

// Generation is the number of this group on its store. It is never used again there: a group that
// is created or shrunk later has a higher one.
func (g *Group) Generation() uint64 { return g.generation }

// Store is the store that the group meets on, below a prefix that is this generation's alone. Its Close
// does nothing; keys stay until they are deleted, or as long as the store does.
func (g *Group) Store() *store.Store { return g.keys() }

// Channel returns a handle of the group with a sequence of verbs of its own, at no round trip: collectives on different
// channels may run at the same time, and Send and Recv on a channel are streams of their own. The same name gives the
// same channel until that is closed; "" is the group itself, and names that start with a NUL byte are reserved.
//
// Close of a channel ends this rank's use of it, and of nothing else. The store frees a channel when all ranks that use
// it have closed it; the same name can be used again at once, and begins anew. A group has at most 4,096 channels and
// 1,048,576 streams at a time, one more is ErrFull: close those that are not needed any more. Closing the group closes
// all of its channels.
func (g *Group) Channel(name string) *Group { return g.open(name) }

// Barrier returns when every rank has called it: one round trip.
func (g *Group) Barrier(ctx context.Context) error {
	cl := call{Group: g, c: wire.Contribution{Verb: "barrier", Root: -1, Want: wire.WantNothing}}
	if err := cl.begin(); err != nil {
		return err
	}
	defer cl.end()
	_, err := cl.cast(ctx, nil)
	return err
}

// Context ends when the group can no longer be used: a rank is lost, ranks disagreed, one of them aborted, or g is
// closed. Its cause is then the *RankError, or ErrClosed. The first call asks the store to tell.
func (g *Group) Context() context.Context { return g.follow() }

// Expire returns how many messages that this rank has sent have expired unread (Config.Expiry) since
// it last asked. Their readers hear ErrExpired, each message in its turn.
func (g *Group) Expire(ctx context.Context) (int, error) { return g.expire(ctx) }

// Skip passes the verbs of this channel, or of the group, up to the number seq: the next one is seq+1, or a later one if this rank is beyond that. A
// rank whose verb has ended in ErrUnknown so goes on where the others are. One that waits for this rank in a verb that is skipped gets an
// ErrSkipped when this rank calls its next verb.
func (g *Group) Skip(seq uint64) {
	for old := g.seq.Load(); old < seq && !g.seq.CompareAndSwap(old, seq); old = g.seq.Load() {
	}
}

// Abort ends the group for every rank: all pending and later verbs return a *RankError that matches ErrAborted and
// has the text of cause, and says which rank it came from. g is still to be closed.
func (g *Group) Abort(cause error) { g.abort(cause) }

// Shutdown waits until every rank has called it, so that no rank waits for another any more, and closes g. The rank that hosts
// the store goes last: it waits, until ctx ends, for the others to hang up. g is closed too if it fails. Shutdown of a
// channel is a barrier, after which the channel is closed.
func (g *Group) Shutdown(ctx context.Context) error {
	if g.channel != "" {
		return errors.Join(g.Barrier(ctx), g.Close())
	}
	return g.shutdown(ctx)
}

// Close takes this rank out of the group, at once, whatever the others do: those who wait for it hear that
// it left. It unblocks every verb of this handle with ErrClosed, and waits for the goroutines that the handle
// owns. The last handle of the rank that hosts the store also ends the server, after all its answers are
// sent and its peers have hung up, in 10 s at most. It may be called twice.
//
// Close of a channel ends this rank's use of that channel alone (see Channel). A verb of this rank that is under way on it
// is cancelled; one of another rank that needs this rank on the channel is ErrSkipped.
func (g *Group) Close() error {
	if g.channel != "" {
		return g.closeChannel()
	}
	return g.close()
}
