// Package hostmem decides the collective operations of a group in memory that its ranks share, and
// passes messages between two of them, where all ranks are processes of one host. It is an
// accelerator in front of the store, which decides the same records (package internal/core): an
// operation takes a few microseconds instead of a round trip for each rank. Whatever is slow or wrong
// is left to the store.
//
// # Invariant
//
// A record (one collective operation, by its sequence number) is either decided in memory, as a
// success, or by the store, and never both:
//
//  1. The record has one state word. It ends as done or as slow, by compare-and-swap, and does not
//     change after that.
//  2. A rank votes at the store only for a record that is slow.
//  3. A record becomes done only when every rank that it requires has arrived: all ranks, or the
//     root alone for a broadcast or a scatter. Of all ranks, the last one to arrive has verified that
//     their calls agree. After a root alone, each reader compares its call with the root's.
//
// A rank makes a record slow if it cannot take part (it refuses, its context has ended, its payload
// is too large, there is no space), if the calls disagree, or if it has waited for too long. Then all
// ranks vote at the store, which names the ranks that are missing, failed or different, as it does
// without shared memory. So a rank may end between any two steps, and none of the failure handling
// is repeated here.
//
// # Beginning
//
// Each rank joins with the number of the first record for which it looks into the memory. Memory
// decides records from the highest of these numbers on, once all ranks have joined. Before that, a
// rank that has joined makes its records slow; a rank that has not joined cannot, and need not: no
// rank can find that all have joined.
//
// # Trust
//
// The memory is writable by all ranks of the group, which have the same user. Offsets and lengths
// are read once and checked: a faulty rank can make results wrong, as it could with its own payload,
// but no access is out of bounds.
package hostmem

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/spin"
	"github.com/muster-pg/muster/wire"
)

// ErrUnsupported is returned where processes cannot share memory.
var ErrUnsupported = errors.New("hostmem: this system has no memory that can be shared and sealed")

// maxWait is how long a rank waits in memory before it makes a record slow. It bounds how much
// later a failure is reported than without shared memory, and should exceed the time between two
// operations of most programs, such as workers that wait for the next step of their scheduler.
const maxWait = 50 * time.Millisecond

// Memory is one rank's handle of the memory that a group shares. It is safe for concurrent use, but
// Collect is called by one goroutine at a time, and see Send and Receive.
type Memory struct {
	shape
	mem   []byte
	words []uint64 // the same memory
	unmap func()
	file  int // the descriptor that other ranks open; -1: none
	sim   simulation

	rank  int
	limit time.Duration // of a wait
	spin  spin.Poller

	// Of Collect and Join, with using held.
	start  uint64 // the first record for which this rank looks into the memory; 0: it has not joined
	first  uint64 // the first record that memory may decide, once all ranks have joined; 0: unknown
	passed uint64 // the last record that this rank has passed
	low    uint64 // a record that every rank has passed
	space  space  // of this rank's payloads
	stuck  uint64 // m.low when a wait for space was in vain
	gone   bool   // this rank has turned the memory off, and passes no more records in it
	slow   bool   // it makes records slow until one is: see SlowNext

	using  sync.Mutex   // held during Collect, which uses the mapping
	life   sync.RWMutex // read-locked by calls that may be made meanwhile
	closed bool         // set with both held
	inbox  sleeper      // of the calls of Receive
}

// simulation replaces time in tests; nil elsewhere.
type simulation interface {
	step()         // before each access to the memory
	expired() bool // whether a wait has ended
}

// step is called before each access to the memory: a rank may end between any two of them.
func (m *Memory) step() {
	if m.sim != nil {
		m.sim.step()
	}
}

// MismatchError is the error of a rank whose call differs from that of a root that has decided the
// record alone, such as a Broadcast.
type MismatchError struct {
	Done, Own wire.Contribution
}

// Error describes both calls.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("rank %d called %s, rank %d called %s", e.Done.Rank, core.Describe(&e.Done), e.Own.Rank, core.Describe(&e.Own))
}

