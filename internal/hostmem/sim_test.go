package hostmem

// A simulation of ranks that use one memory, and of the store, under a scheduler that chooses which
// rank makes its next access to the memory, when a wait ends, and when a rank ends. Each seed is
// one history. The properties are those of the package's comment.
//
// The ranks call the operations of a channel, close it, and use its name again. The first rank that
// may use memory makes it, and the others open it, as package pgroup does.

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// simShape is small, so that ranks reach its limits.
func simShape(ranks int) shape {
	return shape{ranks: ranks, window: 16, heads: 3, bytes: 512, slot: 512}
}

const (
	simWindow = 4 // records of the store by which a root may be ahead of its readers
	simSteps  = 20000
)

// world is one history.
type world struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	region *simRegion
	ranks  []*simRank
	plan   [][]wire.Contribution // by use of the channel's name: the call that all ranks make, by seq−1
	store  simStore
	done   map[simID][]int // the ranks that got a success from the memory
	seen   map[string]int  // how often the outcomes occur

	wrong     map[simID][]int               // the ranks that make another call
	mismatch  map[simID]bool                // a rank has found a mismatch in memory
	succeeded map[simID][]wire.Contribution // the calls with a success

	patience int // a wait in memory ends after about as many steps

	messages map[pairOf]*simStream
	off      bool // a rank has turned the memory off
}

// simID names a record: that of a channel of the store, which is a use of the name.
type simID struct {
	channel *simChannel
	seq     uint64
}

func (id simID) String() string { return fmt.Sprintf("%d of use %d", id.seq, id.channel.use+1) }

// simRegion is a memory, with the handles of the ranks that have joined it.
type simRegion struct {
	mem     []byte
	words   []uint64
	joined  map[int]*Memory
	channel map[int]*simChannel // by rank: the use in which it has joined
}

// simRank is one rank. Its program is a coroutine, which runs from a call of turn to its next step: a
// switch costs a tenth of one between goroutines that use channels.
type simRank struct {
	w       *world
	rank    int
	m       *Memory // nil: it has not joined one in this use
	region  *simRegion
	closed  Closed
	voted   bool // in this use
	lost    bool // its last vote was lost
	turn    func() (struct{}, bool)
	kill    func()
	pause   func(struct{}) bool // false: the rank is killed
	blocked func() bool
	over    bool
	killed  bool
}

type killed struct{}

func (r *simRank) step() {
	if !r.killed {
		if r.killed = !r.pause(struct{}{}); r.killed {
			r.w.seen["killed"]++
		}
	}
	if r.killed { // also in functions that its end defers
		panic(killed{})
	}
}

func (r *simRank) expired() bool {
	r.step()
	return r.w.rng.IntN(r.w.patience) == 0
}

// violated reports a property that does not hold, as package mutationtest expects it.
func (w *world) violated(property, format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("seed %d:\n%s does not hold: %s", w.seed, property, fmt.Sprintf(format, args...))
}

const (
	oneDecider   = "H1 a record is decided in memory or by the store, never both"
	allAgreed    = "H2 a record is done in memory only if all required ranks made the same call"
	rightBytes   = "H3 payloads are those that the ranks sent for the record"
	ends         = "H4 every rank that lives ends, with a result for each call"
	sameOutcome  = "H5 all ranks get the same outcome"
	noneOutside  = "H6 no access is out of bounds"
	mismatchSeen = "H7 calls that succeed for the same record agree"
	votesAgain   = "H9 a rank whose vote was lost decides no record before the store has a later vote of it"
	inOrder      = "M1 messages of a pair are received once, in order, and none is lost that the receiver lives to ask for"
	noneAfterEnd = "M2 no message is passed in memory after a rank has turned it off"
	sameUse      = "H8 a record that memory decides is of the same use of its channel on all ranks"
)

