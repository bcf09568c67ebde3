package store

import (
	"cmp"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Failure detection. A process that ends closes its connection, which the server sees at once. A process that hangs, or a machine
// that vanishes, closes nothing: the server sends a peer that is silent liveness probes (OpProbe), which a client answers whatever
// its callers do. A peer that sends nothing for its liveness timeout, no answer to a probe either, has failed: its session ends at
// once, without the time to reconnect that a broken connection gives.

// DefaultLivenessTimeout is the liveness timeout of servers and clients that set none. A healthy process on a host with far more
// runnable threads than cores answers late, by seconds. To take it for failed ends its group, while to detect a real failure later
// costs seconds.
const DefaultLivenessTimeout = 10 * time.Second

const (
	checkInterval  = 200 * time.Millisecond // how often the server looks for peers that are silent
	livenessProbes = 3                      // how often a silent peer is probed within its timeout
	minLiveness    = livenessProbes * checkInterval
	maxLiveness    = time.Hour
)

// livenessTimeout returns the first of the timeouts that is set, within what can be told and what a server accepts of a client.
func livenessTimeout(timeouts ...time.Duration) time.Duration {
	return min(max(cmp.Or(cmp.Or(timeouts...), DefaultLivenessTimeout), minLiveness), maxLiveness)
}

// liveness counts for how long a peer has been silent.
type liveness struct {
	missed int // looks since something came
}

// silence returns for how long the peer has been silent.
func (l *liveness) silentFor() time.Duration { return time.Duration(l.missed) * checkInterval }

// judgement is what follows from a look at a silent peer.
type action int

const (
	leave action = iota
	probe
	fail
)

// count counts one more look at a peer that has sent nothing since the one before, and says what follows.
func (l *liveness) miss(timeout time.Duration) action {
	l.missed++
	most := int((timeout + checkInterval - 1) / checkInterval)
	switch {
	case l.missed >= most:
		return fail
	case l.missed%(most/livenessProbes) == 0:
		return probe
	}
	return leave
}

// watch looks after the peers until the server stops.
func (s *Server) watchPeers() {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ticker.C:
		case <-s.stopped:
			return
		}
		late := time.Since(last) > checkInterval+lateness
		last = time.Now()
		s.Engine.checkPeers(s, late)
	}
}

// refuses implements Backend.
func (m *Memory) checkServer(*Server) string { return "" }

// lookAround implements Backend: it probes the peers that are silent, and gives up those that have been so for their liveness timeout. If
// this process itself stood still (late), no peer counts as silent: what they have sent is still to be read.
func (m *Memory) checkPeers(s *Server, late bool) {
	late = m.stalled() || late
	var silent, slow, relays, waiting []*conn
	s.mu.Lock()
	for c := range s.conns {
		reads, behind := c.readProgress()
		if c.stalled.missed++; !behind || reads || late {
			c.stalled.missed = 0
		} else if c.stalled.silentFor() >= c.limits.LivenessTimeout && c.lowOnBuffers() {
			slow = append(slow, c)
		}
		if c.received.Swap(false) || reads || late {
			c.liveness.missed = 0
			c.missedChecks.Store(0)
			relays = append(relays, c)
		} else if c.paused.Load() && !behind {
			waiting = append(waiting, c)
		} else {
			silent = append(silent, c)
		}
	}
	hasBranches := s.relayedConns > 0
	s.mu.Unlock()
	for _, c := range silent {
		c.checkPeer(false)
	}
	for _, c := range waiting {
		c.checkPeer(true)
	}
	for _, c := range slow { // whatever liveness timeout it has named
		s.log().Warn("peer cut off: it does not read, and others wait for room in the buffers", "peer", c.peer, "who", c.hello.Key, "stuck", c.stalled.silentFor())
		c.close()
	}
	if hasBranches {
		for _, c := range relays { // while a relay itself is silent, its branches cannot be heard
			c.checkRelayed(late)
		}
		for _, c := range waiting {
			c.checkRelayed(true)
		}
	}
}

// judge counts a look at c, from which nothing was read. If the server has paused reading until the log is written, the peer is not
// silent: it is probed, so that it receives something from the server, and is never given up.
func (c *conn) checkPeer(paused bool) {
	if c.session.Load() == 0 { // its handshake has limits of its own
		return
	}
	if _, taken := c.out.Backlog(); taken == 0 { // the welcome has not left
		return
	}
	what := c.liveness.miss(livenessTimeout(c.hello.Timeout, c.limits.LivenessTimeout))
	if paused {
		if what == fail {
			c.liveness.missed, what = 0, probe
		}
	} else {
		c.missedChecks.Store(int64(c.liveness.missed))
	}
	switch what {
	case fail:
		c.failPeer()
	case probe:
		c.probe()
	}
}

// lookAtBranches is lookAround for the branches of a relay that has been heard.
func (c *conn) checkRelayed(late bool) {
	m := c.memory
	var probes []wire.RelayCall
	var lost []*relayedConn
	m.mu.Lock()
	if c.stream != nil {
		for _, b := range c.stream.conns {
			if b.received || late {
				b.received, b.liveness.missed = false, 0
				continue
			}
			switch b.liveness.miss(livenessTimeout(b.timeout, c.limits.LivenessTimeout)) {
			case fail:
				lost = append(lost, b)
			case probe:
				probes = append(probes, wire.RelayCall{Conn: b.number})
			}
		}
	}
	m.mu.Unlock()
	if len(probes) > 0 {
		c.out.Append(func(to []byte) []byte { // behind welcomes of branches
			return wire.AppendReply(wire.AppendRelay(to, 0, probes...), wire.OpProbe, 0, new(wire.Reply))
		})
		c.out.Flush()
	}
	for _, b := range lost {
		c.server.log().Warn("peer lost", "peer", c.peer, "who", clip(b.name), "branch", b.number, "silent", b.liveness.silentFor())
		m.detach(b.session, b, wire.OpLost, 0)
		b.close()
	}
}

// reads reports whether many bytes wait for the peer, and whether it has taken some of them since this was last asked. One that does
// has its requests held back while it is behind, and is not silent.
func (c *conn) readProgress() (readProgress, behind bool) {
	c.mu.Lock()
	out := c.out
	c.mu.Unlock()
	if out == nil {
		return false, false
	}
	waiting, taken := out.Backlog()
	behind = waiting > maxUnread
	readProgress = behind && taken != c.sent
	c.sent = taken
	return readProgress, behind
}

// lose ends a silent peer's session: it cannot be resumed.
func (c *conn) failPeer() {
	c.server.log().Warn("peer lost", "peer", c.peer, "who", c.hello.Key, "silent", c.liveness.silentFor())
	session := c.session.Load()
	c.memory.mu.Lock()
	c.timedOut = true
	c.memory.mu.Unlock()
	c.memory.detach(session, c, wire.OpLost, 0)
	c.close()
}