// errCorrupt is the error of a rank that finds in the memory what no rank writes.
var errCorrupt = errors.New("hostmem: the shared memory is corrupt: another version of muster?")

// Join begins this rank's part, before its call of Collect for record next.
func (m *Memory) Join(next uint64) {
	m.using.Lock()
	defer m.using.Unlock()
	if m.closed {
		return
	}
	m.start, m.passed, m.stuck = next, next-1, maxSeq
	m.store(m.rankWord(m.rank, wordPassed), next-1)
	m.store(m.rankWord(m.rank, wordStart), next)
	m.add(wordJoined, 1)
}

// ready reports whether all ranks have joined.
func (m *Memory) ready() bool {
	if m.first > 0 {
		return true
	}
	if m.load(wordJoined) < uint64(m.ranks) {
		return false
	}
	for rank := range m.ranks {
		m.first = max(m.first, m.load(m.rankWord(rank, wordStart)))
	}
	m.closeFile() // all ranks have opened it
	return true
}

// Collect takes part in record c.Seq, with this rank's vote. It returns ok if the record was decided
// in memory, as a success: got is what c.Want asks for, as store.Store.Collect returns it, and last
// the rank that arrived last. Otherwise this rank must vote at the store. An error means that the
// record succeeded for the other ranks, but this rank cannot agree: it must end the group.
func (m *Memory) Collect(ctx context.Context, c *wire.Contribution, payload []byte) (got [][]byte, last int, ok bool, err error) {
	m.using.Lock()
	defer m.using.Unlock()
	if m.closed || m.start == 0 || c.Seq < m.start {
		return nil, -1, false, nil
	}
	if m.tooFar(c.Seq) {
		return nil, -1, false, nil
	}
	if !m.gone {
		defer m.pass(c.Seq)
	}
	s := m.decide(ctx, c, payload)
	if s.phase() != phaseDone {
		m.slow = false // this rank votes at the store
		return nil, -1, false, nil
	}
	if s.last() != m.rank {
		err = m.check(c, s.last())
	}
	if err == nil && c.No == wire.CodeOK {
		got, err = m.read(c)
	}
	return got, s.last(), true, err
}

// tooFar reports whether this rank must not touch the word of record seq, which may still be needed
// for the record before it in that word.
//
// A rank that skips records, or whose next record is nearly a window ahead of the slowest rank (by
// records that failed: those that succeed keep the ranks together), turns the memory off, and never
// passes a record in it again. So low stays at most its passed, no root posts for a record after
// passed+heads, and an operation of all ranks needs this one: no such record can become done.
func (m *Memory) tooFar(seq uint64) bool {
	ahead := seq+uint64(m.heads) > m.low+uint64(m.window)
	if ahead && !m.gone {
		m.low = m.slowest()
		ahead = seq+uint64(m.heads) > m.low+uint64(m.window)
	}
	if !m.gone && (ahead || seq != m.passed+1) {
		m.gone = true // no rank can post for a record after passed+heads
		m.Leave()
	}
	return m.gone && seq > m.passed+uint64(m.heads)
}

// decide returns the final state of record c.Seq.
func (m *Memory) decide(ctx context.Context, c *wire.Contribution, payload []byte) state {
	sends := !c.RootOnly || c.Rank == c.Root
	switch {
	case !m.ready() || c.Seq < m.first || c.Seq > maxSeq,
		m.slow || m.isOff() || !valid(c, payload, m.ranks) || ctx.Err() != nil,
		sends && !m.post(ctx, c, payload):
		return m.settle(c.Seq, phaseSlow)
	case !sends:
		return m.await(ctx, c.Seq)
	case c.RootOnly:
		return m.settle(c.Seq, phaseDone)
	}
	return m.arrive(ctx, c)
}

