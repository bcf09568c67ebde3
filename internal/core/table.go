package core

import (
	"hash/maphash"
	"math"
	"math/bits"
	"strings"
	"unsafe"

	"github.com/tidwall/btree"
)

// entry is one entry: its key, its value, and its places in what is ordered. There are millions of them, so that
// it is made to fill one cache line: it has no 64-bit references, and slices without what is never used of them.
type entry struct {
	keyData *byte
	valData *byte // not nil, in an entry that is there
	rev     uint64
	keyLen  uint32
	valLen  uint32
	valCap  uint32
	reads   uint32 // left; 0 is no limit
	ref     uint32 // of this slot; 0 if it is free
	chain   uint32 // next slot whose key has the same hash, or next free one
	pos     uint32 // place in the expiry heap; 0 if the entry does not expire
	lease   uint32 // the lease of the entry; 0 if it has none

	// neighbours in the list of that lease
	leasePrev, leaseNext uint32
}

func (s *entry) key() string { return unsafe.String(s.keyData, s.keyLen) }

func (s *entry) setKey(key string) {
	s.keyData, s.keyLen = unsafe.StringData(key), uint32(len(key))
}

// val is the value with the room behind it, as it was set.
func (s *entry) val() []byte { return unsafe.Slice(s.valData, s.valCap)[:s.valLen] }

// setVal keeps v, which has at most wire.MaxValue bytes; there may be more room behind it than can be counted. A value of no bytes is
// never nil: that means "absent" in answers, and in the old value of a swap.
func (s *entry) setVal(v []byte) {
	if v == nil {
		v = []byte{}
	}
	s.valData, s.valLen = unsafe.SliceData(v), uint32(len(v))
	s.valCap = uint32(min(cap(v), math.MaxUint32))
}

// chunkSlots makes a chunk 32 KiB: the runtime gives those out as whole pages, without a header and rounding up.
const chunkSlots = 512

// chunk is a piece of a slab.
type chunk struct {
	slots *[chunkSlots]entry // nil while there is none to be held
	free  uint32             // first slot that was used and is free; the others follow by chain
	used  uint16             // slots from here on were never used
	live  uint16
}

// slab is where slots are. A slot stays where it is until it is given back. A reference is its number plus 1, so
// that 0 is none. Which number is given out depends on nothing but what was taken and given back before.
type slab struct {
	chunks  []chunk
	notFull []uint64 // a bit for each chunk: one that is not full
	lowest  int      // words of room before it are 0
	spare   int      // the chunk, plus 1, that has memory and no live slot; 0 is none
}

func (b *slab) at(ref uint32) *entry {
	i := ref - 1
	return &b.chunks[i/chunkSlots].slots[i%chunkSlots]
}

// take gives out a slot that is zero but for its ref. It comes from the first chunk that has one: then the last
// ones get empty.
func (b *slab) take() *entry {
	n := b.firstNotFull()
	c := &b.chunks[n]
	if c.slots == nil {
		c.slots = new([chunkSlots]entry)
	}
	ref := c.free
	if ref == 0 {
		ref = uint32(n)*chunkSlots + uint32(c.used) + 1
		c.used++
	}
	s := b.at(ref)
	c.free, s.chain, s.ref = s.chain, 0, ref
	c.live++
	if c.live == chunkSlots {
		b.notFull[n/64] &^= 1 << (n % 64)
	}
	if b.spare == n+1 {
		b.spare = 0
	}
	return s
}

// roomy is the number of the first chunk that is not full.
func (b *slab) firstNotFull() int {
	for ; b.lowest < len(b.notFull); b.lowest++ {
		if w := b.notFull[b.lowest]; w != 0 {
			return b.lowest*64 + bits.TrailingZeros64(w)
		}
	}
	n := len(b.chunks)
	b.chunks = append(b.chunks, chunk{})
	b.markNotFull(n)
	return n
}

func (b *slab) markNotFull(n int) {
	if n/64 == len(b.notFull) {
		b.notFull = append(b.notFull, 0)
	}
	b.notFull[n/64] |= 1 << (n % 64)
	b.lowest = min(b.lowest, n/64)
}

// give takes a slot back.
func (b *slab) giveBack(s *entry) {
	ref := s.ref
	n := int(ref-1) / chunkSlots
	c := &b.chunks[n]
	*s = entry{chain: c.free}
	c.free = ref
	c.live--
	b.markNotFull(n)
	if c.live == 0 {
		b.dropEmpty(n)
	}
}

