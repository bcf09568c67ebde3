package core_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

func watch(prefix string, after uint64) wire.Request {
	return wire.Request{Op: wire.OpWatch, Key: prefix, After: after}
}

// TestWatchersAreFound compares the calls that a change ends, and those that remain, with a search
// through all of them: prefixes of prefixes, the empty one, the key itself and longer ones, in
// sessions that end.
func TestWatchersAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	text := func() string {
		b := make([]byte, random.IntN(6))
		for i := range b {
			b[i] = "ab\x00\xff"[random.IntN(4)]
		}
		return string(b)
	}
	r := newRig(t)
	sessions := []uint64{core.Local, r.session(), r.session()}
	waiting := map[core.Ticket]string{}
	rev := uint64(1)
	for step := range 20_000 {
		switch random.IntN(8) {
		case 0:
			i := 1 + random.IntN(2)
			r.does(sessions[i], wire.Request{Op: wire.OpGoodbye})
			for ticket := range waiting {
				if ticket.Session == sessions[i] {
					delete(waiting, ticket)
				}
			}
			sessions[i] = r.session()
		case 1:
			for ticket := range waiting {
				r.does(ticket.Session, wire.Request{Op: wire.OpCancel, ID: ticket.ID})
				isCode(t, r.answer(ticket), wire.CodeCancelled)
				delete(waiting, ticket)
				break
			}
		case 2:
			key := text()
			r.order = nil
			rev = r.does(core.Local, set(key, "value")).Rev
			var prefixes []string
			for _, ticket := range r.order {
				prefixes = append(prefixes, waiting[ticket])
				same(t, "keys", r.answer(ticket).Keys[0], key)
				delete(waiting, ticket)
			}
			if !slices.IsSortedFunc(prefixes, func(a, b string) int { return len(a) - len(b) }) {
				t.Fatalf("step %d: %q in this order", step, prefixes)
			}
			for _, prefix := range prefixes {
				same(t, "has the prefix", strings.HasPrefix(key, prefix), true)
			}
			for _, prefix := range waiting {
				if strings.HasPrefix(key, prefix) {
					t.Fatalf("step %d: %q was set, and a watch of %q waits", step, key, prefix)
				}
			}
		default:
			prefix := text()
			waiting[r.waits(sessions[random.IntN(3)], watch(prefix, rev))] = prefix
		}
		n, sound := r.m.WatchNodes()
		if !sound || n > 2*len(waiting) {
			t.Fatalf("step %d: %d nodes for %d calls", step, n, len(waiting))
		}
		same(t, "watchers", r.m.Holdings().Watchers, len(waiting))
	}
}

// besideWatchers returns a function that sets a key in a machine with n calls that each watch a
// prefix, none of which is a prefix of the key.
func besideWatchers(tb testing.TB, n int) func() {
	r := newRig(tb)
	for i := range n {
		r.waits(core.Local, watch(fmt.Sprintf("watched/%d/", i), 1))
	}
	req, rep := set("watched/none", "value"), wire.Reply{}
	return func() { r.m.Apply(0, core.Local, &req, &rep) }
}

// TestSetBesideWatchers checks that a Set looks only at the watchers of its key. It took a hundred
// times as long when it looked at all.
func TestSetBesideWatchers(t *testing.T) {
	const n, sets = 60_000, 2_000
	times := map[int]time.Duration{}
	for _, n := range []int{0, n} {
		set := besideWatchers(t, n)
		times[n] = time.Hour
		for range 20 { // the shortest of several: others use the cores too
			start := time.Now()
			for range sets / 20 {
				set()
			}
			times[n] = min(times[n], time.Since(start))
		}
	}
	if times[n] > 20*times[0] {
		t.Fatalf("%d Sets beside %d watchers took %v, beside none %v", sets/20, n, times[n], times[0])
	}
}

func BenchmarkSetBesideWatchers(b *testing.B) {
	for _, n := range []int{0, 1, 60_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			set := besideWatchers(b, n)
			b.ReportAllocs()
			for b.Loop() {
				set()
			}
		})
	}
}