// simStore decides records as package core does, without its details. Each change of votes, floors or
// dead ranks is followed by updateAll.
type simStore struct {
	w        *world
	channels []*simChannel // of one name, in the order of their beginning
	revoked  string
	dead     []bool
}

// simChannel is one use of the name at the store. Its use is that of the rank that began it.
type simChannel struct {
	use     int
	used    []bool   // by rank: it has voted
	floor   []uint64 // by rank: the last record that it has voted on
	records map[uint64]*simRecord
}

type simRecord struct {
	votes   map[int]wire.Contribution
	decided bool
	failure string
	call    wire.Contribution // of the first vote
}

// channel returns the channel that a vote of rank is for.
func (s *simStore) channel(rank, use int) *simChannel {
	for _, ch := range s.channels {
		if ch.floor[rank] != maxSeq {
			return ch
		}
	}
	n := len(s.w.ranks)
	ch := &simChannel{use: use, used: make([]bool, n), floor: make([]uint64, n), records: map[uint64]*simRecord{}}
	s.channels = append(s.channels, ch)
	return ch
}

// close closes the channel for rank, and frees channels that have no user.
func (s *simStore) close(rank int) {
	for _, ch := range s.channels {
		if ch.floor[rank] != maxSeq {
			if ch.used[rank] {
				ch.floor[rank] = maxSeq
			}
			break
		}
	}
	s.updateAll()
	s.channels = slices.DeleteFunc(s.channels, func(ch *simChannel) bool {
		for rank := range s.w.ranks {
			if ch.used[rank] && ch.floor[rank] != maxSeq && !s.dead[rank] {
				return false
			}
			for seq := range ch.records {
				if ch.floor[rank] < seq && !s.dead[rank] {
					return false
				}
			}
		}
		return true
	})
}

func (s *simStore) update(ch *simChannel, seq uint64) {
	r := ch.records[seq]
	if r == nil || r.decided {
		return
	}
	call := r.call
	var first *wire.Contribution
	for rank := range s.w.ranks {
		v, ok := r.votes[rank]
		switch {
		case !ok:
			if required(&call, rank) && (s.dead[rank] || ch.floor[rank] > seq) {
				r.decided, r.failure = true, fmt.Sprintf("rank %d is lost or skipped it", rank)
				return
			}
			continue
		case v.No != wire.CodeOK:
			r.decided, r.failure = true, "no"
			return
		}
		if first == nil {
			first = &v
		} else if !core.Agree(first, &v) {
			r.decided, r.failure = true, "mismatch"
			s.revoke("mismatch")
			return
		}
	}
	switch {
	case first == nil:
	case !first.RootOnly && len(r.votes) == len(s.w.ranks):
		r.decided = true
	case first.RootOnly:
		if _, ok := r.votes[first.Root]; ok && seq <= slices.Min(ch.floor)+simWindow {
			r.decided = true
		}
	}
}

func (s *simStore) updateAll() {
	for _, ch := range s.channels {
		for _, seq := range slices.Sorted(maps.Keys(ch.records)) {
			s.update(ch, seq)
		}
	}
}

func (s *simStore) revoke(why string) {
	if s.revoked == "" {
		s.revoked = why
	}
	for _, ch := range s.channels {
		for _, r := range ch.records {
			if !r.decided {
				r.decided, r.failure = true, s.revoked
			}
		}
	}
}

func required(c *wire.Contribution, rank int) bool { return !c.RootOnly || rank == c.Root }

