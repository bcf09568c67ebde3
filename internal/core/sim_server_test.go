package core_test

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// server drives the machine: it has connections, and if it is durable a log of the machine's
// inputs.
type server struct {
	m      *core.Machine
	bounds core.Bounds
	req    wire.Request     // the request that is being applied; a server reuses it
	conns  map[uint64]*conn // by session: frames of any other connection are no longer read
	grace  time.Duration    // the reconnect timeout of a session; 0: it fails at once
	// the world's time less the machine's, which stands still while there is no server
	lag   core.Time
	tardy core.Time // how late the next Tick is

	durable   bool
	down      bool
	replaying bool
	log       []logged
	synced    int // the length of log that is certain to survive
	syncing   bool
	held      []held
	last      string // the machine's state when it was killed, if nothing was lost

	checkpoint *checkpoint
	snapshots  int
	step       *logged // the input that is being applied
	restarts   int
}

// logged is one input of the machine.
type logged struct {
	kind    eventKind
	at      core.Time
	session uint64
	cl      *call  // of a request
	frame   []byte // as it came
	grace   core.Time
	logs    bool   // it belongs in the log
	event   []byte // as it is in the log
	answers []uint64
}

type eventKind int

const (
	request eventKind = iota
	tick
	advance
	restart
)

// held is an answer that shows state which is not durable yet.
type held struct {
	pos  int
	send func()
}

// clock returns the machine's time.
func (w *world) clock() core.Time { return w.now - w.lag }

// broke selects the rule of the server that a test breaks, to check that it is needed.
var broke struct {
	fence, hold, dueFirst bool
	forgets               wire.Op // requests of this kind are not logged
	forgetsTicks          bool
}

// logs reports whether the request that was applied last belongs in the log.
func (w *world) logs(op wire.Op) bool { return w.durable && w.m.Logs(op) && op != broke.forgets }

// recalls reports whether the log has what a call of this kind waits for.
func (w *world) recalls(op wire.Op) bool {
	switch op {
	case wire.OpWait, wire.OpWatch, wire.OpFollow, wire.OpGet, wire.OpList, broke.forgets:
		return false
	}
	return w.durable
}

// tick is the server's timer.
func (w *world) tick() {
	if w.m.Due(w.clock()) {
		w.record(logged{kind: tick, at: w.clock(), logs: w.durable && !broke.forgetsTicks})
	}
	w.audit.now = w.clock()
	for session, req, ok := w.m.Stalled(w.clock()); ok; session, req, ok = w.m.Stalled(w.clock()) {
		w.control(session, *req)
	}
	t2StallsEnd(w.audit)
}

// apply applies a request to the machine. Events that are due come first: a request that is not
// logged must not cause them.
func (w *world) apply(cl *call, session uint64, req *wire.Request) {
	w.applyFrame(cl, session, wire.AppendRequest(nil, req))
}

func (w *world) applyFrame(cl *call, session uint64, frame []byte) {
	if w.m.Overdue(w.clock()) && !broke.dueFirst {
		w.record(logged{kind: advance, at: w.clock(), logs: w.durable})
	}
	w.record(logged{at: w.clock(), session: session, cl: cl, frame: frame})
}

// record applies an input, and logs it if the machine may differ without it.
func (w *world) record(e logged) {
	w.play(&e)
	if e.logs {
		w.log = append(w.log, e)
		w.sync()
	}
}

// play applies one input to the machine, now or again after a restart. Then it overwrites the bytes
// of the frame, as a server does that reads into the same buffer again.
func (w *world) play(e *logged) {
	w.audit.now, w.step = e.at, e
	if e.kind == request {
		w.playRequest(e)
		return
	}
	w.trace.mix(1, uint64(e.kind), uint64(e.at))
	e.event = e.made()
	w.audit.starts()
	switch e.kind {
	case tick:
		w.audit.keys.expire(w.audit)
		w.m.Tick(e.at)
	case advance:
		w.m.Advance(e.at)
	case restart:
		w.audit.restarts(e.grace)
		w.m.Restart(e.at, e.grace)
	}
	w.effects(nil, nil)
	w.audit.settled()
}

// made returns the encoding of an event that is not a request.
func (e *logged) made() []byte {
	switch e.kind {
	case tick:
		return core.AppendTick(nil, e.at)
	case advance:
		return core.AppendAdvance(nil, e.at)
	}
	return core.AppendRestart(nil, e.at, e.grace)
}

func (w *world) playRequest(e *logged) {
	frame := bytes.Clone(e.frame)
	h, err := wire.ParseHeader(frame, wire.MaxBody)
	if err == nil {
		err = w.req.Parse(h, frame[wire.HeaderLen:])
	}
	if err != nil {
		breaks("N2 what is encoded parses", "%s: %v", h.Op, err)
	}
	if h.Op.KeepsValue() {
		w.req.Value = bytes.Clone(w.req.Value)
	}
	w.carryOut(e, e.cl, e.session)
	for i := range frame {
		frame[i] = 0xAA
	}
}

func (w *world) carryOut(e *logged, cl *call, session uint64) {
	req := &w.req
	w.trace.mix(2, uint64(w.audit.now), session, req.ID, uint64(req.Op), req.Number)
	if w.trace.verbose {
		w.trace.note(w, "session %d → %s", session, cl.as(req))
	}
	again := w.audit.arrives(cl, session, req)
	var rep wire.Reply
	answered := w.m.Apply(w.audit.now, session, req, &rep)
	if e.logs = w.logs(req.Op); e.logs && !w.replaying {
		e.event = core.AppendApply(nil, e.at, session, req)
	}
	switch {
	case req.Op == wire.OpCancel, req.Op == wire.OpGoodbye && rep.Code == wire.CodeOK, req.Op == wire.OpLost, req.Op == wire.OpStalled:
		cl = nil
	case again:
		s4WaitsOn(cl, answered, &rep)
		cl = nil
	case !answered:
		w.audit.waits(cl)
		cl = nil
	}
	w.effects(cl, &rep)
	w.audit.settled()
}