// valid reports whether a vote is a yes that the store would accept.
func valid(c *wire.Contribution, payload []byte, ranks int) bool {
	if c.No != wire.CodeOK {
		return false
	}
	_, why := core.Parse(c, payload, ranks)
	return why == ""
}

// arrive counts this rank, and returns the final state. The last rank to arrive settles it.
func (m *Memory) arrive(ctx context.Context, c *wire.Contribution) state {
	word := m.stateWord(c.Seq)
	for {
		s := state(m.load(word))
		if s.settled(c.Seq) {
			return m.final(s, c.Seq)
		}
		next := newState(c.Seq, phaseOpen, s.arrivals(c.Seq)+1, m.rank)
		if !m.swap(word, uint64(s), uint64(next)) {
			continue
		}
		switch {
		case next.arrivals(c.Seq) < m.ranks:
			return m.await(ctx, c.Seq)
		case m.agree(c):
			return m.settle(c.Seq, phaseDone)
		}
		return m.settle(c.Seq, phaseSlow)
	}
}

// await returns the final state of record seq. It makes the record slow after a while.
func (m *Memory) await(ctx context.Context, seq uint64) state {
	word := m.stateWord(seq)
	m.wait(ctx, wordSleepers, wordBell, func() bool { return state(m.load(word)).settled(seq) })
	return m.settle(seq, phaseSlow)
}

// SlowNext makes the next record slow that has not ended before this rank calls it: so the store learns
// that this rank has passed its earlier ones. It keeps a record, with its payloads, until all ranks
// have voted on a later one; and if the vote of this rank was lost, the others wait there for it. The
// caller is the goroutine that calls Collect.
func (m *Memory) SlowNext() { m.slow = true }

// settle ends record seq in the given phase, unless it has ended, and returns its final state.
func (m *Memory) settle(seq uint64, p phase) state {
	word := m.stateWord(seq)
	for {
		s := state(m.load(word))
		if s.settled(seq) {
			return m.final(s, seq)
		}
		next := newState(seq, p, s.arrivals(seq), m.rank)
		if m.swap(word, uint64(s), uint64(next)) {
			m.ring(wordSleepers, wordBell)
			return next
		}
	}
}

// final returns s if it is that of record seq. tooFar keeps later records from the word while any rank
// may need it; if it belongs to one all the same, which only a faulty rank can do, the store decides.
func (m *Memory) final(s state, seq uint64) state {
	if s.seq() == seq {
		return s
	}
	return newState(seq, phaseSlow, 0, m.rank)
}

// agree reports whether the calls of all ranks agree, and their payloads can be reduced. If not, the
// store finds out what is wrong.
func (m *Memory) agree(c *wire.Contribution) bool {
	typ, length := c.Type, -1
	own, _, err := m.posted(m.rank, c.Seq)
	for rank := 0; rank < m.ranks && err == nil; rank++ {
		var call, payload []byte
		if call, payload, err = m.posted(rank, c.Seq); err != nil {
			return false
		}
		if !bytes.Equal(call, own) {
			theirs, err := parseCall(call)
			if err != nil || !core.Agree(c, &theirs) || typ != "" && theirs.Type != "" && typ != theirs.Type {
				return false
			}
			typ = cmp.Or(typ, theirs.Type)
		}
		if c.Reduction.Valid() && length >= 0 && len(payload) != length {
			return false
		}
		length = len(payload)
	}
	return err == nil
}

// check compares this rank's call with that of the rank that ended the record as done. They agree if
// all ranks had to arrive. If the root alone decides, it may have done so before this rank came, or
// two ranks may take themselves for the root.
func (m *Memory) check(c *wire.Contribution, last int) error {
	call, _, err := m.posted(last, c.Seq)
	if err != nil {
		return err
	}
	var own [headSize]byte
	if bytes.Equal(call, appendCall(own[:0], c)) {
		return nil
	}
	theirs, err := parseCall(call)
	if err != nil {
		return err
	}
	if theirs.Rank = last; !core.Agree(&theirs, c) && c.No == wire.CodeOK {
		return &MismatchError{Done: theirs, Own: *c}
	}
	return nil
}