// empty lets go of the memory of chunk n, or of that of an empty one behind it. One of them, the first, is
// kept: it is where the next slot comes from, or else it would come and go with a single entry.
func (b *slab) dropEmpty(n int) {
	if b.spare != 0 {
		last := max(n, b.spare-1)
		n = min(n, b.spare-1)
		b.chunks[last] = chunk{}
	}
	b.spare = n + 1
}

// table is the entries by key, and in the order of keys.
type table struct {
	slab
	seed  maphash.Seed // differs from run to run: it must decide nothing that can be seen
	mask  uint32       // of hashes; tests make it small, so that they collide
	index map[uint32]uint32
	peak  int // the most entries that index held
	order *btree.BTreeG[uint32]
	probe string // the key of reference 0, while one is looked for in order
}

func newTable() *table {
	t := &table{seed: maphash.MakeSeed(), mask: math.MaxUint32, index: map[uint32]uint32{}}
	less := func(a, b uint32) bool { return t.keyOf(a) < t.keyOf(b) }
	t.order = btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
	return t
}

func (t *table) len() int { return t.order.Len() }

func (t *table) keyOf(ref uint32) string {
	if ref == 0 {
		return t.probe
	}
	return t.at(ref).key()
}

func (t *table) hash(key string) uint32 { return uint32(maphash.String(t.seed, key)) & t.mask }

// get is the entry of key, or nil.
func (t *table) get(key string) *entry {
	for ref := t.index[t.hash(key)]; ref != 0; {
		s := t.at(ref)
		if s.key() == key {
			return s
		}
		ref = s.chain
	}
	return nil
}

// insert adds an entry for key, which has none.
func (t *table) insert(key string) *entry {
	s := t.take()
	s.setKey(strings.Clone(key))
	h := t.hash(key)
	s.chain = t.index[h]
	t.index[h] = s.ref
	t.order.Set(s.ref)
	t.peak = max(t.peak, t.len())
	return s
}

// remove takes out an entry that is in no expiry and no leaseList any more. The slot is somebody else's then.
func (t *table) remove(s *entry) {
	t.order.Delete(s.ref)
	t.unchain(s)
	t.giveBack(s)
	// A map keeps what it once needed. To copy a smaller one takes too long; to have a new one when it is empty does not.
	if t.len() == 0 && t.peak > chunkSlots {
		t.index, t.peak = map[uint32]uint32{}, 0
	}
}

func (t *table) unchain(s *entry) {
	h := t.hash(s.key())
	first := t.index[h]
	switch {
	case first != s.ref:
		prev := t.at(first)
		for prev.chain != s.ref {
			prev = t.at(prev.chain)
		}
		prev.chain = s.chain
	case s.chain != 0:
		t.index[h] = s.chain
	default:
		delete(t.index, h)
	}
}

// ascend calls f for the entries from a key on, in the order of keys, until it returns false. It must only read.
func (t *table) ascend(from string, f func(*entry) bool) {
	t.probe = from
	t.order.Ascend(0, func(ref uint32) bool { return f(t.at(ref)) })
	t.probe = ""
}

// leaseList is the entries of one lease, in the order in which they came to it.
type leaseList struct {
	first, last uint32
	n           int
}

// push adds s, which is in no list, to the list of a lease.
func (l *leaseList) push(b *slab, s *entry, lease uint32) {
	s.lease, s.leasePrev, s.leaseNext = lease, l.last, 0
	if l.last == 0 {
		l.first = s.ref
	} else {
		b.at(l.last).leaseNext = s.ref
	}
	l.last = s.ref
	l.n++
}

// remove takes out s, which is in l.
func (l *leaseList) remove(b *slab, s *entry) {
	if s.leasePrev == 0 {
		l.first = s.leaseNext
	} else {
		b.at(s.leasePrev).leaseNext = s.leaseNext
	}
	if s.leaseNext == 0 {
		l.last = s.leasePrev
	} else {
		b.at(s.leaseNext).leasePrev = s.leasePrev
	}
	s.lease, s.leasePrev, s.leaseNext = 0, 0, 0
	l.n--
}

// each calls f for the entries in order. It may take out the one that it is called with, and no other.
func (l *leaseList) each(b *slab, f func(*entry)) {
	for ref := l.first; ref != 0; {
		s := b.at(ref)
		ref = s.leaseNext
		f(s)
	}
}
