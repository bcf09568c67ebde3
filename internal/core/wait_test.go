package core_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
)

func numberedKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key/%06d", i)
	}
	return keys
}

// setAll sets keys in an order, and returns how long that took.
func setAll(r *rig, keys []string, order []int) time.Duration {
	start := time.Now()
	for _, i := range order {
		r.does(core.Local, set(keys[i], "value"))
	}
	return time.Since(start)
}

func upwards(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// orders are those in which a Wait may find its keys.
func orders(n int) map[string][]int {
	down := upwards(n)
	slices.Reverse(down)
	return map[string][]int{"up": upwards(n), "down": down, "shuffled": rand.New(rand.NewPCG(1, 2)).Perm(n)}
}

// TestWaitIsLinear sets the keys of a Wait one by one, in several orders. That takes a few times as
// long as without a Wait. It took hundreds of times as long when each new key made the Wait check
// all of its keys from the first.
func TestWaitIsLinear(t *testing.T) {
	const n = 20_000
	keys := numberedKeys(n)
	for name, order := range orders(n) {
		t.Run(name, func(t *testing.T) {
			alone := setAll(newRig(t), keys, order)
			r := newRig(t)
			ticket := r.waits(core.Local, waitFor(keys...))
			waited := setAll(r, keys, order)
			same(t, "values", len(r.answer(ticket).Values), n)
			if waited > 50*alone {
				t.Fatalf("%v with a Wait for all of %d keys, %v without", waited, n, alone)
			}
		})
	}
}

// BenchmarkWait lets one call wait for many keys, which are set one by one: one operation is all of
// that.
func BenchmarkWait(b *testing.B) {
	const n = 40_000
	keys := numberedKeys(n)
	for name, order := range orders(n) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				r := newRig(b)
				ticket := r.waits(core.Local, waitFor(keys...))
				setAll(r, keys, order)
				same(b, "values", len(r.answer(ticket).Values), n)
			}
		})
	}
}

// BenchmarkWaitForAll lets each of 1,000 ranks set a key and wait for those of all: one operation
// is all of that.
func BenchmarkWaitForAll(b *testing.B) {
	const n = 1000
	keys := numberedKeys(n)
	for b.Loop() {
		r := newRig(b)
		sessions := make([]uint64, n)
		for i := range sessions {
			sessions[i] = r.session()
		}
		for i, s := range sessions {
			r.does(s, set(keys[i], "value"))
			if _, rep := r.call(s, waitFor(keys...)); (rep != nil) != (i == n-1) {
				b.Fatalf("rank %d of %d", i, n)
			}
		}
		same(b, "answers", len(r.answers), n-1)
	}
}
