package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// sound checks the order of the heap, and that slots know their places in it.
func (x *expiry) sound(tb testing.TB) {
	tb.Helper()
	for i := uint32(heapTop); i < x.end; i++ {
		d := x.place(i)
		if x.slots.at(d.ref).pos != i {
			tb.Fatalf("place %d has slot %d, which is at %d", i, d.ref, x.slots.at(d.ref).pos)
		}
		if i > heapTop && x.place(above(i)).at > d.at {
			tb.Fatalf("place %d has %v, %v is above it", i, d.at, x.place(above(i)).at)
		}
	}
	if need := int(x.end)/pieceDeadlines + 2; len(x.pieces) > need {
		tb.Fatalf("%d pieces for %d", len(x.pieces), x.len())
	}
}

// TestExpiryModel applies the same operations to an expiry and to a map.
func TestExpiryModel(t *testing.T) {
	for _, most := range []int{3, 40, 6000} {
		for _, times := range []int{2, 1_000_000} {
			t.Run(fmt.Sprint(most, "/", times), func(t *testing.T) { testExpiryModel(t, most, times) })
		}
	}
}

func testExpiryModel(t *testing.T, most, times int) {
	r := rand.New(rand.NewPCG(uint64(most), uint64(times)))
	b := newTable()
	x := newExpiry(&b.slab)
	slots := make([]*entry, most)
	for i := range slots {
		slots[i] = b.insert(fmt.Sprint(i))
	}
	model := map[*entry]Time{}
	for i := range 8 * most {
		s := slots[r.IntN(most)]
		if r.IntN(3) > 0 == (i/(3*most)%2 == 0) {
			model[s] = 1 + Time(r.IntN(times))
			x.arm(s, model[s])
		} else {
			x.disarm(s)
			delete(model, s)
		}
		if x.at(s) != model[s] || x.len() != len(model) {
			t.Fatalf("step %d: at %v, want %v; %d of %d", i, x.at(s), model[s], x.len(), len(model))
		}
		if i%max(most/10, 1) == 0 {
			x.sound(t)
		}
	}
	popsInOrder(t, x, model)
}

func popsInOrder(t *testing.T, x *expiry, model map[*entry]Time) {
	t.Helper()
	var want []Time
	for _, at := range model {
		want = append(want, at)
	}
	slices.Sort(want)
	for i, at := range want {
		if got, armed := x.next(); got != at || !armed {
			t.Fatalf("the next is at %v, want %v", got, at)
		}
		if s := x.pop(at - 1); s != nil {
			t.Fatalf("a slot of %v is due at %v", model[s], at-1)
		}
		s := x.pop(at)
		if s == nil || model[s] != at || s.pos != 0 || x.at(s) != 0 {
			t.Fatalf("%+v of %v, want one of %v", s, model[s], at)
		}
		delete(model, s)
		if i%100 == 0 {
			x.sound(t)
		}
	}
	if _, armed := x.next(); armed || x.pop(1<<62) != nil || len(model) != 0 {
		t.Fatalf("%d are left, %d in the model", x.len(), len(model))
	}
	x.sound(t)
}

// TestExpirySameOrder checks that the order of entries with the same deadline depends only on the
// operations: a replay needs that, though hashes differ.
func TestExpirySameOrder(t *testing.T) {
	run := func() (keys []string) {
		r := rand.New(rand.NewPCG(7, 8))
		b := newTable()
		x := newExpiry(&b.slab)
		for i := range 5000 {
			key := fmt.Sprint(r.IntN(1000))
			if s := b.get(key); s != nil {
				x.disarm(s)
				b.remove(s)
			}
			x.arm(b.insert(key), Time(i/2000))
		}
		for s := x.pop(1 << 62); s != nil; s = x.pop(1 << 62) {
			keys = append(keys, s.key())
			b.remove(s)
		}
		return keys
	}
	if a, b := run(), run(); !slices.Equal(a, b) {
		t.Error("the same steps have another order")
	}
}
