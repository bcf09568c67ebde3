package vllm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// peerNotes has what Go ranks have published about themselves, by key.
type peerNotes map[string]string

// readNotes returns the notes of all ranks, or, if the store cannot list keys, those of the ranks
// that this one waits for, as far as they are few.
func (c *call) readNotes(ctx context.Context, missing []need) peerNotes {
	t := peerNotes{}
	for e, err := range c.store.List(ctx, notePrefix) {
		if errors.Is(err, store.ErrUnsupported) {
			return c.readNotesOf(ctx, missing)
		}
		t[e.Key] = string(e.Value)
	}
	return t
}

func (c *call) readNotesOf(ctx context.Context, missing []need) peerNotes {
	t := peerNotes{}
	keys := []string{note(sent, c.cfg.Rank)}
	for _, n := range missing[:min(len(missing), maxProbes)] {
		keys = append(keys, note(joined, n.from), note(alive, n.from), note(doing, n.from), note(cast, n.from))
	}
	for _, key := range keys {
		if v, err := c.store.Get(ctx, key); err == nil {
			t[key] = string(v)
		}
	}
	return t
}

// doing returns what a rank does, as far as it has published it.
func (t peerNotes) doing(rank int) string {
	switch state, what := t[note(joined, rank)], t[note(doing, rank)]; {
	case what != "":
		return what
	case state == "":
		return "not joined yet, or a Python rank, which publishes nothing"
	case state == stateLeft:
		return "left"
	}
	return "in no operation of this group that waits"
}

// broadcasts returns how many broadcasts src has sent.
func (t peerNotes) broadcasts(src int) uint64 { return number(t[note(cast, src)]) }

// sends returns how many messages src has sent to dst.
func (t peerNotes) sends(src, dst int) uint64 {
	who, n, _ := strings.Cut(t[note(sent, dst)], " ")
	if who != strconv.Itoa(src) {
		return 0
	}
	return number(n)
}

// number reads a count, which a Go rank has written.
func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

// maxProbes is how many Python ranks are probed when many are missing.
const maxProbes = 8

// checkMissing returns an error if a rank that this one waits for will never send, or the operation
// has failed; otherwise the notes of the other ranks.
func (c *call) checkMissing(ctx context.Context, missing []need) (peerNotes, error) {
	t := c.readNotes(ctx, missing)
	if c.groupFailed != nil {
		if err := c.groupFailed(ctx); err != nil {
			return t, err
		}
	}
	var all *wire.Failure
	for i, n := range missing {
		v := c.unreachable(ctx, t, n, i < maxProbes)
		if v == nil || all != nil && all.Code != v.Code {
			continue
		}
		// It may have come after the wait, and before the notes were read.
		if _, err := c.store.Get(ctx, n.key); !errors.Is(err, store.ErrNotFound) {
			continue
		}
		if all == nil {
			all = v
		} else {
			all.Lost, all.Left = append(all.Lost, v.Lost...), append(all.Left, v.Left...)
		}
	}
	if all != nil {
		return t, c.rankError(all, nil)
	}
	return t, nil
}

// unreachable returns the failure if what n waits for will never come, and nil otherwise. Go ranks
// publish what they have sent; for Python ranks, if probe is set, it looks for what they sent
// instead.
func (c *call) unreachable(ctx context.Context, t peerNotes, n need, probe bool) *wire.Failure {
	probe = probe && n.broadcast && t[note(joined, n.from)] == ""
	counted := n.broadcast && t.broadcasts(n.from) > n.n || n.message && t.sends(n.from, c.cfg.Rank) > n.n
	switch {
	case (counted || probe) && c.has(ctx, n.other(c.cfg.Rank)):
		return &wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: fmt.Sprintf(
			"rank %d sent %v, this rank waits for %v: its key is %q, not %q", n.from, n.m.other(), n.m, n.other(c.cfg.Rank), n.key)}
	case counted || probe && c.hasLater(ctx, n):
		return &wire.Failure{Code: wire.CodeExpired, By: -1, Reason: fmt.Sprintf(
			"rank %d is past the key %q, whose time was over before this rank read it", n.from, n.key)}
	}
	if t[note(joined, n.from)] == stateLeft {
		return &wire.Failure{Code: wire.CodeLeft, By: -1, Left: []int{n.from}, Reason: "without the key " + strconv.Quote(n.key)}
	}
	if _, lives := t[note(alive, n.from)]; !lives && t[note(joined, n.from)] == stateLeased {
		return &wire.Failure{Code: wire.CodeLost, By: -1, Lost: []int{n.from}, Reason: "without the key " + strconv.Quote(n.key)}
	}
	return nil
}

func (c *call) has(ctx context.Context, key string) bool {
	_, err := c.store.Get(ctx, key)
	return err == nil
}

// hasLater reports whether the store has a broadcast after n. A Python rank that is past n may have
// deleted n: it deletes expired data when it sends.
func (c *call) hasLater(ctx context.Context, n need) bool {
	return c.has(ctx, n.m.broadcastKey(n.from, n.n+1)) || c.has(ctx, n.m.other().broadcastKey(n.from, n.n+1))
}

// ranks formats the ranks that needs wait for.
func ranks(needs []need) string {
	text := some(needs, 8, func(n need) string { return strconv.Itoa(n.from) })
	if len(needs) == 1 {
		return "rank " + text
	}
	return "ranks " + text
}

// quoted formats the keys of needs.
func quoted(needs []need) string {
	return some(needs, 3, func(n need) string { return strconv.Quote(n.key) })
}

// some formats at most so many of needs, and the number of the others.
func some(needs []need, most int, format func(need) string) string {
	var parts []string
	for _, n := range needs[:min(len(needs), most)] {
		parts = append(parts, format(n))
	}
	text := strings.Join(parts, ", ")
	if n := len(needs) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}
