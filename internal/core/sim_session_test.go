package core_test

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/muster-pg/muster/wire"
)

// dial opens the session, or resumes it.
func (s *session) dial() {
	p := s.p
	w := p.w
	if p.dead || w.ending || s.dialing != nil || p.session != s {
		return
	}
	c := &conn{s: s}
	p.relay.opens(c)
	s.dialing = c
	p.links = append(slices.DeleteFunc(p.links, func(c *conn) bool { return c.gone && c.ended }), c)
	req := wire.Request{Op: wire.OpHello, Key: "proc", Resume: s.id, Value: s.token}
	if w.chance(w.odds.rogue) && s.id > 0 { // with another session's id
		req.Resume = uint64(1 + w.upTo(int(s.id)+1))
	}
	hello := &call{s: s, conn: c, req: req}
	w.after(c.latency(), func() {
		switch {
		case c.cut || c.ended:
		case w.down:
			c.gone, s.dialing = true, nil
			w.after(w.between(500*time.Microsecond, 3*time.Millisecond), s.dial)
		default:
			hello.req.Token = binary.LittleEndian.AppendUint64(nil, w.rng.Uint64())
			w.apply(hello, 0, &hello.req)
		}
	})
}

// opened handles the answer to the client's hello.
func (s *session) opened(c *conn, rep *wire.Reply) {
	p := s.p
	w := p.w
	if s.dialing != c || p.session != s {
		return
	}
	s.dialing = nil
	w.trace.note(w, "proc %d has session %d; it had %d", p.id, rep.N, s.id)
	if uint64(rep.N) == s.id {
		s.conn = c
		w.tally["resumed sessions"]++
		s.resume()
		return
	}
	next := p.newSession()
	next.id, next.token, next.conn = uint64(rep.N), rep.Value, c
	c.s, p.session = next, next
	p.begin()
	s.giveUp()
}

// resume sends the requests without an answer again.
func (s *session) resume() {
	for _, id := range slices.Sorted(maps.Keys(s.calls)) {
		cl := s.calls[id]
		switch {
		case cl == nil, cl.req.Number == 0 && cl.req.Op.Numbered() && !cl.over:
			continue // it waits for its number
		case cl.req.Number > 0:
			s.repeat(cl)
			continue
		case cl.over:
			s.cancel(cl)
			delete(s.calls, id)
			continue
		}
		if cl.req.Timeout > 0 {
			cl.req.Timeout = max(cl.until-s.p.w.now, time.Microsecond)
		}
		s.conn.post(cl, &cl.req)
		if cl.withdrawn {
			s.cancel(cl)
		}
	}
	s.flush()
}

// repeat sends a numbered request again, or an empty one under its number if no caller waits for
// its answer.
func (s *session) repeat(cl *call) {
	req := cl.req
	req.Acked = s.acked
	if cl.over {
		req = wire.Request{Op: wire.OpSkip, ID: req.ID, Number: req.Number, Acked: s.acked}
		s.p.w.tally["skips"]++
	}
	s.conn.post(cl, &req)
}

// again is called after the connection has broken: the client dials again, if it still has work.
func (s *session) again() {
	p := s.p
	w := p.w
	if p.dead || p.session != s {
		return
	}
	if p.tries++; p.tries > 6 || !w.chance(w.odds.again) {
		p.dead = true
		s.giveUp()
		return
	}
	w.after(w.between(0, 15*time.Millisecond), s.dial)
}

// giveUp ends all calls without a known outcome.
func (s *session) giveUp() {
	for _, id := range slices.Sorted(maps.Keys(s.calls)) {
		if cl := s.calls[id]; cl != nil {
			cl.finish(nil)
		}
	}
	clear(s.calls)
}

// send sends a call, under the next number if it needs one.
func (s *session) send(cl *call) {
	s.calls[cl.req.ID] = cl
	if cl.req.Op.Numbered() && !s.p.local {
		s.queue = append(s.queue, cl)
		s.flush()
		return
	}
	if s.conn != nil {
		s.conn.post(cl, &cl.req)
	}
}

// flush numbers the calls that wait for a number, as long as there is space for their answers.
func (s *session) flush() {
	for len(s.queue) > 0 && s.conn != nil && s.number-s.acked < uint64(s.p.w.bounds.Unacked) {
		cl := s.queue[0]
		s.queue = s.queue[1:]
		if cl.over {
			delete(s.calls, cl.req.ID)
			continue
		}
		s.number++
		cl.req.Number, cl.req.Acked = s.number, s.acked
		s.conn.post(cl, &cl.req)
		s.rogue(cl)
	}
}

// rogue sends a request under a number that is not the next one.
func (s *session) rogue(cl *call) {
	w := s.p.w
	if !w.chance(w.odds.rogue) {
		return
	}
	s.p.lastID++
	req := wire.Request{Op: wire.OpSet, ID: s.p.lastID, Key: "rogue", Value: []byte("rogue"), Number: cl.req.Number + 2 + uint64(w.upTo(2)), Acked: s.acked}
	s.conn.post(&call{s: s, req: req}, &req)
}

// received handles an answer.
func (s *session) received(cl *call, rep *wire.Reply) {
	delete(s.calls, cl.req.ID)
	if n := cl.req.Number; n > 0 {
		for s.answered[n] = true; s.answered[s.acked+1]; s.acked++ {
			delete(s.answered, s.acked+1)
		}
		s.flush()
	}
	cl.finish(rep)
}

// cancel reports to the store that no caller waits for it.
func (s *session) cancel(cl *call) {
	if s.conn != nil {
		req := wire.Request{Op: wire.OpCancel, ID: cl.req.ID, Group: wire.Contribution{No: cl.why}}
		s.conn.post(&call{s: s, req: req}, &req)
	}
}
