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
	Process    string // the same for ranks of one process
	Rendezvous string // name of rank 0's rendezvous, for ranks of one process
	// the buffer that this rank shares with other processes of its host; nil: none
	Board *shm.Ref
}

// share sets up the shared memory of the ranks of a host. All ranks come to the same result: either
// all hosts that have several ranks share memory, or none does.
func (c *core) share(ctx context.Context) error {
	mine := peerInfo{Algorithm: c.opts.Algorithm, Process: cmp.Or(c.opts.process, thisProcess()), Rendezvous: rand.Text()}
	var buffer *sharedBuffers
	ranks := c.placement.neighbours()
	if len(ranks) > 1 {
		buffer, mine.Board = newSharedBuffer(c.group.Config().SharedMemory)
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
			l.close() // so that ranks that map this one's buffer fail too
		}
	}
	// If any rank fails to map the buffers, no rank uses shared memory: the others would wait for
	// that rank.
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

// shares reports whether all hosts that have several ranks can share memory, and there is such a
// host.
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

// enter makes the medium: slices if all ranks of the host are in one process, shared buffers
// otherwise.
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
