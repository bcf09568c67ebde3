package core

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// sound checks the invariants between the parts of a table.
func (t *table) sound(tb testing.TB) {
	tb.Helper()
	chained, live := 0, 0
	for h, ref := range t.index {
		for ; ref != 0; ref = t.at(ref).chain {
			s := t.at(ref)
			if s.ref != ref || t.hash(s.key()) != h {
				tb.Fatalf("slot %d has ref %d, and hash %x below %x", ref, s.ref, t.hash(s.key()), h)
			}
			chained++
		}
	}
	empty := 0
	for n, c := range t.chunks {
		live += int(c.live)
		if c.live == 0 && c.slots != nil {
			empty++
			if t.spare != n+1 {
				tb.Fatalf("chunk %d is empty, and the spare is %d", n, t.spare-1)
			}
		}
		if room := t.notFull[n/64]&(1<<(n%64)) != 0; room != (c.live < chunkSlots) {
			tb.Fatalf("chunk %d has %d live slots, room is %v", n, c.live, room)
		}
	}
	if chained != t.len() || live != t.len() || empty > 1 {
		tb.Fatalf("%d entries, %d in chains, %d slots live, %d chunks empty", t.len(), chained, live, empty)
	}
}

func (t *table) keysFrom(from string, most int) (keys []string) {
	t.ascend(from, func(s *entry) bool {
		keys = append(keys, s.key())
		return len(keys) < most
	})
	return keys
}

func TestSlot(t *testing.T) {
	if n := unsafe.Sizeof(entry{}); n != 64 {
		t.Errorf("a slot has %d bytes", n)
	}
	var s entry
	for _, v := range [][]byte{nil, {}, []byte("v"), make([]byte, 3, 10), make([]byte, 0, 5)} {
		s.setVal(v)
		got := s.val()
		if got == nil || len(got) != len(v) || cap(got) != cap(v) {
			t.Errorf("%#v of %d comes back as %#v of %d", v, cap(v), got, cap(got))
		}
	}
	room := append(make([]byte, 0, 10), "abc"...)
	s.setVal(room)
	s.setVal(append(s.val(), "def"...))
	if got := string(room[:6]); got != "abcdef" || string(s.val()) != got {
		t.Errorf("append wrote %q, the value is %q", got, s.val())
	}
}

// TestTableModel applies the same operations to a table and to a map.
func TestTableModel(t *testing.T) {
	for name, mask := range map[string]uint32{"hashes": 1<<32 - 1, "collisions": 15, "one hash": 0} {
		for _, keys := range []int{30, 3000} {
			if mask == 0 && keys > 30 {
				continue // a chain of thousands takes too long
			}
			t.Run(fmt.Sprint(name, "/", keys), func(t *testing.T) { testTableModel(t, mask, keys) })
		}
	}
}

func testTableModel(t *testing.T, mask uint32, keys int) {
	r := rand.New(rand.NewPCG(uint64(mask), uint64(keys)))
	b := newTable()
	b.mask = mask
	model := map[string]*entry{}
	for i := range 10 * keys {
		grows := i/(3*keys)%2 == 0 // then it shrinks, and so on
		key := fmt.Sprintf("%d/%d", r.IntN(3), r.IntN(keys))
		if r.IntN(20) == 0 {
			key = ""
		}
		want, s := model[key], b.get(key)
		switch {
		case s != want:
			t.Fatalf("step %d: get %q: %v, want %v", i, key, s, want)
		case s == nil && (grows || r.IntN(8) == 0):
			s = b.insert(key)
			s.setVal([]byte(key))
			s.rev = uint64(i)
			model[key] = s
		case s != nil && (!grows || r.IntN(8) == 0):
			b.remove(s)
			delete(model, key)
			if *s != (entry{chain: s.chain}) { // free slots keep neither keys nor values
				t.Fatalf("step %d: the free slot has %+v", i, s)
			}
		}
		if i%keys == 0 {
			sameAsModel(t, b, model, r)
		}
	}
	for _, s := range model {
		b.remove(s)
	}
	b.sound(t)
	if got := b.keysFrom("", 1); got != nil {
		t.Fatalf("%q are left", got)
	}
}

func sameAsModel(t *testing.T, b *table, model map[string]*entry, r *rand.Rand) {
	t.Helper()
	b.sound(t)
	keys := slices.Sorted(maps.Keys(model))
	for _, key := range keys {
		if s := b.get(key); s != model[key] || s.key() != key || string(s.val()) != key || b.at(s.ref) != s {
			t.Fatalf("%q has %+v", key, s)
		}
	}
	from, most := fmt.Sprintf("%d/%d", r.IntN(4), r.IntN(1000)), 1+r.IntN(50)
	first, _ := slices.BinarySearch(keys, from)
	want := keys[first:min(first+most, len(keys))]
	if got := b.keysFrom(from, most); !slices.Equal(got, want) {
		t.Fatalf("from %q: %q, want %q", from, got, want)
	}
}

func TestTableGetDoesNotAllocate(t *testing.T) {
	b := newTable()
	b.insert("there")
	if n := testing.AllocsPerRun(100, func() { b.get("there"); b.get("not there") }); n != 0 {
		t.Errorf("get allocates %v times", n)
	}
}

// TestSlabMemory checks that slots are reused, the lowest ones first, and that empty chunks are
// freed.
func TestSlabMemory(t *testing.T) {
	b := newTable()
	fill := func(n int) (slots []*entry) {
		for i := range n {
			slots = append(slots, b.insert(fmt.Sprint(i)))
		}
		return slots
	}
	memory := func() (n int) {
		for _, c := range b.chunks {
			if c.slots != nil {
				n++
			}
		}
		return n
	}
	const chunks = 200
	slots := fill(chunks * chunkSlots)
	if got := memory(); got != chunks {
		t.Fatalf("%d chunks for %d", got, chunks)
	}
	b.remove(slots[700])
	b.remove(slots[100])
	for _, i := range []int{100, 700} {
		s := b.insert(fmt.Sprint(i))
		if s != slots[i] || *s != (entry{keyData: s.keyData, keyLen: s.keyLen, chain: s.chain, ref: uint32(i) + 1}) {
			t.Fatalf("%+v, want slot %d", s, i+1)
		}
	}
	for _, s := range slots {
		b.remove(s)
	}
	b.sound(t)
	if got := memory(); got != 1 || b.chunks[0].slots == nil || b.peak != 0 {
		t.Fatalf("%d chunks are left, the first is %p", got, b.chunks[0].slots)
	}
	fill(chunks * chunkSlots)
	b.sound(t)
	if got := memory(); got != chunks || len(b.chunks) != chunks {
		t.Fatalf("%d of %d chunks for %d", got, len(b.chunks), chunks)
	}
}

// TestSlabSpare checks that an entry that is added and removed repeatedly does not allocate and
// free a chunk each time.
func TestSlabSpare(t *testing.T) {
	b := newTable()
	for i := range chunkSlots {
		b.insert(fmt.Sprint(i))
	}
	b.remove(b.insert("one more"))
	want := b.chunks[1].slots
	for range 5 {
		b.remove(b.insert("one more"))
	}
	if b.chunks[1].slots != want || want == nil {
		t.Error("it is new memory")
	}
}
