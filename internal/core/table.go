package core

import (
	"hash/maphash"
	"math"
	"math/bits"
	"strings"
	"unsafe"

	"github.com/tidwall/btree"
)

// entry is one entry of the store: its key, its value, and its places in the ordered structures. A
// store has millions of them, so an entry fills one cache line of 64 bytes: references have 32
// bits, and slices are stored without the words that are never used.
type entry struct {
	keyData *byte
	valData *byte // not nil in an entry that exists
	rev     uint64
	keyLen  uint32
	valLen  uint32
	valCap  uint32
	ref     uint32 // the reference of this slot; 0 if it is free
	chain   uint32 // the next slot whose key has the same hash, or the next free slot
	pos     uint32 // place in the expiry heap; 0 if the entry does not expire
	lease   uint32 // reference of its lease; 0 if it has none

	// neighbors in the list of that lease
	leasePrev, leaseNext uint32
}

func (s *entry) key() string { return unsafe.String(s.keyData, s.keyLen) }

func (s *entry) setKey(key string) {
	s.keyData, s.keyLen = unsafe.StringData(key), uint32(len(key))
}

// val returns the value, with the capacity that it was set with.
func (s *entry) val() []byte { return unsafe.Slice(s.valData, s.valCap)[:s.valLen] }

// setVal sets the value to v, of at most wire.MaxValue bytes. A capacity that does not fit in 32
// bits is cut. An empty value is never nil, which means "does not exist" in answers and in the old
// value of a swap.
func (s *entry) setVal(v []byte) {
	if v == nil {
		v = []byte{}
	}
	s.valData, s.valLen = unsafe.SliceData(v), uint32(len(v))
	s.valCap = uint32(min(cap(v), math.MaxUint32))
}

// chunkSlots makes a chunk 32 KiB, a size that the runtime allocates as whole pages, without a
// header or rounding.
const chunkSlots = 512

// chunk is a part of a slab.
type chunk struct {
	slots *[chunkSlots]entry // nil while no slot is used
	free  uint32             // first used and freed slot; others by entry.chain
	used  uint16             // slots from here on were never used
	live  uint16
}

// slab allocates slots. A slot does not move until it is given back. A reference is the number of a
// slot plus 1, so 0 is none. Which slot is next depends only on the slots that were taken and given
// back before, so a replay gives the same ones.
type slab struct {
	chunks  []chunk
	notFull []uint64 // a bit for each chunk that has a free slot
	lowest  int      // all words of notFull before it are 0
	spare   int      // the chunk, plus 1, that has memory and no used slot; 0 is none
}

func (b *slab) at(ref uint32) *entry {
	i := ref - 1
	return &b.chunks[i/chunkSlots].slots[i%chunkSlots]
}

// take returns a slot that is zero except for its ref, from the first chunk that has a free one: so
// the last chunks become empty, and their memory is freed.
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

// firstNotFull returns the number of the first chunk with a free slot, and adds a chunk if there is
// none.
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

// markNotFull sets the bit of chunk n.
func (b *slab) markNotFull(n int) {
	if n/64 == len(b.notFull) {
		b.notFull = append(b.notFull, 0)
	}
	b.notFull[n/64] |= 1 << (n % 64)
	b.lowest = min(b.lowest, n/64)
}

// giveBack frees a slot.
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

// dropEmpty frees the memory of the empty chunk n, or of another empty chunk behind it. One empty
// chunk, the first, is kept: the next slot comes from there, and a single entry that comes and goes
// would allocate and free a chunk each time.
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
	seed  maphash.Seed // random in each process: nothing visible may depend on hashes
	mask  uint32       // of hashes; tests make it small to get collisions
	index map[uint32]uint32
	peak  int // the most entries that index has held
	order *btree.BTreeG[uint32]
	probe string // the key of reference 0, while order is searched
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

// get returns the entry of key, or nil.
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

// insert adds an entry for key, which must have none.
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

// remove removes s, which must not be in the expiry heap or on a lease. Its slot may be reused at
// once.
func (t *table) remove(s *entry) {
	t.order.Delete(s.ref)
	t.unchain(s)
	t.giveBack(s)
	// A map never shrinks. Copying a smaller one takes too long; replacing an empty one does not.
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

// ascend calls f for the entries from key from on, in the order of keys, until f returns false. f
// must not modify the table.
func (t *table) ascend(from string, f func(*entry) bool) {
	t.probe = from
	t.order.Ascend(0, func(ref uint32) bool { return f(t.at(ref)) })
	t.probe = ""
}

// leaseList is the list of the entries of one lease, in the order in which they were attached.
type leaseList struct {
	first, last uint32
	n           int
}

// push adds s, which must be in no list, to the list of a lease.
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

// remove removes s from l.
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

// each calls f for the entries in order. f may remove the entry that it is called with, and no
// other.
func (l *leaseList) each(b *slab, f func(*entry)) {
	for ref := l.first; ref != 0; {
		s := b.at(ref)
		ref = s.leaseNext
		f(s)
	}
}
