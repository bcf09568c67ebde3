package torchstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// rankMark is where a pattern has the rank.
const rankMark = "{rank}"

// checkPatterns refuses what matches nothing.
func checkPatterns(patterns []string) error {
	for _, p := range patterns {
		if strings.Count(p, rankMark) != 1 || strings.Contains(strings.TrimSuffix(p, "*"), "*") {
			return fmt.Errorf("torchstore: the pattern %q is to have %s once, and a * at its end at most", p, rankMark)
		}
	}
	return nil
}

// rankOf is the rank that a name is of, by the first pattern that it matches.
func rankOf(patterns []string, name string) (rank int, ok bool) {
	for _, p := range patterns {
		before, after, _ := strings.Cut(p, rankMark)
		rest, ok := strings.CutPrefix(name, before)
		if !ok {
			continue
		}
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		rank, err := strconv.Atoi(rest[:digits])
		after, open := strings.CutSuffix(after, "*")
		if rest = rest[digits:]; err == nil && (rest == after || open && strings.HasPrefix(rest, after)) {
			return rank, true
		}
	}
	return 0, false
}

// ranks are those that clients have shown to be, and whether they are still there.
type ranks struct {
	mu    sync.Mutex   // protects the fields below
	conns map[int]int  // connections of each
	lost  map[int]bool // that had some, and have none
	event chan struct{}
}

// mostRanks bounds those that are there, those that are lost, and those of one connection: more are not noted.
const mostRanks = 1 << 16

// joined notes that a connection is of a rank. The first that comes when there was nobody begins another run.
func (r *ranks) joined(rank int) (noted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.conns) == 0 {
		r.conns, r.lost = map[int]int{}, map[int]bool{}
	}
	if len(r.conns) >= mostRanks && r.conns[rank] == 0 {
		return false
	}
	r.conns[rank]++
	delete(r.lost, rank)
	return true
}

// left notes that it has ended.
func (r *ranks) left(rank int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns[rank]--; r.conns[rank] > 0 {
		return
	}
	delete(r.conns, rank)
	if len(r.lost) < mostRanks {
		r.lost[rank] = true
	}
	if r.event != nil {
		close(r.event)
		r.event = nil
	}
}

// next is closed at the next loss.
func (r *ranks) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.event == nil {
		r.event = make(chan struct{})
	}
	return r.event
}

func (r *ranks) isLost(rank int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost[rank]
}

// own notes which rank the client is, by a key that it changes.
func (p *peer) own(key string) {
	if len(p.protocol.Ranks) == 0 {
		return
	}
	rank, ok := rankOf(p.protocol.Ranks, key)
	if !ok || p.ranks[rank] {
		return
	}
	if p.protocol.ranks.joined(rank) {
		if p.ranks == nil {
			p.ranks = map[int]bool{}
		}
		p.ranks[rank] = true
	}
}

// disown notes that the client is gone.
func (p *peer) disown() {
	for rank := range p.ranks {
		p.protocol.ranks.left(rank)
	}
}

// lostError says that nobody will set a key.
type lostError struct {
	rank int
	key  string
}

func (e *lostError) Error() string {
	return fmt.Sprintf("rank %d is lost, of which %q is", e.rank, e.key)
}

// mourn returns when one of keys is missing whose rank is lost, or with ctx.
func (p *peer) mourn(ctx context.Context, keys []string) error {
	var q question
	for {
		event := p.protocol.ranks.next()
		for _, k := range keys {
			rank, ok := rankOf(p.protocol.Ranks, k)
			if !ok || !p.protocol.ranks.isLost(rank) {
				continue
			}
			if is, err := p.exists(ctx, &q, k); err != nil {
				return err
			} else if !is {
				return &lostError{rank, k}
			}
		}
		select {
		case <-event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
