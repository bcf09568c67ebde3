package collective

import (
	"context"
	"fmt"
	"slices"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
)

// peerInfo is what a rank sends the others when it opens a Comm.
type peerInfo struct {
	Algorithm Algorithm
	Board     *shm.Ref // the buffer that this rank shares with others of its host; nil: none
}

// share sets up the shared memory of the ranks of a host. All ranks come to the same result: either
// all hosts that have several ranks share memory, or none does.
func (c *core) share(ctx context.Context) error {
	mine := peerInfo{Algorithm: c.opts.Algorithm}
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
		refs := make([]*shm.Ref, len(ranks))
		for i, r := range ranks {
			refs[i] = peers[r].Board
		}
		l = &local{medium: buffer, ranks: ranks, me: c.placement.place}
		if err = buffer.connect(ctx, c, ranks, l.me, refs); err != nil {
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
		if len(ranks) > 1 && slices.ContainsFunc(ranks, func(r int) bool { return peers[r].Board == nil }) {
			return false
		}
	}
	return some
}
