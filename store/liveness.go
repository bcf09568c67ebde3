package store

import (
	"cmp"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Failure detection. A process that ends closes its connection, which the server detects at once. A
// process that hangs, or a machine that vanishes, closes nothing: the server sends liveness probes
// (OpProbe) to a peer that sends nothing, which a client answers whatever its callers do. A peer
// that sends nothing for its liveness timeout, not even an answer to a probe, has failed: its
// session ends at once, without the reconnect timeout that a broken connection gets.

// DefaultLivenessTimeout is the liveness timeout of servers and clients that set none. A healthy
// process on a host with far more runnable threads than cores may answer seconds late. A false
// suspicion ends its group, whereas detecting a real failure later costs only seconds.
const DefaultLivenessTimeout = 10 * time.Second

const (
	checkInterval  = 200 * time.Millisecond // time between two checks of the peers
	livenessProbes = 3                      // probes of a peer within its timeout
	minLiveness    = livenessProbes * checkInterval
	maxLiveness    = time.Hour
)

// livenessTimeout returns the first of the timeouts that is not 0, within the bounds that a server
// accepts.
func livenessTimeout(timeouts ...time.Duration) time.Duration {
	return min(max(cmp.Or(cmp.Or(timeouts...), DefaultLivenessTimeout), minLiveness), maxLiveness)
}

// liveness measures for how long nothing was received from a peer.
type liveness struct {
	missed int // checks since something was received
}

// silentFor returns for how long nothing was received.
func (l *liveness) silentFor() time.Duration { return time.Duration(l.missed) * checkInterval }

// action is what to do with a peer from which nothing was received.
type action int

const (
	noAction action = iota
	sendProbe
	endPeer
)

// miss counts a check of a peer that has sent nothing since the last one, and returns what to do.
// After a check that is late, because this process was stopped, what the peer has sent may still be
// to be read: such a check ends no peer, but the next one does, late or not. Time in which the
// process was stopped counts as one check, however long it was. So a silent peer is found within its
// timeout and one check of the time that this process has run.
func (l *liveness) miss(timeout time.Duration, late bool) action {
	l.missed++
	most := int((timeout + checkInterval - 1) / checkInterval)
	switch {
	case l.missed > most, l.missed == most && !late:
		return endPeer
	case l.missed%(most/livenessProbes) == 0:
		return sendProbe
	}
	return noAction
}

// watchPeers checks the peers until the server stops.
func (s *Server) watchPeers() {
	checkOften(s.stopped, func(late bool) { s.Engine.checkPeers(s, late) })
}

// checkOften calls check every checkInterval until stopped is closed. late means that this process
// was stopped since the last call.
func checkOften(stopped <-chan struct{}, check func(late bool)) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ticker.C:
		case <-stopped:
			return
		}
		late := time.Since(last) > checkInterval+maxTimerDelay
		if late {
			ticker.Reset(checkInterval) // the next check is not early: its peers are read before
		}
		last = time.Now()
		check(late)
	}
}

// checkServer implements Backend.
func (m *Memory) checkServer(*Server) string { return "" }

// checkPeers implements Backend. It probes peers that send nothing, and ends those that have sent
// nothing for their liveness timeout.
func (m *Memory) checkPeers(s *Server, late bool) {
	m.creditStall()
	var silent, slow, relays, waiting []*conn
	s.mu.Lock()
	for c := range s.conns {
		reads, behind := c.readProgress()
		if !behind || reads {
			c.stalled.missed = 0
		} else if c.stalled.miss(livenessTimeout(c.limits.LivenessTimeout), late) == endPeer && c.lowOnBuffers() {
			slow = append(slow, c)
		}
		if c.received.Swap(false) || reads {
			c.liveness.missed = 0
			c.missedChecks.Store(0)
			if s.relayedConns > 0 {
				relays = append(relays, c)
			}
		} else if c.paused.Load() && !behind {
			waiting = append(waiting, c)
		} else {
			silent = append(silent, c)
		}
	}
	s.mu.Unlock()
	for _, c := range silent {
		c.checkPeer(late, false)
	}
	for _, c := range waiting {
		c.checkPeer(late, true)
		c.checkRelayed(late, true)
	}
	for _, c := range slow { // whatever its own liveness timeout
		s.log().Warn("peer disconnected: it does not read, and others wait for buffer space", "peer", c.peer, "who", c.hello.Key, "stuck", c.stalled.silentFor())
		c.close()
	}
	for _, c := range relays { // while nothing is received from a relay, nothing can be from its peers
		c.checkRelayed(late, false)
	}
}

// checkPeer counts a check of c, from which nothing was read. If the server has paused reading
// until the log is written, no frame of the peer is read: it is probed, so that it receives something
// from the server, and never ended.
func (c *conn) checkPeer(late, paused bool) {
	if c.session.Load() == 0 { // the handshake has its own timeout
		return
	}
	if _, taken := c.out.Backlog(); taken == 0 { // the welcome was not sent yet
		return
	}
	timeout := livenessTimeout(c.hello.Timeout, c.limits.LivenessTimeout)
	if !paused && c.processRuns(timeout) {
		c.liveness.missed = 0
		c.missedChecks.Store(0)
		return
	}
	what := c.liveness.miss(timeout, late)
	if paused {
		if what == endPeer {
			c.liveness.missed, what = 0, sendProbe
		}
	} else {
		c.missedChecks.Store(int64(c.liveness.missed))
	}
	switch what {
	case endPeer:
		c.failPeer()
	case sendProbe:
		c.probe()
	}
}

// checkRelayed is checkPeers for the peers of a relay from which something was received, or from
// which reading is paused. If some are silent, it probes the relay itself, so that the next check
// has received something and counts, although the relay has nothing else to send.
func (c *conn) checkRelayed(late, paused bool) {
	m := c.memory
	var probes []wire.RelayCall
	var lost []*relayedConn
	silent := false
	m.mu.Lock()
	if c.stream != nil {
		for _, b := range c.stream.conns {
			if b.received || paused {
				b.received, b.liveness.missed = false, 0
				continue
			}
			silent = true
			switch b.liveness.miss(livenessTimeout(b.timeout, c.limits.LivenessTimeout), late) {
			case endPeer:
				lost = append(lost, b)
			case sendProbe:
				probes = append(probes, wire.RelayCall{Conn: b.number})
			}
		}
	}
	m.mu.Unlock()
	if silent {
		c.probe()
	}
	if len(probes) > 0 {
		c.out.Append(func(to []byte) []byte { // after the welcomes of the relayed connections
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

// readProgress reports whether many bytes wait for the peer (behind), and whether it has read some
// of them since the last call (reads). While a peer is behind, its requests are not read, so that
// reading counts as a sign of life.
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

// failPeer ends the session of a peer that does not respond. It cannot be resumed.
func (c *conn) failPeer() {
	c.server.log().Warn("peer lost", "peer", c.peer, "who", c.hello.Key, "silent", c.liveness.silentFor())
	session := c.session.Load()
	c.memory.mu.Lock()
	c.timedOut = true
	c.memory.mu.Unlock()
	c.memory.detach(session, c, wire.OpLost, 0)
	c.close()
}