// vote blocks the rank until the store has decided. With faults the vote may be lost.
func (r *simRank) vote(id simID, c *wire.Contribution, faults bool) (got [][]byte, failure string) {
	s, ch, seq := &r.w.store, id.channel, c.Seq
	if ranks := r.w.done[id]; len(ranks) > 0 {
		r.w.violated(oneDecider, "record %v: rank %d votes at the store, ranks %v have its success", id, r.rank, ranks)
	}
	if r.lost = faults && r.w.rng.IntN(30) == 0; r.lost {
		r.w.seen["lost"]++
		return nil, "unknown"
	}
	ch.used[r.rank], r.voted = true, true
	rec := ch.records[seq]
	if rec == nil {
		rec = &simRecord{call: *c, votes: map[int]wire.Contribution{}}
		ch.records[seq] = rec
	}
	ch.floor[r.rank] = max(ch.floor[r.rank], seq)
	switch {
	case rec.decided && rec.failure == "" && c.No == wire.CodeOK:
		for _, v := range rec.votes {
			if !core.Agree(&v, c) {
				s.revoke("mismatch")
				return nil, s.revoked
			}
		}
	case !rec.decided && s.revoked != "":
		return nil, s.revoked
	}
	if _, ok := rec.votes[r.rank]; !ok && !rec.decided || c.RootOnly && c.Rank == c.Root {
		rec.votes[r.rank] = *c
	}
	s.updateAll()
	r.blocked = func() bool { return !rec.decided }
	r.step()
	r.blocked = nil
	if rec.failure != "" {
		return nil, rec.failure
	}
	return expected(c, len(r.w.ranks)), ""
}

// payloadOf returns what rank sends for record seq.
func payloadOf(c *wire.Contribution, rank, ranks int) []byte {
	if c.RootOnly && rank != c.Root || c.Verb == "barrier" {
		return nil
	}
	rng := rand.New(rand.NewPCG(c.Seq, 1))
	size := []int{1, 8, 100, 180, 240, 300}[rng.IntN(6)]
	b := bytes.Repeat([]byte{byte(16*c.Seq) + byte(4*len(c.Channel)) + byte(rank)}, size/8*8+8)
	if c.Want != wire.WantPart {
		return b
	}
	parts := make([][]byte, ranks)
	for i := range parts {
		parts[i] = append(bytes.Clone(b[:8]), byte(i))
	}
	return wire.AppendParts(nil, parts)
}

// expected returns the result of a successful record.
func expected(c *wire.Contribution, ranks int) (all [][]byte) {
	from, end := 0, ranks
	switch {
	case c.Want == wire.WantNothing:
		return nil
	case c.Want >= 0:
		from, end = int(c.Want), int(c.Want)+1
	case c.RootOnly:
		from, end = c.Root, c.Root+1
	}
	for rank := from; rank < end; rank++ {
		sent := *c
		if c.Want >= 0 {
			sent.Want = wire.WantNothing
		}
		b := payloadOf(&sent, rank, ranks)
		if c.Want == wire.WantPart {
			parts, _ := wire.ParseParts(b, ranks)
			b = parts[c.Rank]
		}
		all = append(all, b)
	}
	if c.Want == wire.WantReduced {
		all = [][]byte{core.Reduce(c.Reduction, all)}
	}
	return all
}

// call returns rank's own call of the plan's.
func call(c wire.Contribution, rank int) wire.Contribution {
	c.Rank = rank
	if c.Verb == "broadcast" && rank == c.Root || c.Verb == "gather" && rank != c.Root {
		c.Want = wire.WantNothing
	}
	return c
}

// newPlan returns the calls of a history.
func newPlan(rng *rand.Rand, ranks int) (plan [][]wire.Contribution) {
	uses := 1
	length := 8 + rng.IntN(32)
	if rng.IntN(2) == 0 {
		uses, length = 2+rng.IntN(2), 4+rng.IntN(12)
	}
	alike := rng.IntN(2) == 0 // all uses have the same calls
	var calls []wire.Contribution
	for use := range uses {
		if !alike || use == 0 {
			calls = nil
			for seq := range length {
				root := rng.IntN(ranks)
				if rng.IntN(2) == 0 { // so that a root gets ahead
					root = 0
				}
				calls = append(calls, newCall(rng, uint64(seq)+1, root))
			}
		}
		plan = append(plan, slices.Clone(calls))
		for i := range plan[use] {
			plan[use][i].Channel = "xxx"[:use]
		}
	}
	return plan
}