// read returns what c.Want asks for of a record that is done.
func (m *Memory) read(c *wire.Contribution) ([][]byte, error) {
	switch {
	case c.Want >= 0:
		return m.payloads(c, int(c.Want), int(c.Want)+1)
	case c.Want == wire.WantPart && c.RootOnly:
		return m.payloads(c, c.Root, c.Root+1)
	case c.Want == wire.WantAll, c.Want == wire.WantPart:
		return m.payloads(c, 0, m.ranks)
	case c.Want == wire.WantReduced && c.Reduction.Valid():
		all, err := m.payloads(c, 0, m.ranks)
		if err != nil {
			return nil, err
		}
		for _, b := range all[1:] {
			if len(b) != len(all[0]) {
				return nil, errCorrupt
			}
		}
		return [][]byte{core.Reduce(c.Reduction, all)}, nil // in the order of ranks, as the store does
	}
	return nil, nil
}

// payloads returns copies of the payloads of ranks from to end−1, or of this rank's parts of them.
func (m *Memory) payloads(c *wire.Contribution, from, end int) ([][]byte, error) {
	got := make([][]byte, 0, end-from)
	for rank := from; rank < end; rank++ {
		_, b, err := m.posted(rank, c.Seq)
		if err == nil && c.Want == wire.WantPart {
			b, err = part(b, c.Rank, m.ranks)
		}
		if err != nil {
			return nil, err
		}
		got = append(got, b)
	}
	left := bytes.Join(got, nil) // it clears no memory before it copies
	if left == nil {
		left = []byte{} // as the store, which gives no nil payload
	}
	for i, b := range got {
		got[i], left = left[:len(b):len(b)], left[len(b):]
	}
	return got, nil
}

// part returns the part for rank of a payload that is still in the shared memory.
func part(payload []byte, rank, ranks int) ([]byte, error) {
	parts, err := wire.ParseParts(payload, ranks)
	if err != nil || len(parts) != ranks { // its number may have changed meanwhile
		return nil, errCorrupt
	}
	return parts[rank], nil
}

// pass records that this rank needs nothing more of record seq.
func (m *Memory) pass(seq uint64) {
	m.passed = seq
	m.store(m.rankWord(m.rank, wordPassed), seq)
	m.ring(wordWriters, wordBell)
}

// slowest returns the last record that every rank has passed.
func (m *Memory) slowest() uint64 {
	low := m.passed
	for rank := range m.ranks {
		low = min(low, m.load(m.rankWord(rank, wordPassed)))
	}
	return low
}

// Passed returns the last record that a rank has passed; 0 if it is unknown.
func (m *Memory) Passed(rank int) uint64 {
	m.life.RLock()
	defer m.life.RUnlock()
	if m.closed || rank < 0 || rank >= m.ranks {
		return 0
	}
	return m.load(m.rankWord(rank, wordPassed))
}

// Leave turns the memory off for all ranks: the store decides all records that are not done. A rank
// calls it when it leaves the group, or knows that the group was revoked.
func (m *Memory) Leave() {
	m.life.RLock()
	defer m.life.RUnlock()
	if m.closed {
		return
	}
	m.store(wordOff, 1)
	m.ring(wordSleepers, wordBell)
	m.ring(wordWriters, wordBell)
	for rank := range m.ranks {
		m.ring(m.rankWord(rank, wordReceivers), m.rankWord(rank, wordInboxBell))
	}
}

func (m *Memory) isOff() bool { return m.load(wordOff) != 0 }

// Close turns the memory off, waits for the end of calls in progress, and frees this process's
// mapping. A second Close does nothing.
func (m *Memory) Close() {
	m.Leave()
	m.using.Lock()
	defer m.using.Unlock()
	m.life.Lock()
	defer m.life.Unlock()
	if !m.closed {
		m.closed = true
		m.unmap()
	}
}
