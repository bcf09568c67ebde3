package core_test

import (
	"bytes"
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

var exploreDepth = flag.Int("explore.depth", exploreDefault, "how many events long the schedules of TestExplore are; 0 is to their end")

const (
	exploreRanks   = 3
	exploreDefault = 5 // "make soak" has 13
)

// move is an event of the explorer. Each is of one rank, except a crash.
type move struct {
	what moveKind
	rank int
}

type moveKind int

const (
	// the next frame of a rank's connection arrives, and answers are sent
	deliver moveKind = iota
	stale            // the next frame of its broken connection arrives
	cut              // its connection breaks
	resume           // it reconnects
	giveUp           // its context ends
	lose             // its session fails
	crash            // the server is killed, and starts again with its log
	// a frame comes, and the server is killed before it answers; the log has the frame
	crashAfter
	crashWithout // the same, but the log does not have it
	// the connections of all ranks but the last, which use the relay, break at once
	relayEnds
)

var moveNames = [...]string{"deliver", "stale", "cut", "resume", "give up", "lose", "crash", "crash after", "crash without", "relay ends"}

func (v move) String() string { return fmt.Sprintf("%s %d", moveNames[v.what], v.rank) }

// system is what is explored.
type system struct {
	window int
	// each rank closes the channel between its votes; the steps before that are not explored
	again bool
}

// explored is one state: a server, and the ranks that use it. Each rank joins, adds 1 under a
// number, and votes twice.
type explored struct {
	system
	m         *core.Machine
	log       [][]byte
	ranks     [exploreRanks]explorer
	delivered map[uint64][]byte // outcomes, by sequence number
	cuts      int
	giveUps   int
	losses    int
	crashes   int
	relays    int
}

type explorer struct {
	session   uint64
	step      int // of its program, from 1 on; one more than the last is the end
	gen       uint64
	connected bool
	lost      bool
	gaveUp    bool // the current call
	leaving   bool // it had cancelled when its join succeeded: the cancel undoes the join
	added     bool // it knows that its addition was applied
	out, old  []wire.Request
}

const exploreSteps = 4

func explore(s system) *explored {
	x := &explored{system: s, m: core.New(core.Limits{}), delivered: map[uint64][]byte{}, cuts: 1, giveUps: 1, losses: 1, crashes: 1, relays: 1}
	x.m.SetBounds(core.Bounds{Window: x.window})
	for rank := range x.ranks {
		rep := x.apply(core.Local, wire.Request{Op: wire.OpHello, Token: []byte{byte(rank + 1)}})
		r := &x.ranks[rank]
		r.session, r.connected = uint64(rep.N), true
		x.next(rank)
	}
	for s.again && x.ranks[0].step < exploreSteps {
		for rank := range x.ranks {
			x.do(move{deliver, rank})
		}
	}
	return x
}

// request returns what a rank calls in a step of its program.
func (x *explored) request(rank int) wire.Request {
	r := &x.ranks[rank]
	c := wire.Contribution{Generation: r.gen, Rank: rank, Root: -1}
	req := wire.Request{ID: uint64(r.step)}
	switch r.step {
	case 1:
		req.Op, c.Group, c.Size, c.Label = wire.OpJoin, "world", exploreRanks, fmt.Sprint("rank ", rank)
		req.Value = exploreInfo(rank)
	case 2:
		req.Op, req.Number, req.Key, req.Add = wire.OpAdd, 1, "n", 1
		return req
	default:
		req.Op, c.Verb, c.Want, c.Seq = wire.OpCollect, "barrier", wire.WantNothing, uint64(r.step-2)
		if x.again {
			c.Seq = 1
		}
	}
	req.Group = c
	return req
}

func (x *explored) next(rank int) {
	r := &x.ranks[rank]
	if r.step++; r.step <= exploreSteps {
		x.ask(rank)
	}
}

// ask sends the request of a step. The vote in the other use of the channel is sent after the
// close.
func (x *explored) ask(rank int) {
	r := &x.ranks[rank]
	if x.again && r.step == exploreSteps {
		r.out = append(r.out, wire.Request{Op: wire.OpCloseChannel, ID: 2 * exploreSteps, Number: 2, Group: wire.Contribution{Generation: r.gen, Rank: rank}})
	}
	r.out = append(r.out, x.request(rank))
}

// apply lets the machine apply a request, and logs it.
func (x *explored) apply(session uint64, req wire.Request) *wire.Reply {
	rep := new(wire.Reply)
	answered := x.m.Apply(0, session, &req, rep)
	if x.m.Logs(req.Op) {
		x.log = append(x.log, core.AppendApply(nil, 0, session, &req))
	}
	if !answered {
		return nil
	}
	return rep
}

// frame handles a request that arrives. Its answers are sent, unless the server is killed first.
func (x *explored) frame(rank int, req wire.Request, answers bool) {
	session := x.ranks[rank].session
	rep := x.apply(session, req)
	es := x.m.Effects()
	if !answers {
		return
	}
	if rep != nil && req.Op != wire.OpCancel {
		x.answer(core.Ticket{Session: session, ID: req.ID}, rep)
	}
	for _, e := range es {
		x.answer(e.Ticket, e.Reply)
	}
}

func (x *explored) answer(t core.Ticket, rep *wire.Reply) {
	rank := slices.IndexFunc(x.ranks[:], func(r explorer) bool { return r.session == t.Session })
	r := &x.ranks[rank]
	if !r.connected || r.lost || int(t.ID) != r.step {
		return
	}
	switch {
	case r.step == 1 && rep.Code == wire.CodeOK && r.gaveUp:
		r.step, r.leaving = exploreSteps, true
	case r.step == 1 && rep.Code == wire.CodeOK:
		r.gen = rep.Rev
	case r.step == 1 && rep.Code == wire.CodeCancelled:
		r.step = exploreSteps // it has no group
	case r.step == 1:
		breaks("G5 an attempt to form a group has one outcome", "rank %d: %s", rank, say{rep})
	case r.step == 2:
		if rep.Code != wire.CodeOK || rep.N < 1 || rep.N > exploreRanks {
			breaks("S1 each number is carried out once, in order", "rank %d: %s", rank, say{rep})
		}
		r.added = true
	default:
		x.outcome(rank, rep)
	}
	r.gaveUp = false
	x.next(rank)
}

// outcome checks the outcome of a record that a rank receives.
func (x *explored) outcome(rank int, rep *wire.Reply) {
	seq := uint64(x.ranks[rank].step - 2)
	if rep.Code != wire.CodeOK && rep.Failure == nil {
		breaks("C1 a vote has an outcome", "rank %d: %s", rank, say{rep})
	}
	got := canonical(rep)
	if before := x.delivered[seq]; before != nil && !bytes.Equal(before, got) {
		breaks("C1 all delivered outcomes of a record are equal", "#%d: rank %d gets %q, others %q", seq, rank, got, before)
	}
	x.delivered[seq] = got
	for other := range x.ranks {
		r := &x.ranks[other]
		switch {
		case rep.Code == wire.CodeOK && r.step < int(seq)+2:
			breaks("C6 barrier success anywhere ⇒ every rank had called it", "#%d: rank %d had not", seq, other)
		case rep.Code == wire.CodeLost && slices.Contains(rep.Failure.Lost, other) && !r.lost:
			breaks("C3 a failure names those at fault", "#%d: rank %d is not lost", seq, other)
		}
	}
	if rep.Code != wire.CodeOK && rep.Code != wire.CodeFull && x.losses > 0 && x.giveUps > 0 {
		breaks("C3 every failure has a cause", "#%d: %s", seq, say{rep})
	}
}

// moves returns the events that can be next.
func (x *explored) moves() (vs []move) {
	for rank := range x.ranks {
		r := &x.ranks[rank]
		if r.lost {
			continue
		}
		add := func(what moveKind, can bool) {
			if can {
				vs = append(vs, move{what, rank})
			}
		}
		busy := r.connected && len(r.out) > 0
		add(deliver, busy)
		add(stale, !r.connected && len(r.old) > 0)
		add(cut, r.connected && x.cuts > 0)
		add(resume, !r.connected)
		add(giveUp, r.connected && x.giveUps > 0 && r.step <= exploreSteps && r.step != 2)
		add(lose, x.losses > 0)
		add(crashAfter, busy && x.crashes > 0)
		add(crashWithout, busy && x.crashes > 0)
	}
	if x.crashes > 0 {
		vs = append(vs, move{crash, 0})
	}
	if x.relays > 0 {
		vs = append(vs, move{relayEnds, 0})
	}
	return vs
}

func (x *explored) do(v move) {
	r := &x.ranks[v.rank]
	switch v.what {
	case deliver, crashAfter, crashWithout:
		req := r.out[0]
		r.out = r.out[1:]
		before := len(x.log)
		x.frame(v.rank, req, v.what == deliver)
		if v.what == crashWithout {
			x.log = x.log[:before]
		}
		if v.what != deliver {
			x.crash()
		}
	case stale:
		req := r.old[0]
		r.old = r.old[1:]
		x.frame(v.rank, req, true)
	case cut:
		x.cuts--
		r.connected, r.old, r.out = false, r.out, nil
	case resume:
		x.resume(v.rank)
	case giveUp:
		x.giveUps--
		r.gaveUp = true
		r.out = append(r.out, wire.Request{Op: wire.OpCancel, ID: uint64(r.step)})
	case lose:
		x.losses--
		r.lost = true
		x.frame(v.rank, wire.Request{Op: wire.OpLost}, true)
	case crash:
		x.crash()
	case relayEnds:
		x.relays--
		for rank := range x.ranks[:exploreRanks-1] {
			if r := &x.ranks[rank]; r.connected && !r.lost {
				r.connected, r.old, r.out = false, r.out, nil
			}
		}
	}
}

// crash replaces the server by a new one with the old one's log. The connections and the frames in
// them are lost.
func (x *explored) crash() {
	x.crashes--
	x.m = core.New(core.Limits{})
	x.m.SetBounds(core.Bounds{Window: x.window})
	for _, e := range x.log {
		if err := x.m.Replay(e); err != nil {
			panic(err)
		}
	}
	for rank := range x.ranks {
		r := &x.ranks[rank]
		r.connected, r.out, r.old = false, nil, nil
	}
}

// resume resumes a session, and sends the requests without an answer again. Frames that are left in
// the old connection are no longer read.
func (x *explored) resume(rank int) {
	r := &x.ranks[rank]
	rep := x.apply(core.Local, wire.Request{Op: wire.OpHello, Resume: r.session, Value: []byte{byte(rank + 1)}})
	if uint64(rep.N) != r.session {
		breaks("S6 unknown session ⇒ it was lost", "rank %d", rank)
	}
	if r.connected = true; !broke.fence {
		r.old = nil
	}
	if r.leaving {
		r.out = append(r.out, wire.Request{Op: wire.OpCancel, ID: 1})
	}
	if r.step > exploreSteps {
		return
	}
	x.ask(rank)
	if r.gaveUp {
		r.out = append(r.out, wire.Request{Op: wire.OpCancel, ID: uint64(r.step)})
	}
}

// settled checks what holds in each state, and in those without any frame under way.
func (x *explored) settled() {
	knows, quiet, lost := 0, true, false
	for rank := range x.ranks {
		r := &x.ranks[rank]
		if r.added {
			knows++
		}
		lost = lost || r.lost
		quiet = quiet && (r.lost || r.connected && len(r.out) == 0)
	}
	var rep wire.Reply
	x.m.Apply(0, core.Local, &wire.Request{Op: wire.OpGet, Key: "n"}, &rep)
	n := 0
	_, _ = fmt.Sscan(string(rep.Value), &n)
	if n < knows || n > exploreRanks {
		breaks("S1 each number is carried out once, in order", "%d ranks know that they have added 1, the sum is %d", knows, n)
	}
	for rank := range x.ranks {
		r := &x.ranks[rank]
		if r.gen != 0 && !r.lost {
			x.members(rank)
		}
		if n := x.m.Records(r.gen, "", 0); n > x.window {
			breaks("C8 at most W records", "%d", n)
		}
		if channels, _ := x.m.Opened(r.gen); channels > 2 || channels == 2 && x.closedByAll() {
			breaks("C9 a channel is freed with its last user", "%d channels", channels)
		}
		if quiet && !r.lost && r.step <= exploreSteps && (r.step != 1 || !lost && x.giveUps > 0) {
			breaks("L4 every connected rank learns", "rank %d waits in step %d, and nothing is on its way", rank, r.step)
		}
	}
}

// exploreInfo is what a rank says of itself.
func exploreInfo(rank int) []byte { return wire.AppendMember(nil, &wire.Member{Node: uint64(rank)}) }

// members checks that a rank that has joined gets the members of its group, also from a server that
// was started again.
func (x *explored) members(rank int) {
	r := &x.ranks[rank]
	var rep wire.Reply
	x.m.Apply(0, r.session, &wire.Request{Op: wire.OpMembers, First: 1, Group: wire.Contribution{Generation: r.gen, Rank: rank}}, &rep)
	if rep.Code != wire.CodeOK || len(rep.Values) != exploreRanks-1 || !bytes.Equal(rep.Values[1], exploreInfo(2)) {
		breaks("G8 a rank gets the members of its group", "rank %d: %s", rank, say{&rep})
	}
}

// closedByAll reports whether each present rank has received the answer to its vote in the second
// use, and so has closed the first.
func (x *explored) closedByAll() bool {
	return !slices.ContainsFunc(x.ranks[:], func(r explorer) bool { return !r.lost && r.step <= exploreSteps })
}

var exploreSeed = maphash.MakeSeed()

func (x *explored) hash() uint64 {
	return maphash.String(exploreSeed, fmt.Sprint(x.m.Portrait(), x.ranks, x.delivered, x.cuts, x.giveUps, x.losses, x.crashes, x.relays))
}

// run executes a schedule.
func run(s system, schedule []move) (x *explored, err error) {
	defer func() {
		if b, ok := recover().(*broken); ok {
			err = b
		}
	}()
	x = explore(s)
	for _, v := range schedule {
		x.do(v)
	}
	x.settled()
	return x, nil
}

// TestExplore visits all interleavings of a small system, each state once: 3 ranks, 2 barriers, a
// window of 1 and of 2, in one use of a channel or in two, and one each of a cut with frames left
// in the old connection, a context that ends, the failure of a rank, the end of a relay of two
// ranks, and a kill of the server, before or after the last request is durable.
func TestExplore(t *testing.T) {
	for name, s := range map[string]system{
		"window 1": {window: 1}, "window 2": {window: 2}, "a channel again": {window: 2, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			states, events := exploreFrom(t, s, *exploreDepth)
			t.Logf("%d states, to %d events, in %v", states, events, time.Since(start))
		})
	}
}

// exploreFrom searches breadth first, visiting each state once, until depth. It returns the number of
// states, and the number of events up to which the search is complete.
func exploreFrom(t *testing.T, s system, depth int) (states, events int) {
	seen := map[uint64]bool{}
	for level := [][]move{nil}; len(level) > 0 && (depth == 0 || events <= depth); events++ {
		var next [][]move
		for _, schedule := range level {
			x, err := run(s, schedule)
			if err != nil {
				t.Fatalf("%v\nafter %v", err, schedule)
			}
			if h := x.hash(); !seen[h] {
				seen[h] = true
				for _, v := range x.moves() {
					next = append(next, append(slices.Clip(schedule), v))
				}
			}
		}
		level = next
	}
	return len(seen), events - 1
}
