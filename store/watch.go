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
	if r, ok := s.Engine.(*Relay); ok { // the store looks after its peers
		r.lookAround(late)
		return
	}
	var awaited map[uint64]bool
	m, isMemory := s.Engine.(*Memory)
	if isMemory {
		awaited = m.awaited()
		late = m.stalled() || late
	}
	var quiet, relays []*conn
	s.mu.Lock()
	for c := range s.conns {
		if c.heard.Swap(false) || c.reads() || late {
			c.silent, c.asked = 0, 0
			c.unheard.Store(0)
			relays = append(relays, c)
			continue
		}
		c.silent++
		c.unheard.Store(int64(c.silent))
		if c.session.Load() != 0 {
			quiet = append(quiet, c)
		}
	}
	isMemory = isMemory && s.branches > 0
	s.mu.Unlock()
	most := int(s.Limits.withDefaults().Silence / look)
	for _, c := range quiet {
		waited := awaited[c.session.Load()] || isMemory && m.awaitedThrough(c, awaited)
		switch judge(c.silent, &c.asked, most, waited, c.hello.Timeout) {
		case giveUp:
			c.lose()
		case ask:
			c.probe()
		}
	}
	if isMemory {
		for _, c := range relays { // while a relay itself is silent, its branches cannot be heard
			c.lookAtBranches(m, awaited, most, late)
		}
	}
}

// judgement is what becomes of a peer that is silent.
type judgement int

const (
	leave judgement = iota
	ask
	giveUp
)

// judge judges a peer by how often it has not been heard, and been asked.
func judge(silent int, asked *int, most int, waited bool, patience time.Duration) judgement {
	switch {
	case silent >= most || waited && *asked >= max(asksAwaited, int(patience/look)):
		return giveUp
	case waited || silent%max(most/3, 1) == 0:
		*asked++ // who has merely said nothing is asked first
		return ask
	}
	return leave
}

// awaitedThrough reports whether somebody waits for a session that comes through c.
func (m *Memory) awaitedThrough(c *conn, awaited map[uint64]bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.trunk == nil {
		return false
	}
	for _, b := range c.trunk.branches {
		if awaited[b.session] {
			return true
		}
	}
	return false
}

// lookAtBranches is lookAround for the branches of a relay that has been heard.
func (c *conn) lookAtBranches(m *Memory, awaited map[uint64]bool, most int, late bool) {
	var asks []wire.BranchCall
	var lost []*branch
	m.mu.Lock()
	if c.trunk != nil {
		for _, b := range c.trunk.branches {
			if b.heard || late {
				b.heard, b.silent, b.asked = false, 0, 0
				continue
			}
			b.silent++
			switch judge(b.silent, &b.asked, most, awaited[b.session], b.patience) {
			case giveUp:
				lost = append(lost, b)
			case ask:
				asks = append(asks, wire.BranchCall{Branch: b.number})
			}
		}
	}
	m.mu.Unlock()
	if len(asks) > 0 {
		c.out.Append(func(to []byte) []byte {
			return wire.AppendReply(wire.AppendBranch(to, 0, asks...), wire.OpProbe, 0, new(wire.Reply))
		})
		c.out.Flush()
	}
	for _, b := range lost {
		c.server.log().Warn("peer lost", "peer", c.peer, "who", clip(b.who), "branch", b.number, "silent", time.Duration(b.silent)*look)
		m.detach(b.session, b, wire.OpLost, 0)
		b.close()
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
	c.gaveUp = true
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
