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

// told is what ranks of Go have told: their notes by key.
type told map[string]string

// listen returns what has been told by everybody, or, if the store cannot list keys, by those who owe missing, as far as they are few.
func (c *call) listen(ctx context.Context, missing []need) told {
	t := told{}
	for e, err := range c.store.List(ctx, notes) {
		if errors.Is(err, store.ErrUnsupported) {
			return c.ask(ctx, missing)
		}
		t[e.Key] = string(e.Value)
	}
	return t
}

func (c *call) ask(ctx context.Context, missing []need) told {
	t := told{}
	keys := []string{note(sent, c.cfg.Rank)}
	for _, n := range missing[:min(len(missing), mostProbes)] {
		keys = append(keys, note(joined, n.from), note(doing, n.from), note(cast, n.from))
	}
	for _, key := range keys {
		if v, err := c.store.Get(ctx, key); err == nil {
			t[key] = string(v)
		}
	}
	return t
}

// doing is what a rank does, as far as it has told.
func (t told) doing(rank int) string {
	switch state, what := t[note(joined, rank)], t[note(doing, rank)]; {
	case what != "":
		return what
	case state == "":
		return "not there yet, or of Python, which does not tell"
	case state == hasLeft:
		return "left"
	}
	return "in no verb of this group that waits"
}

// casts is how many broadcasts src has sent.
func (t told) casts(src int) uint64 { return number(t[note(cast, src)]) }

// sends is how many messages src has sent to dst.
func (t told) sends(src, dst int) uint64 {
	who, n, _ := strings.Cut(t[note(sent, dst)], " ")
	if who != strconv.Itoa(src) {
		return 0
	}
	return number(n)
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// mostProbes is how many ranks of Python a look is for, when many are missing.
const mostProbes = 8

// lookAround returns an error if one of missing will never come, or the verb is over; otherwise what the other ranks told.
func (c *call) lookAround(ctx context.Context, missing []need) (told, error) {
	t := c.listen(ctx, missing)
	if c.over != nil {
		if err := c.over(ctx); err != nil {
			return t, err
		}
	}
	var all *wire.Failure
	for i, n := range missing {
		v := c.hopeless(ctx, t, n, i < mostProbes)
		if v == nil || all != nil && all.Code != v.Code {
			continue
		}
		// It may have come after the wait, and before what speaks against it.
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

// hopeless says why what is missing will never come, if that is so. Ranks of Go tell it themselves; for the others it takes probe to
// look what is in the store instead.
func (c *call) hopeless(ctx context.Context, t told, n need, probe bool) *wire.Failure {
	probe = probe && n.cast && t[note(joined, n.from)] == ""
	counted := n.cast && t.casts(n.from) > n.n || n.sent && t.sends(n.from, c.cfg.Rank) > n.n
	switch {
	case (counted || probe) && c.has(ctx, n.other(c.cfg.Rank)):
		return &wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: fmt.Sprintf(
			"rank %d sent %v, this rank waits for %v: its key is %q, not %q", n.from, n.m.other(), n.m, n.other(c.cfg.Rank), n.key)}
	case counted || probe && c.hasLater(ctx, n):
		return &wire.Failure{Code: wire.CodeExpired, By: -1, Reason: fmt.Sprintf(
			"rank %d is past the key %q, whose time was over before this rank read it", n.from, n.key)}
	}
	switch t[note(joined, n.from)] {
	case hasLeft:
		return &wire.Failure{Code: wire.CodeLeft, By: -1, Left: []int{n.from}, Reason: "without the key " + strconv.Quote(n.key)}
	case isLeased:
		if _, ok := t[note(alive, n.from)]; !ok {
			return &wire.Failure{Code: wire.CodeLost, By: -1, Lost: []int{n.from}, Reason: "without the key " + strconv.Quote(n.key)}
		}
	}
	return nil
}

func (c *call) has(ctx context.Context, key string) bool {
	_, err := c.store.Get(ctx, key)
	return err == nil
}

// hasLater reports whether there is a broadcast after n, which ranks of Python leave when n has expired: they delete when they send.
func (c *call) hasLater(ctx context.Context, n need) bool {
	return c.has(ctx, n.m.cast(n.from, n.n+1)) || c.has(ctx, n.m.other().cast(n.from, n.n+1))
}

// ranks names those who owe needs.
func ranks(needs []need) string {
	const most = 8
	var b strings.Builder
	for i, n := range needs[:min(len(needs), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, n.from)
	}
	if n := len(needs) - most; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}
	if len(needs) == 1 {
		return "rank " + b.String()
	}
	return "ranks " + b.String()
}

// quoted is the keys of needs, a few of them.
func quoted(needs []need) string {
	const most = 3
	var b strings.Builder
	for i, n := range needs[:min(len(needs), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Quote(n.key))
	}
	if n := len(needs) - most; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}
	return b.String()
}