// effects sends the answers of a step: to cl, if it is not nil, and to calls that waited.
func (w *world) effects(cl *call, rep *wire.Reply) {
	es := w.m.Effects()
	cls := make([]*call, len(es))
	for i, e := range es {
		cls[i] = w.audit.waiter(e)
	}
	if cl != nil {
		w.give(cl, rep)
	}
	for i, e := range es {
		if cls[i] != nil {
			w.give(cls[i], e.Reply)
		}
	}
}

// give sends an answer to its caller, once the state that it shows is durable.
func (w *world) give(cl *call, rep *wire.Reply) {
	frame := wire.AppendReply(nil, cl.req.Op, cl.req.ID, rep)
	w.trace.mix(3, cl.session)
	w.trace.mixBytes(frame)
	if w.trace.verbose {
		w.trace.note(w, "session %d ← %s: %s", cl.session, cl, say{rep})
	}
	w.audit.answered(cl, rep)
	if w.recalls(cl.req.Op) {
		w.step.answers = append(w.step.answers, hashOf(cl.session, frame))
	}
	if w.replaying {
		return
	}
	c := w.conns[cl.session]
	if cl.req.Op == wire.OpHello {
		c = cl.conn
		w.bind(c, uint64(rep.N))
	}
	if c == nil {
		return // no connection: the client will ask again
	}
	own, pos := *rep, len(w.log)
	if w.step.logs {
		pos++
	}
	send := func() { c.answer(cl, &own, frame, pos) }
	if w.durable && w.synced < pos && !broke.hold {
		w.held = append(w.held, held{pos, send})
		return
	}
	send()
}

func hashOf(session uint64, frame []byte) uint64 {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64(nil, session))
	h.Write(frame)
	return h.Sum64()
}

// bind makes c the connection of a session. The previous one is no longer read.
func (w *world) bind(c *conn, session uint64) {
	if old := w.conns[session]; old != nil {
		old.fenced = true
	}
	c.serves = session
	w.conns[session] = c
}

// sync makes the logged inputs durable, a little later.
func (w *world) sync() {
	if w.syncing || w.replaying {
		return
	}
	w.syncing = true
	d := w.between(0, 300*time.Microsecond)
	if w.chance(0.3) {
		d = w.between(0, 5*time.Millisecond)
	}
	upTo, log := len(w.log), w.restarts
	w.after(d, func() {
		if log != w.restarts || w.down {
			return
		}
		w.syncing, w.synced = false, upTo
		n := 0
		for n < len(w.held) && w.held[n].pos <= upTo {
			w.held[n].send()
			n++
		}
		w.held = w.held[n:]
		if w.synced < len(w.log) {
			w.sync()
		}
	})
}

// kill ends the server. Inputs that are not durable may be lost, and all connections are.
func (w *world) kill() {
	if w.down || w.ending {
		return
	}
	survives := w.synced + w.upTo(len(w.log)-w.synced+1)
	w.trace.note(w, "the server is killed; it had done %d, of which %d survive", len(w.log), survives)
	if w.last = ""; survives < len(w.log) {
		w.tally["restarts with a lost tail"]++
	} else {
		w.last = w.m.Portrait()
	}
	w.down, w.held, w.syncing = true, nil, false
	w.restarts++
	w.tally["restarts"]++
	clear(w.log[survives:])
	w.log = w.log[:survives]
	clear(w.conns)
	for _, p := range w.procs {
		for _, c := range p.links {
			c.kill()
		}
		p.links = nil
	}
	w.after(w.between(0, 8*time.Millisecond), w.restart)
}

// restart starts a new server with the old one's log.
func (w *world) restart() {
	w.trace.note(w, "the server starts again")
	w.m = core.New(core.Limits{})
	w.m.SetBounds(w.bounds)
	w.audit = newAudit(w)
	kept := w.tally
	w.tally = tally{} // a replay reaches nothing new
	w.replaying = true
	for i := range w.log {
		before := w.log[i].answers
		w.log[i].answers = nil
		w.play(&w.log[i])
		s3ReplayIsTheSame(i, &w.log[i], before)
	}
	w.replaying, w.down, w.tally = false, false, kept
	w.synced = len(w.log)
	if w.last != "" {
		s3SameState("a replay", w.m, w.last)
	}
	if m := w.restore(); m != nil {
		s3SameState("a snapshot, and a replay", m, w.m.Portrait())
		w.m = m
	} else {
		w.checkpoint = nil
	}
	w.lag = w.now - w.m.Now()
	w.checkpoints()
	s3AcknowledgedSurvives(w)
	w.record(logged{kind: restart, at: w.clock(), grace: max(w.grace, 5*time.Millisecond), logs: true})
}

// lose notifies the machine that a session has lost its connection, and why, if others may have
// lost theirs for the same reason.
func (w *world) lose(session uint64, grace time.Duration, why string) {
	req := wire.Request{Op: wire.OpLost, TTL: grace}
	if why != "" {
		req.Value = []byte(why)
	}
	w.control(session, req)
}

// control passes the machine a request of the server itself about a session.
func (w *world) control(session uint64, req wire.Request) {
	w.apply(&call{req: req}, session, &req)
}