// newCall returns a random call of record seq.
func newCall(rng *rand.Rand, seq uint64, root int) wire.Contribution {
	kinds := []wire.Contribution{
		{Verb: "barrier", Root: -1, Want: wire.WantNothing},
		{Verb: "allgather", Root: -1, Want: wire.WantAll, Type: "int"},
		{Verb: "broadcast", Root: root, RootOnly: true, Want: int32(root)},
		{Verb: "broadcast", Root: root, RootOnly: true, Want: int32(root)},
		{Verb: "gather", Root: root, Want: wire.WantAll},
		{Verb: "scatter", Root: root, RootOnly: true, Want: wire.WantPart},
		{Verb: "alltoall", Root: -1, Want: wire.WantPart},
		{Verb: "allreduce", Root: -1, Want: wire.WantReduced, Reduction: wire.Reduction{Op: wire.ReduceSum, Kind: wire.Uint64}},
	}
	c := kinds[rng.IntN(len(kinds))]
	c.Seq = seq
	return c
}

// run is the program of a rank: it uses a channel, closes it, and uses its name again.
func (r *simRank) run(faults bool) {
	for use := range r.w.plan {
		if !r.use(use, faults) {
			return
		}
		if r.m != nil {
			r.m.Close()
			r.m, r.region = nil, nil
		}
		r.w.store.close(r.rank)
		r.closed.Add("x")
		r.voted, r.lost = false, false
	}
}

// join makes or opens a memory, and joins it.
func (r *simRank) join(ch *simChannel, seq uint64) {
	if r.m != nil || !r.voted || r.closed.Has("x") {
		return
	}
	r.open()
	r.region.joined[r.rank], r.region.channel[r.rank] = r.m, ch
	r.m.Join(seq)
	r.m.SlowNext()
}

// open opens the memory. The first rank makes it.
func (r *simRank) open() {
	w, s := r.w, simShape(len(r.w.ranks))
	if w.region == nil {
		words := make([]uint64, s.size()/8)
		w.region = &simRegion{words: words, mem: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), s.size()), joined: map[int]*Memory{}, channel: map[int]*simChannel{}}
	}
	r.region = w.region
	r.m = &Memory{shape: s, rank: r.rank, mem: r.region.mem, words: r.region.words, unmap: func() {}, file: -1, sim: r}
}

