package core_test

import (
	"strconv"
	"time"

	"github.com/muster-pg/muster/wire"
)

// outbox sends the messages of a flow.
type outbox struct {
	mb   *member
	gen  uint64
	use  *use
	flow flow
	sent int
}

func (o *outbox) next() {
	w := o.mb.p.w
	w.after(w.between(0, time.Millisecond)+w.lateness(), o.send)
}

func (o *outbox) send() {
	mb := o.mb
	w := mb.p.w
	if !mb.in(o.gen) {
		return
	}
	if o.sent == o.flow.count {
		o.use.done()
		return
	}
	o.sent++
	w.turn++
	value := []byte("message " + strconv.FormatUint(w.turn, 10))
	if w.chance(0.3) { // the next message does not wait for this answer
		o.put(value, func() {})
		o.next()
		return
	}
	o.put(value, o.next)
}

// put sends a message. If there is no space it waits for it; another sender may then be faster.
func (o *outbox) put(value []byte, then func()) {
	mb := o.mb
	w := mb.p.w
	if !mb.in(o.gen) {
		return
	}
	c := mb.contribution()
	c.Root, c.Channel, c.Type = o.flow.dst, o.flow.tag, "text"
	timeout, cancel := w.timeouts()
	mb.p.callWithin(wire.Request{Op: wire.OpSend, Group: c, TTL: o.flow.ttl, Value: value}, timeout, cancel, func(rep *wire.Reply) {
		if rep == nil || rep.Code != wire.CodeWouldBlock || !mb.in(o.gen) {
			then()
			return
		}
		c := mb.contribution()
		c.Root, c.Channel = o.flow.dst, o.flow.tag
		req := wire.Request{Op: wire.OpSendReady, Group: c, Length: int64(len(value))}
		cancel := time.Duration(0)
		req.Timeout, cancel = w.timeouts()
		mb.p.call(req, cancel, func(rep *wire.Reply) {
			if rep != nil && rep.Code == wire.CodeOK {
				w.tally["senders notified of space"]++
				o.put(value, then)
				return
			}
			then()
		})
	})
}

// inbox receives the messages of a flow.
type inbox struct {
	mb    *member
	gen   uint64
	use   *use
	flow  flow
	taken uint64
	tries int
}

func (in *inbox) next() {
	w := in.mb.p.w
	think := w.between(0, time.Millisecond)
	if w.chance(0.2) {
		think = w.between(0, 10*time.Millisecond)
	}
	w.after(think, in.recv)
}

func (in *inbox) recv() {
	mb := in.mb
	w := mb.p.w
	if !mb.in(in.gen) {
		return
	}
	if in.taken == uint64(in.flow.count) || in.tries > 2 {
		in.use.done()
		return
	}
	if w.chance(w.odds.rogue) || w.chance(w.odds.repeat) { // any position, not only the next
		in.ask(uint64(w.upTo(int(in.taken)+4)), func(*wire.Reply) {})
	}
	in.ask(in.taken+1, func(rep *wire.Reply) {
		switch {
		case rep != nil && (rep.Code == wire.CodeOK || rep.Code == wire.CodeExpired):
			if in.taken++; w.chance(0.3) {
				in.acknowledge()
			}
		default:
			in.tries++
		}
		in.next()
	})
}

// acknowledge reports to the store that the messages received so far need not be kept, or some that were
// not received.
func (in *inbox) acknowledge() {
	w := in.mb.p.w
	c := in.mb.contribution()
	c.Root, c.Channel, c.Seq = in.flow.src, in.flow.tag, in.taken
	if w.chance(w.odds.rogue) {
		c.Seq = uint64(w.upTo(int(in.taken) + 4))
	}
	in.mb.p.call(wire.Request{Op: wire.OpAck, Group: c}, 0, func(*wire.Reply) {})
}

func (in *inbox) ask(pos uint64, done func(*wire.Reply)) {
	w := in.mb.p.w
	c := in.mb.contribution()
	c.Root, c.Channel, c.Seq = in.flow.src, in.flow.tag, pos
	req := wire.Request{Op: wire.OpRecv, Group: c}
	cancel := time.Duration(0)
	if req.Timeout, cancel = w.timeouts(); req.Timeout == 0 {
		req.Timeout = w.between(time.Millisecond, 100*time.Millisecond)
	}
	in.mb.p.call(req, cancel, done)
}

// errands is what a process does with keys, one operation at a time.
type errands struct {
	p      *proc
	s      *session
	left   int
	leases []uint64
}

