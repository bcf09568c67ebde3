package store

import (
	"time"

	"github.com/muster-pg/muster/wire"
)

// A peer that vanishes without an end of its connection, or hangs, is found by asking. Who is waited for is asked within a fifth of
// a second, and lost if it has not answered 0.6 seconds later; others have more time.
const (
	look        = 200 * time.Millisecond // how often the server looks who has been silent
	asksAwaited = 3                      // in vain, a look apart, until a peer is lost that others wait for
)

// watch looks after the peers until the server stops.
func (s *Server) watch() {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ticker.C:
		case <-s.stopped:
			return
		}
		late := time.Since(last) > look+lateness
		last = time.Now()
		s.lookAround(late)
	}
}

// lookAround asks those who are silent, and gives up those who have been so for too long. If this process itself stood still, nobody
// was silent: what they have sent is still to be read.
func (s *Server) lookAround(late bool) {
	var awaited map[uint64]bool
	if m, ok := s.Engine.(*Memory); ok {
		awaited = m.awaited()
		late = m.stalled() || late
	}
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		if c.heard.Swap(false) || c.reads() || late {
			c.silent, c.asked = 0, 0
			c.unheard.Store(0)
			continue
		}
		c.silent++
		c.unheard.Store(int64(c.silent))
		if c.session.Load() != 0 {
			conns = append(conns, c)
		}
	}
	s.mu.Unlock()
	most := int(s.Limits.withDefaults().Silence / look)
	for _, c := range conns {
		waited := awaited[c.session.Load()]
		switch {
		case c.silent >= most || waited && c.asked >= max(asksAwaited, int(c.hello.Timeout/look)):
			c.lose()
		case waited || c.silent%max(most/3, 1) == 0:
			c.asked++ // who has merely said nothing is asked first
			c.probe()
		}
	}
}

// reads reports whether the peer has taken some of its answers since this was last asked. One that does has its
// requests held back while it is behind, and is not silent.
func (c *conn) reads() bool {
	c.mu.Lock()
	out := c.out
	c.mu.Unlock()
	if out == nil {
		return false
	}
	waiting, taken := out.Backlog()
	more := waiting > unreadPause && taken != c.taken
	c.taken = taken
	return more
}

// lose ends a silent peer's session: it cannot be taken up again.
func (c *conn) lose() {
	c.server.log().Warn("peer lost", "peer", c.peer, "who", c.hello.Key, "silent", time.Duration(c.silent)*look)
	session := c.session.Load()
	if m, ok := c.server.Engine.(*Memory); ok {
		m.detach(session, c, wire.OpLost, 0)
	} else {
		c.server.loseSession(session)
	}
	c.close()
}

// loseSession ends a session of an engine that is no Memory.
func (s *Server) loseSession(id uint64) {
	s.mu.Lock()
	es := s.sessions[id]
	s.mu.Unlock()
	if es != nil {
		es.lose()
		s.forgetSession(es)
	}
}