// use makes all calls of a use of the channel, with a fault now and then. It reports whether the rank
// goes on.
func (r *simRank) use(use int, faults bool) bool {
	w := r.w
	plan := w.plan[use]
	joins := 2 + uint64(w.rng.IntN(5))
	hasty := false // cancels all later operations: so it gets far ahead
	for seq := uint64(1); seq <= uint64(len(plan)); seq++ {
		c := call(plan[seq-1], r.rank)
		payload := payloadOf(&c, r.rank, len(w.ranks))
		fault := 100
		if faults {
			fault = w.rng.IntN(150)
		}
		cancelled := false
		if fault == 8 {
			hasty = true
		}
		if hasty {
			cancelled = true
		}
		switch fault {
		case 0:
			c.No, payload = wire.CodeInvalid, nil
		case 1:
			cancelled = true
		case 2, 5, 6, 7:
			c = call(newCall(w.rng, seq, w.rng.IntN(len(w.ranks))), r.rank)
			c.Channel = plan[0].Channel
			payload = payloadOf(&c, r.rank, len(w.ranks))
		case 3:
			if seq < uint64(len(plan)) && r.m != nil {
				r.m.Leave()
			}
		case 4:
			seq += uint64(w.rng.IntN(8)) // skips some
			continue
		}
		id := simID{w.store.channel(r.rank, use), seq}
		if seq >= joins {
			r.join(id.channel, seq)
		}
		ctx, cancel := context.WithCancel(context.Background())
		if cancelled {
			cancel()
		}
		if id.channel.use != use || !core.Agree(&c, &plan[seq-1]) {
			w.wrong[id] = append(w.wrong[id], r.rank)
		}
		var got [][]byte
		var ok bool
		var err error
		last := -1
		if r.m != nil {
			got, last, ok, err = r.m.Collect(ctx, &c, payload)
		}
		cancel()
		if !ok && cancelled {
			c.No = wire.CodeCancelled
		}
		failure := ""
		switch {
		case err != nil:
			if len(w.wrong[id]) == 0 {
				w.violated(rightBytes, "record %v, rank %d: %v", id, r.rank, err)
			}
			w.mismatch[id] = true
			w.checkOutcomes(id)
			r.m.Leave()
			w.store.revoke("mismatch")
			w.seen["mismatch"]++
			return false
		case ok:
			w.done[id] = append(w.done[id], r.rank)
			w.seen["memory"]++
			if rec := id.channel.records[seq]; rec != nil {
				w.violated(oneDecider, "record %v: success in memory on rank %d, votes %v at the store", id, r.rank, rec.votes)
			}
			r.checkAgreed(id, &c)
			if r.lost && last == r.rank {
				w.violated(votesAgain, "record %v: rank %d decides it, the others wait for its vote on an earlier one", id, r.rank)
			}
		default:
			got, failure = r.vote(id, &c, faults)
			if w.seen["store"]++; failure != "" {
				w.seen["failure"]++
				if r.m != nil {
					r.m.SlowNext()
				}
			}
			if use > 0 && failure == "" {
				w.seen["again"]++
			}
		}
		if want := expected(&c, len(w.ranks)); len(w.wrong[id]) == 0 && failure == "" && c.No == wire.CodeOK && !slices.EqualFunc(got, want, bytes.Equal) {
			w.violated(rightBytes, "record %v (%s), rank %d: got %x, want %x", id, c.Verb, r.rank, got, want)
		}
		if failure == "" && c.No == wire.CodeOK {
			for _, other := range w.succeeded[id] {
				if !core.Agree(&other, &c) {
					w.violated(mismatchSeen, "record %v: success for %v and for %v", id, other, c)
				}
			}
			w.succeeded[id] = append(w.succeeded[id], c)
			w.checkOutcomes(id)
		}
		if w.store.revoked != "" {
			return false
		}
	}
	return true
}

// checkOutcomes checks that no rank finds a mismatch in an operation that needs all ranks and has
// succeeded for another one.
func (w *world) checkOutcomes(id simID) {
	for _, c := range w.succeeded[id] {
		if !c.RootOnly && w.mismatch[id] {
			w.violated(sameOutcome, "record %v: success of %s on rank %d, and a mismatch", id, c.Verb, c.Rank)
		}
	}
}

// checkAgreed checks that every required rank has called the record of c when it is done, in the same
// use of the channel.
func (r *simRank) checkAgreed(id simID, c *wire.Contribution) {
	if c.No != wire.CodeOK { // a refusal of a record that is done for others
		return
	}
	w := r.w
	for rank := range w.ranks {
		if m := r.region.joined[rank]; required(c, rank) && (m == nil || !called(m, id.seq)) {
			w.violated(allAgreed, "record %v (%s) is done, rank %d has not called it", id, c.Verb, rank)
		}
		if ch := r.region.channel[rank]; required(c, rank) && ch != id.channel {
			w.violated(sameUse, "record %v is done, rank %d is in use %d", id, rank, ch.use+1)
		}
	}
}

// called reports whether the rank of m has posted for record seq, or gone beyond it.
func called(m *Memory, seq uint64) bool {
	if m.passed >= seq {
		return true
	}
	sim := m.sim
	m.sim = nil
	defer func() { m.sim = sim }()
	_, _, err := m.posted(m.rank, seq)
	return err == nil
}

