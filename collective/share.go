package collective

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
)

// peerInfo is what a rank sends the others when it opens a Comm.
type peerInfo struct {
	Algorithm  Algorithm
	Process    string   // the same for ranks of one process
	Rendezvous string   // the name of rank 0's rendezvous for ranks of one process
	Board      *shm.Ref // what this rank shares with other processes of its node; nil: it cannot
}

// share makes what the ranks of a node have in common. All ranks come to the same, whether nodes
// share memory: all that have several ranks do, or none.
func (c *core) share(ctx context.Context) error {
	mine := peerInfo{Algorithm: c.opts.Algorithm, Process: cmp.Or(c.opts.process, thisProcess()), Rendezvous: rand.Text()}
	var buffer *sharedBuffers
	ranks := c.placement.neighbours()
	if len(ranks) > 1 {
		buffer, mine.Board = newSharedBuffer()
	}
	peers, err := pgroup.AllGather(ctx, c.group.Channel("open"), mine)
	if err == nil {
		err = c.checkPeers(peers)
	}
	if err != nil || !c.shares(peers) {
		buffer.discard()
		return err
	}
	var l *local
	if len(ranks) > 1 {
		l = &local{ranks: ranks, me: c.placement.place}
		if err = c.enter(ctx, l, buffer, fmt.Sprint(peers[0].Rendezvous, " ", c.placement.node), peers); err != nil {
			l.close() // so that those that map this rank's buffer fail too
		}
	}
	// One that could not is to keep all others from waiting for it there.
	failed, gone := pgroup.AllGather(ctx, c.group.Channel("open"), errorText(err))
	c.shared = gone == nil && !slices.ContainsFunc(failed, func(text string) bool { return text != "" })
	switch {
	case c.shared:
		c.local = l
	case l != nil && err == nil:
		l.close()
	}
	return gone
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (c *core) checkPeers(peers []peerInfo) error {
	if a := peers[0].Algorithm; a > Hierarchical {
		return fmt.Errorf("collective: Options.Algorithm is %d, which is none: %w", a, pgroup.ErrInvalid)
	}
	for rank, m := range peers {
		if m.Algorithm != peers[0].Algorithm {
			return fmt.Errorf("collective: rank %d has Options.Algorithm %d, and rank 0 %d: %w", rank, m.Algorithm, peers[0].Algorithm, pgroup.ErrMismatch)
		}
	}
	return nil
}

// shares reports whether all nodes that have several ranks can share memory, and there are such.
func (c *core) shares(peers []peerInfo) (some bool) {
	for _, ranks := range c.placement.hosts {
		some = some || len(ranks) > 1
		if !together(peers, ranks) && slices.ContainsFunc(ranks, func(r int) bool { return peers[r].Board == nil }) {
			return false
		}
	}
	return some
}

// together reports whether ranks are all in one process.
func together(peers []peerInfo, ranks []int) bool {
	return !slices.ContainsFunc(ranks, func(r int) bool { return peers[r].Process != peers[ranks[0]].Process })
}

// enter makes the medium: slices if all ranks of the node are in one process, shared buffers if
// not.
func (c *core) enter(ctx context.Context, l *local, buffer *sharedBuffers, rendezvous string, peers []peerInfo) error {
	if together(peers, l.ranks) {
		buffer.discard()
		l.medium = newInProcess(rendezvous, len(l.ranks), l.me)
		return nil
	}
	refs := make([]*shm.Ref, len(l.ranks))
	for i, r := range l.ranks {
		refs[i] = peers[r].Board
	}
	l.medium = buffer
	return buffer.connect(ctx, c, l.ranks, l.me, refs)
}
