package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// rig is a Machine that a test drives by hand, in its own time.
type rig struct {
	tb      testing.TB
	m       *core.Machine
	now     core.Time
	lastID  uint64
	answers map[core.Ticket]*wire.Reply // to calls that waited
	order   []core.Ticket               // in which they were answered
}

func newRig(tb testing.TB) *rig { return newRigWith(tb, core.Limits{}) }

func newRigWith(tb testing.TB, limits core.Limits) *rig {
	return &rig{tb: tb, m: core.New(limits), answers: map[core.Ticket]*wire.Reply{}}
}

func (r *rig) session() uint64 {
	return uint64(r.does(core.Local, wire.Request{Op: wire.OpHello}).N)
}

// call makes a call, and returns its ticket and its answer, which is nil while it waits.
func (r *rig) call(session uint64, req wire.Request) (core.Ticket, *wire.Reply) {
	r.tb.Helper()
	if req.ID == 0 {
		r.lastID++
		req.ID = r.lastID
	}
	t := core.Ticket{Session: session, ID: req.ID}
	rep := new(wire.Reply)
	if !r.m.Apply(r.now, session, &req, rep) {
		rep = nil
	}
	r.collectAnswers()
	if rep == nil {
		rep = r.answers[t]
	}
	return t, rep
}

func (r *rig) collectAnswers() {
	for _, e := range r.m.Effects() {
		if r.answers[e.Ticket] != nil {
			r.tb.Fatalf("call %v is answered twice", e.Ticket)
		}
		r.answers[e.Ticket] = e.Reply
		r.order = append(r.order, e.Ticket)
	}
}

// does makes a call that is answered at once.
func (r *rig) does(session uint64, req wire.Request) *wire.Reply {
	r.tb.Helper()
	_, rep := r.call(session, req)
	if rep == nil {
		r.tb.Fatalf("%s waits", req.Op)
	}
	return rep
}

// waits makes a call that waits.
func (r *rig) waits(session uint64, req wire.Request) core.Ticket {
	r.tb.Helper()
	t, rep := r.call(session, req)
	if rep != nil {
		r.tb.Fatalf("%s does not wait: %s", req.Op, say{rep})
	}
	return t
}

// answer returns the answer to a call that has waited.
func (r *rig) answer(t core.Ticket) *wire.Reply {
	r.tb.Helper()
	if r.answers[t] == nil {
		r.tb.Fatalf("call %v waits", t)
	}
	return r.answers[t]
}

// pass lets time pass, as a driver does: Tick at each time that Next returns.
func (r *rig) pass(d time.Duration) {
	end := r.now + d
	for {
		at, armed := r.m.Next()
		if !armed || at > end {
			break
		}
		r.now = max(r.now, at)
		r.due()
	}
	r.now = end
	r.due()
}

func (r *rig) due() {
	r.m.Tick(r.now)
	for session, req, ok := r.m.Stalled(r.now); ok; session, req, ok = r.m.Stalled(r.now) {
		r.m.Apply(r.now, session, req, new(wire.Reply))
	}
	r.collectAnswers()
}

// crew is the ranks of a group, each with its own session.
type crew struct {
	*rig
	sessions []uint64
	gen      uint64
}

func newCrew(tb testing.TB, n int) *crew { return newCrewOn(newRig(tb), "world", n) }

func newCrewOn(r *rig, name string, n int) *crew {
	c := &crew{rig: r}
	for range n {
		c.sessions = append(c.sessions, r.session())
	}
	c.gen = c.join(name)
	return c
}

func (c *crew) join(name string) uint64 {
	var last *wire.Reply
	for rank := range c.sessions {
		_, last = c.call(c.sessions[rank], c.joining(name, rank))
	}
	if last == nil || last.Code != wire.CodeOK {
		c.tb.Fatalf("join: %v", last)
	}
	return last.Rev
}

func (c *crew) joining(name string, rank int) wire.Request {
	return wire.Request{Op: wire.OpJoin, Value: fmt.Appendf(nil, "member %d", rank), Group: wire.Contribution{
		Group: name, Run: "run", Rank: rank, Size: len(c.sessions), Label: fmt.Sprintf("pid %d", rank),
	}}
}

// cast casts rank's vote for v.
func (c *crew) cast(rank int, v wire.Contribution, payload string) (core.Ticket, *wire.Reply) {
	c.tb.Helper()
	return c.call(c.sessions[rank], c.voting(rank, v, payload))
}

func (c *crew) voting(rank int, v wire.Contribution, payload string) wire.Request {
	v.Generation, v.Rank = c.gen, rank
	req := wire.Request{Op: wire.OpCollect, Group: v}
	if payload != "" {
		req.Value = []byte(payload)
	}
	return req
}

// timesOut makes a call that fails after a second, and returns its failure.
func (c *crew) timesOut(req wire.Request) *wire.Failure {
	c.tb.Helper()
	req.Timeout = time.Second
	ticket := c.waits(c.sessions[req.Group.Rank], req)
	c.pass(time.Second)
	return c.answer(ticket).Failure
}

func (c *crew) request(op wire.Op, rank int) wire.Request {
	return wire.Request{Op: op, Group: wire.Contribution{Generation: c.gen, Rank: rank}}
}

// sending is a message of rank 0 to rank 1.
func (c *crew) sending() wire.Request {
	req := c.request(wire.OpSend, 0)
	req.Group.Root, req.Value = 1, []byte("message")
	return req
}

func (c *crew) asking(src, dst int) wire.Request {
	req := c.request(wire.OpRecv, dst)
	req.Group.Root, req.Group.Seq = src, 1
	return req
}

func barrier(seq uint64) wire.Contribution {
	return wire.Contribution{Verb: "barrier", Seq: seq, Root: -1, Want: wire.WantNothing}
}

func allGather() wire.Contribution {
	return wire.Contribution{Verb: "allgather", Seq: 1, Root: -1, Want: wire.WantAll}
}

func broadcast(seq uint64, root int) wire.Contribution {
	return wire.Contribution{Verb: "broadcast", Seq: seq, Root: root, RootOnly: true, Want: int32(root)}
}

func isCode(tb testing.TB, rep *wire.Reply, want wire.Code) {
	tb.Helper()
	switch {
	case rep == nil:
		tb.Fatalf("it waits, and should be %s", want)
	case rep.Code != want:
		tb.Fatalf("%s, not %s", say{rep}, want)
	}
}

func same[T comparable](tb testing.TB, what string, got, want T) {
	tb.Helper()
	if got != want {
		tb.Fatalf("%s: %v, not %v", what, got, want)
	}
}