// simulate runs the history of a seed, in which each rank runs the program.
func simulate(t *testing.T, seed uint64, program func(r *simRank, faults bool)) *world {
	w := &world{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), done: map[simID][]int{}, seen: map[string]int{}, wrong: map[simID][]int{}, mismatch: map[simID]bool{}, succeeded: map[simID][]wire.Contribution{}, messages: map[pairOf]*simStream{}}
	n := 2 + w.rng.IntN(3)
	w.patience = []int{3, 20, 200}[w.rng.IntN(3)]
	faults := w.rng.IntN(3) > 0
	w.plan = newPlan(w.rng, n)
	w.store = simStore{w: w, dead: make([]bool, n)}
	for rank := range n {
		r := &simRank{w: w, rank: rank}
		r.turn, r.kill = iter.Pull(func(pause func(struct{}) bool) {
			r.pause = pause
			r.main(program, faults)
		})
		w.ranks = append(w.ranks, r)
	}
	w.schedule(faults)
	w.checkMessages()
	return w
}

// main runs the program of a rank to its end, or until it is killed.
func (r *simRank) main(program func(r *simRank, faults bool), faults bool) {
	defer func() {
		switch x := recover(); x {
		case nil, killed{}:
		default:
			r.w.violated(noneOutside, "rank %d: %v", r.rank, x)
		}
		r.over = true
	}()
	program(r, faults)
}

// schedule gives the ranks their turns until all have ended.
func (w *world) schedule(faults bool) {
	var last *simRank
	var can, awake []*simRank
	stopped := map[*simRank]int{} // until a step
	for at := range simSteps {
		can, awake = can[:0], awake[:0]
		live := false
		for _, r := range w.ranks {
			live = live || !r.over
			if !r.over && (r.blocked == nil || !r.blocked()) {
				can = append(can, r)
				if stopped[r] <= at {
					awake = append(awake, r)
				}
			}
		}
		switch {
		case !live:
			return
		case len(can) == 0: // those that wait for a rank that has ended: its session ends
			for _, r := range w.ranks {
				w.store.dead[r.rank] = w.store.dead[r.rank] || r.over
			}
			if !slices.Contains(w.store.dead, true) {
				w.violated(ends, "all ranks wait at the store")
				return
			}
			w.store.updateAll()
			if w.store.revoked == "" {
				w.store.revoke("lost")
			}
			continue
		}
		if len(awake) == 0 {
			awake = append(awake, can...)
		}
		r := awake[w.rng.IntN(len(awake))]
		if faults && w.rng.IntN(300) == 0 {
			stopped[r] = at + 600
		}
		if last != nil && slices.Contains(awake, last) && w.rng.IntN(4) > 0 { // often makes several steps
			r = last
		}
		last = r
		if faults && w.rng.IntN(1200) == 0 {
			r.kill()
			r.over = true // even if it has not begun
		} else {
			r.turn()
		}
	}
	w.violated(ends, "a rank has not ended after %d steps", simSteps)
}

// TestSimulation runs random histories. Each outcome that the properties are about must occur.
func TestSimulation(t *testing.T) {
	histories(t, (*simRank).run, map[string]float64{"memory": 5, "store": 5, "failure": 1, "killed": 0.1, "mismatch": 0.003, "again": 0.5, "lost": 0.25})
}

// histories runs random histories of a program. least has how often an outcome occurs in one of them,
// at least and on average.
func histories(t *testing.T, program func(*simRank, bool), least map[string]float64) {
	seeds := 6000
	if os.Getenv("MUSTER_SOAK") != "" {
		seeds = 100_000
	}
	seen := map[string]int{}
	for seed := range seeds {
		w := simulate(t, uint64(seed), program) // #nosec G115 -- positive
		if t.Failed() {
			return
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	t.Log(seen)
	for what, n := range least {
		if float64(seen[what]) < n*float64(seeds) {
			t.Errorf("%q occurs %d times in %d histories", what, seen[what], seeds)
		}
	}
}
