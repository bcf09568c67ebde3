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

// card is what a rank tells the others as it opens.
type card struct {
	Algorithm Algorithm
	Process   string   // the same for ranks of one process
	Room      string   // where ranks of one process meet, of rank 0
	Board     *shm.Ref // what this rank shares with other processes of its node; nil: it cannot
}

// share makes what the ranks of a node have in common. All ranks come to the same, whether nodes share memory: all that have several ranks
// do, or none.
func (c *core) share(ctx context.Context) error {
	mine := card{Algorithm: c.opts.Algorithm, Process: cmp.Or(c.opts.process, thisProcess()), Room: rand.Text()}
	var board *boards
	ranks := c.sites.neighbours()
	if len(ranks) > 1 {
		board, mine.Board = newBoard()
	}
	cards, err := pgroup.AllGather(ctx, c.group.Channel("open"), mine)
	if err == nil {
		err = c.checkCards(cards)
	}
	if err != nil || !c.shares(cards) {
		board.discard()
		return err
	}
	var l *local
	if len(ranks) > 1 {
		l = &local{ranks: ranks, me: c.sites.place}
		if err = c.enter(ctx, l, board, fmt.Sprint(cards[0].Room, " ", c.sites.node), cards); err != nil {
			l.close() // and so those who try it with this rank fail too
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

func (c *core) checkCards(cards []card) error {
	if a := cards[0].Algorithm; a > Hierarchical {
		return fmt.Errorf("collective: Options.Algorithm is %d, which is none: %w", a, pgroup.ErrInvalid)
	}
	for rank, m := range cards {
		if m.Algorithm != cards[0].Algorithm {
			return fmt.Errorf("collective: rank %d has Options.Algorithm %d, and rank 0 %d: %w", rank, m.Algorithm, cards[0].Algorithm, pgroup.ErrMismatch)
		}
	}
	return nil
}

// shares reports whether all nodes that have several ranks can share memory, and there are such.
func (c *core) shares(cards []card) (some bool) {
	for _, ranks := range c.sites.hosts {
		some = some || len(ranks) > 1
		if !together(cards, ranks) && slices.ContainsFunc(ranks, func(r int) bool { return cards[r].Board == nil }) {
			return false
		}
	}
	return some
}

// together reports whether ranks are all in one process.
func together(cards []card, ranks []int) bool {
	return !slices.ContainsFunc(ranks, func(r int) bool { return cards[r].Process != cards[ranks[0]].Process })
}

// enter makes the medium: slices if all ranks of the node are in one process, boards if not.
func (c *core) enter(ctx context.Context, l *local, board *boards, room string, cards []card) error {
	if together(cards, l.ranks) {
		board.discard()
		l.medium = newInProcess(room, len(l.ranks), l.me)
		return nil
	}
	refs := make([]*shm.Ref, len(l.ranks))
	for i, r := range l.ranks {
		refs[i] = cards[r].Board
	}
	l.medium = board
	return board.connect(ctx, c, l.ranks, l.me, refs)
}
