package tcpstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// rankMark is the place of the rank in a pattern.
const rankMark = "{rank}"

// checkPatterns rejects patterns that match nothing.
func checkPatterns(patterns []string) error {
	for _, p := range patterns {
		if strings.Count(p, rankMark) != 1 || strings.Contains(strings.TrimSuffix(p, "*"), "*") {
			return fmt.Errorf("tcpstore: the pattern %q is to have %s once, and a * at its end at most", p, rankMark)
		}
	}
	return nil
}

// rankOf returns the rank of a name, by the first pattern that matches it.
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

// ranks are the ranks that clients have shown by the keys that they change, and whether they are
// connected.
type ranks struct {
	mu    sync.Mutex   // protects the fields below
	conns map[int]int  // number of connections of each rank
	lost  map[int]bool // ranks that had connections, and have none now
	event chan struct{}
}

// mostRanks bounds the connected ranks, the failed ranks, and the ranks of one connection. Ranks
// beyond it are not noted.
const mostRanks = 1 << 16

// joined notes that a connection belongs to rank. The first one after all ranks have disconnected
// begins another run.
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

// left notes that a connection of rank has ended.
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

// next returns a channel that is closed at the next failure of a rank.
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

// own notes the client's rank, by a key that it changes.
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

// disown notes that the client has disconnected.
func (p *peer) disown() {
	for rank := range p.ranks {
		p.protocol.ranks.left(rank)
	}
}

// lostError is the error of a wait for a key whose rank has failed.
type lostError struct {
	rank int
	key  string
}

func (e *lostError) Error() string {
	return fmt.Sprintf("rank %d has disconnected, and the key %q is its own: its process has probably failed", e.rank, e.key)
}

// waitForFailure returns when the rank of a missing key has failed, or when ctx ends.
func (p *peer) waitForFailure(ctx context.Context, keys []string) error {
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