func (e *errands) next() {
	w := e.p.w
	if e.left--; e.left < 0 {
		return
	}
	w.after(w.between(0, 3*time.Millisecond), func() {
		if e.p.dead || w.ending || e.s != e.p.session {
			return
		}
		cancel := time.Duration(0)
		if w.chance(0.1) || w.chance(w.odds.cancel) {
			cancel = w.between(0, 5*time.Millisecond) + 1
		}
		e.ask(e.request(), cancel)
		if w.chance(w.odds.hasty) {
			e.next()
		}
	})
}

// ask makes a call.
func (e *errands) ask(req wire.Request, cancel time.Duration) {
	e.p.call(req, cancel, func(rep *wire.Reply) {
		switch {
		case rep == nil:
		case rep.Code == wire.CodeOK && req.Op == wire.OpPop:
			k3GivenOnce(e.p.w, rep)
		case rep.Code == wire.CodeOK && req.Op == wire.OpGrant:
			e.leases = append(e.leases, uint64(rep.N))
			for range e.p.w.upTo(4) {
				e.p.call(wire.Request{Op: wire.OpSet, Key: e.key(), Value: e.value(), Lease: uint64(rep.N)}, 0, func(*wire.Reply) {})
			}
		}
		e.next()
	})
}

// lease returns a lease: mostly one of the client's own, and mostly one that has not ended.
func (e *errands) lease() uint64 {
	w := e.p.w
	if len(e.leases) == 0 || w.chance(w.odds.rogue) {
		return uint64(1 + w.upTo(5))
	}
	return e.leases[w.upTo(len(e.leases))]
}

func (e *errands) key() string { return "key " + strconv.Itoa(e.p.w.upTo(4)) }

func (e *errands) value() []byte {
	w := e.p.w
	if w.chance(0.5) {
		return strconv.AppendInt(nil, int64(w.upTo(3)), 10)
	}
	w.turn++
	return strconv.AppendUint([]byte("value "), w.turn, 10)
}

func (e *errands) request() wire.Request {
	w := e.p.w
	req := wire.Request{Key: e.key()}
	switch w.upTo(21) {
	case 18:
		w.turn++
		req.Op, req.Value = wire.OpPush, strconv.AppendUint([]byte("item "), w.turn, 10)
	case 19, 20:
		req.Op = wire.OpPop
	case 10, 11:
		req.Op, req.TTL = wire.OpGrant, w.between(time.Millisecond, 15*time.Millisecond)
	case 12, 14, 15:
		req.Op, req.Lease = wire.OpKeepAlive, e.lease()
	case 13:
		if req.Op, req.Lease = wire.OpRevoke, e.lease(); w.chance(0.5) {
			req.Op, req.Value = wire.OpSet, e.value()
		}
	case 0, 1:
		req.Op, req.Value = wire.OpSet, e.value()
		if w.chance(0.4) {
			req.TTL = w.between(time.Millisecond, 20*time.Millisecond)
		}
		if len(e.leases) > 0 && w.chance(0.7) {
			req.Lease = e.lease()
		}
	case 2, 3:
		req.Op, req.Keys, req.Timeout = wire.OpWait, []string{e.key(), e.key()}[:1+w.upTo(2)], w.between(0, 30*time.Millisecond)
		if w.chance(0.3) {
			req.Keys[0] = queueHead(req.Keys[0])
		}
	case 4:
		req.Op, req.Add = wire.OpAdd, int64(w.upTo(5))-2
	case 5:
		req.Op, req.Value, req.Expect = wire.OpSwap, e.value(), e.value()
		switch w.upTo(5) {
		case 0:
			req.Value = nil
		case 1:
			req.Expect = nil
		case 2:
			req.Expect = []byte{}
		}
	case 6:
		if req.Op = wire.OpAppend; w.chance(0.7) {
			req.Value = e.value()
		}
	case 7:
		req.Op, req.Keys = wire.OpDelete, []string{e.key(), e.key()}
	case 8, 16:
		req.Op, req.Key, req.Timeout = wire.OpWatch, []string{"", "key", "key 1"}[w.upTo(3)], w.between(0, 30*time.Millisecond)
		if rev := w.audit.keys.rev; w.chance(0.8) {
			req.After = max(1, rev-min(rev, uint64(w.upTo(6))))
		}
	default:
		req.Op = wire.OpGet
		if w.chance(0.3) {
			req.Op, req.Limit = wire.OpList, int64(w.upTo(3))
			req.Key = "key"
		}
	}
	return req
}
