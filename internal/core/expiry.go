package core

// deadline is when an entry expires.
type deadline struct {
	at  Time
	ref uint32
}

// pieceDeadlines is the length of a piece: the heap grows by pieces, without being copied.
const pieceDeadlines = 1024

// heapTop is the place of the first deadline. The four children of place i begin at
// 4*(i-heapTop)+4. So each group of four children is one cache line, and 0 is no place.
const heapTop = 3

// expiry is the entries that expire: a heap by time with four children for each place. Entries with
// the same deadline are ordered by their keys: after a restart they must expire in the same order
// as before, whatever had happened to the heap until then.
type expiry struct {
	slots  *slab
	pieces []*[pieceDeadlines]deadline
	end    uint32 // place behind the last deadline
}

func newExpiry(slots *slab) *expiry { return &expiry{slots: slots, end: heapTop} }

func (x *expiry) len() int { return int(x.end - heapTop) }

func (x *expiry) place(i uint32) *deadline { return &x.pieces[i/pieceDeadlines][i%pieceDeadlines] }

// put stores d at place i.
func (x *expiry) put(i uint32, d deadline) {
	*x.place(i) = d
	x.slots.at(d.ref).pos = i
}

// at returns when s expires, or 0 if it does not.
func (x *expiry) at(s *entry) Time {
	if s.pos == 0 {
		return 0
	}
	return x.place(s.pos).at
}

// next returns the first deadline.
func (x *expiry) next() (at Time, armed bool) {
	if x.len() == 0 {
		return 0, false
	}
	return x.place(heapTop).at, true
}

// arm makes s expire at a time. It replaces the deadline that s had.
func (x *expiry) arm(s *entry, at Time) {
	i := s.pos
	if i == 0 {
		i = x.grow()
	}
	x.fix(i, deadline{at, s.ref})
}

// disarm makes s not expire.
func (x *expiry) disarm(s *entry) {
	if s.pos == 0 {
		return
	}
	i := s.pos
	s.pos = 0
	last := x.shrink()
	if last.ref != s.ref {
		x.fix(i, last)
	}
}

// due returns an entry that has expired at now, or nil. It stays in the heap, since a snapshot may
// need its deadline.
func (x *expiry) due(now Time) *entry {
	if at, armed := x.next(); !armed || at > now {
		return nil
	}
	return x.slots.at(x.place(heapTop).ref)
}

// grow adds a place at the end.
func (x *expiry) grow() uint32 {
	i := x.end
	if int(i/pieceDeadlines) == len(x.pieces) {
		x.pieces = append(x.pieces, new([pieceDeadlines]deadline))
	}
	x.end++
	return i
}

// shrink removes the last place and returns its deadline. One piece more than needed is kept, so
// that a single entry does not allocate and free a piece each time.
func (x *expiry) shrink() deadline {
	x.end--
	if need := int(x.end-1)/pieceDeadlines + 1; need+1 < len(x.pieces) {
		x.pieces[need+1] = nil
		x.pieces = x.pieces[:need+1]
	}
	return *x.place(x.end)
}

// fix stores d where it belongs. Place i must be free.
func (x *expiry) fix(i uint32, d deadline) {
	if i > heapTop && x.before(d, *x.place(above(i))) {
		x.rise(i, d)
		return
	}
	x.sink(i, d)
}

func (x *expiry) before(a, b deadline) bool {
	return a.at < b.at || a.at == b.at && x.slots.at(a.ref).key() < x.slots.at(b.ref).key()
}

func above(i uint32) uint32 { return i/4 + heapTop - 1 }

func (x *expiry) rise(i uint32, d deadline) {
	for i > heapTop {
		up := above(i)
		p := *x.place(up)
		if !x.before(d, p) {
			break
		}
		x.put(i, p)
		i = up
	}
	x.put(i, d)
}

func (x *expiry) sink(i uint32, d deadline) {
	for {
		down, c := x.firstBelow(i)
		if down == 0 || !x.before(c, d) {
			break
		}
		x.put(i, c)
		i = down
	}
	x.put(i, d)
}

// firstBelow returns the place and the deadline of the first child of place i; place 0 if it has
// none.
func (x *expiry) firstBelow(i uint32) (uint32, deadline) {
	from := 4*(i-heapTop) + 4
	if from >= x.end {
		return 0, deadline{}
	}
	four := x.pieces[from/pieceDeadlines][from%pieceDeadlines:][:min(4, x.end-from)]
	least := 0
	for j := range four {
		if x.before(four[j], four[least]) {
			least = j
		}
	}
	return from + uint32(least), four[least]
}
