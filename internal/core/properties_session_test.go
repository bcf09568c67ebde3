package core_test

import (
	"bytes"
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// The properties of sessions, as the auditor and the clients check them. A restart is the old
// server's log, applied again by a new machine: the auditor starts anew too, so all other
// properties are also checked after a restart, and during the replay.

// promises are what clients have received: they hold over restarts.
type promises struct {
	numbered   []promise
	rev        uint64 // the highest that a client has seen
	generation uint64
	outcomes   map[outcomeKey][]byte
	leases     map[uint64]core.Time // until when their time to live does not end them
}

type promise struct {
	session, number uint64
	said            []byte
}

type outcomeKey struct {
	gen     uint64
	channel string
	use     int // of the channel's name
	seq     uint64
}

// delivered is called when a caller has received its answer.
func (w *world) delivered(cl *call, rep *wire.Reply) {
	p := &w.promises
	switch {
	case cl.number > 0 && cl.refusal == wire.CodeOK && w.durable:
		p.numbered = append(p.numbered, promise{cl.session, cl.number, wire.AppendReply(nil, wire.OpSkip, 0, rep)})
	case cl.req.Op == wire.OpJoin && rep.Code == wire.CodeOK:
		p.generation = max(p.generation, rep.Rev)
	}
	switch cl.req.Op {
	case wire.OpGrant, wire.OpKeepAlive:
		if l := w.audit.leases[max(cl.req.Lease, uint64(rep.N))]; l != nil && rep.Code == wire.CodeOK && !cl.repeated {
			p.leases[l.id] = max(p.leases[l.id], cl.at+l.ttl)
		}
	case wire.OpGet, wire.OpSet, wire.OpAdd, wire.OpSwap, wire.OpAppend, wire.OpList, wire.OpWatch:
		p.rev = max(p.rev, rep.Rev)
	case wire.OpCollect:
		c1SameOutcomeForGood(w, cl, rep)
		c6BarrierMeans(cl, rep)
	}
}

// c1SameOutcomeForGood checks C1 over restarts: all outcomes of a record that are delivered are the
// same, whichever server sent them.
func c1SameOutcomeForGood(w *world, cl *call, rep *wire.Reply) {
	if cl.record == nil || cl.refusal != wire.CodeOK || cl.vote.kind == lateOther || rep.Code != wire.CodeOK && rep.Failure == nil {
		return
	}
	c := &cl.req.Group
	key := outcomeKey{c.Generation, c.Channel, cl.record.ch.use, c.Seq}
	got := canonical(rep)
	if before := w.promises.outcomes[key]; before != nil && !bytes.Equal(before, got) {
		breaks("C1 all delivered outcomes of a record are equal", "%s: %q, before it was %q", cl, got, before)
	}
	w.promises.outcomes[key] = got
}

// s1AppliedOnce checks S1: each number is applied exactly once, in order, without gaps; any other
// number is refused.
func s1AppliedOnce(s *known, cl *call, rep *wire.Reply) {
	if rep.Code == wire.CodeFull && rep.Failure == nil || cl.number != s.last {
		breaks("S1 each number is carried out once, in order", "%s: %s; the last was %d", cl, say{rep}, s.last)
	}
}

// s2RepliesAreKept checks S2: the answer to a number is that of its application, however often it
// is sent.
func s2RepliesAreKept(s *known, cl *call, rep *wire.Reply, said []byte) {
	if before := s.answers[cl.number]; !bytes.Equal(before, said) {
		breaks("S2 each reply for n is that of its application", "%s: %s is %q; it was %q", cl, say{rep}, said, before)
	}
}

// s3AcknowledgedSurvives checks S3: an acknowledged request survives a kill of the server, with its
// answer.
func s3AcknowledgedSurvives(w *world) {
	const p = "S3 acknowledged ⇒ survives"
	a := w.audit
	for _, x := range w.promises.numbered {
		s := a.sessions[x.session]
		switch {
		case s == nil && a.lost[x.session] == wire.CodeOK:
			breaks(p, "session %d, which had request %d acknowledged, was never there", x.session, x.number)
		case s == nil || x.number <= s.acked:
		case x.number > s.last:
			breaks(p, "session %d: request %d was acknowledged, the last one is %d", x.session, x.number, s.last)
		case !bytes.Equal(s.answers[x.number], x.said):
			breaks(p, "session %d: request %d was answered %q, now it is %q", x.session, x.number, x.said, s.answers[x.number])
		}
	}
	for id, until := range w.promises.leases {
		if l := a.leases[id]; l != nil && l.ends.at < until {
			breaks("S9 no lease ends before its time", "lease %d ends at %v, its holder got %v", id, l.ends.at, until)
		}
	}
	if a.keys.rev < w.promises.rev || a.lastGen < w.promises.generation {
		breaks("S8 no reply shows what is not durable", "revision %d, seen was %d; generation %d, seen was %d", a.keys.rev, w.promises.rev, a.lastGen, w.promises.generation)
	}
}

// s3ReplayIsTheSame checks S3: a replay gives byte for byte the same answers as the first run, so
// that delivered answers still hold.
func s3ReplayIsTheSame(i int, e *logged, before []uint64) {
	if !slices.Equal(before, e.answers) {
		breaks("S3 a replay is the same", "input %d (%s) had answers %x, and now %x", i, e.cl, before, e.answers)
	}
}

// s4NothingFromBefore checks S4: after a resume no request from an older connection is applied.
// (After a session has failed none is either: it is refused, as arrives checks.)
func s4NothingFromBefore(w *world, c *conn, cl *call) {
	if w.conns[c.serves] != c {
		breaks("S4 nothing from an older connection is carried out", "%s comes over a connection of session %d that is not its last", cl, c.serves)
	}
}

// s4WaitsOn checks S4: a waiting call that is sent again continues to wait.
func s4WaitsOn(cl *call, answered bool, rep *wire.Reply) {
	if answered {
		breaks("S4 a call that comes again waits on", "%s: %s", cl, say{rep})
	}
}

// s5KeptReplies checks S5: a session keeps no more answers than a client may leave unacknowledged,
// and no fewer than it may ask for.
func s5KeptReplies(a *audit, session uint64) {
	n := a.w.m.Kept(session)
	if n > a.w.bounds.Unacked {
		breaks("S5 kept replies ≤ window", "%d of %d", n, a.w.bounds.Unacked)
	}
	if s := a.sessions[session]; s != nil && n != len(s.answers) {
		breaks("S5 kept replies are those that are not acknowledged", "session %d: %d, there are %d", session, n, len(s.answers))
	}
}

// s6TakenUp checks S6: an existing session is resumed for any client with its token: "unknown
// session" ⇒ it failed, or never existed.
func s6TakenUp(s *known, cl *call, rep *wire.Reply) {
	if uint64(rep.N) != s.id || !bytes.Equal(rep.Value, s.token) {
		breaks("S6 unknown session ⇒ it was lost", "session %d is there, %s has opened %d", s.id, cl, rep.N)
	}
}

// s6New checks S6: it is resumed for no other client. A new session has a number that none had
// before.
func s6New(a *audit, cl *call, rep *wire.Reply) {
	id := uint64(rep.N)
	if a.sessions[id] != nil || a.lost[id] != wire.CodeOK || id == core.Local {
		breaks("S6 a session is taken up by its token alone", "%s has session %d", cl, id)
	}
	if !bytes.Equal(rep.Value, cl.req.Token) {
		breaks("S6 a session is taken up by its token alone", "%s has the token %x, not %x", cl, rep.Value, cl.req.Token)
	}
}

// s7LeasesEnd checks S7: a lease ends once, by its time, its session or its owner, and its entries
// with it: they are invisible from then on, and the next Tick removes them.
func s7LeasesEnd(a *audit) {
	if n := a.w.m.Leases(); n != len(a.leases) {
		breaks("S7 a lease ends once", "the machine has %d leases, there are %d", n, len(a.leases))
	}
	if n := a.w.m.Keys(); n != len(a.keys.entries) {
		breaks("S7 entries end with their lease", "the machine has %d entries, there are %d", n, len(a.keys.entries))
	}
}

// s8NothingBeyond checks S8: no reply shows state beyond the durable position.
func s8NothingBeyond(w *world, pos int, cl *call) {
	if w.durable && pos > w.synced && !broke.hold {
		breaks("S8 no reply shows what is not durable", "%s shows position %d, %d is durable", cl, pos, w.synced)
	}
}

// s9NoneTooEarlyNorTooLate checks S9: no session fails, and no lease ends, before its time, counted
// while a server runs; no client that has reconnected in time is reported as failed. Nor does it
// take longer.
func s9NoneTooEarlyNorTooLate(a *audit) {
	if n := a.w.m.SessionCount(); n != len(a.sessions) {
		breaks("S9 a session is lost when its grace has passed, and not before", "the machine has %d sessions, there are %d", n, len(a.sessions))
	}
}
