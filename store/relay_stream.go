package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/relay"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// The store's end of a relay. The relay's connection is a multiplexed stream: it has a session of
// its own, and carries the relayed connections of the relay's peers. A relayed connection is to its
// session what a separate connection would be: it may be replaced by another one, which may be
// relayed by another relay, or direct.

// Values of the third of a welcome's Nums.
const (
	viaRelay      = 1 // the connection goes through a relay
	acceptsRelays = 2 // the peer may be a relay
)

// relayStream is the state of a relay's connection. The Memory's mu protects it, but for replaced.
type relayStream struct {
	conns map[uint32]*relayedConn // relayed connections, by number
	// replaced by connections of this relay's peers, and to be closed without the mu. It belongs to the
	// goroutine that reads.
	replaced []sessionConn

	// Of what is being carried out:
	op       wire.Op      // operation of the current frame: OpRelay, OpVotes; 0: of the connection itself
	current  *relayedConn // nil: the connection itself
	calls    []wire.RelayCall
	vote     wire.Contribution
	votes    []wire.Vote
	parseErr error // parse error in the current frame of a relayed connection

	// Successive equal replies to the votes of one frame, which are sent as one frame.
	equalCalls []wire.RelayCall
	answer     wire.Reply

	kept relay.Kept // has its own lock
}

// relayedConn is the connection of a session through a relay. It implements sessionConn.
type relayedConn struct {
	relay   *conn // the connection of the relay
	number  uint32
	session uint64
	name    string
	rights  rights        // further restricts those of the relay
	timeout time.Duration // liveness timeout in its hello; 0: the server's

	received bool // guarded, with liveness, by the Memory's mu: bytes were received since the last check
	liveness liveness
}

// silentFor implements sessionConn. While nothing is received from the relay, nothing is known of
// its peers. The caller holds the Memory's mu.
func (b *relayedConn) silentFor() time.Duration {
	return max(b.liveness.silentFor(), b.relay.silentFor())
}

// current returns the relayed connection whose request is carried out; nil: that of c itself. The
// caller holds the Memory's mu.
func (c *conn) current() *relayedConn {
	if c.stream == nil {
		return nil
	}
	return c.stream.current
}

// parseRelayFrame parses a frame of a relay. An error in the frame of a relayed connection ends
// only that one.
func (c *conn) parseRelayFrame(h wire.Header, body []byte, owned bool) (err error) {
	if c.memory == nil || c.session.Load() == 0 {
		return fmt.Errorf("%s: %w", h.Op, wire.ErrUnknownOp)
	}
	t := c.stream
	if t == nil {
		t = &relayStream{conns: map[uint32]*relayedConn{}}
		c.stream = t
		c.in.Limit = wire.MaxBody + wire.RelayOverhead
	}
	t.op = h.Op
	if h.Op == wire.OpVotes {
		if !owned { // the payloads are kept
			body = bytes.Clone(body)
		}
		t.votes, err = wire.ParseVotes(h, body, &t.vote, t.votes)
		return err
	}
	if h.Flags != 0 { // only a server sends a Keep
		return wire.ErrFlags
	}
	var of wire.Header
	if t.calls, of, body, err = wire.ParseRelay(h, body, t.calls, wire.MaxVotes, wire.MaxBody); err != nil {
		return err
	}
	switch {
	case of.Op == wire.OpHello && of.Len > handshake.MaxFrame: // as that of a direct connection
		return fmt.Errorf("%s: %w", of.Op, wire.ErrTooLarge)
	case len(t.calls) > 1 && of.Op != wire.OpProbe && of.Op != wire.OpLost: // they are carried out in one step
		return fmt.Errorf("%w: one %s for %d branches", ErrProtocol, of.Op, len(t.calls))
	}
	of.ID = t.calls[0].ID
	if t.parseErr = c.req.Parse(of, body); of.Op == wire.OpStalled {
		t.parseErr = wire.ErrUnknownOp
	}
	c.ownValue(owned)
	return nil
}

// processRelayFrame carries out a frame of a relay.
func (c *conn) processRelayFrame(now core.Time) (full bool, err error) {
	t := c.stream
	defer func() { t.current = nil }()
	switch {
	case t.op == wire.OpVotes:
		return c.processVotes(now), nil
	case t.parseErr != nil:
		if b := t.conns[t.calls[0].Conn]; b != nil {
			if id := t.calls[0].ID; id != 0 {
				c.out.Append(func(to []byte) []byte {
					return wire.AppendRelayReply(to, b.number, wire.OpGoodbye, id, refusedFrame(t.parseErr))
				})
			}
			c.dropRelayed(now, b, t.parseErr)
		}
		return false, nil
	case c.req.Op == wire.OpHello:
		return false, c.openRelayed(t.calls[0].Conn)
	}
	for _, call := range t.calls {
		b := t.conns[call.Conn]
		if b == nil {
			continue // it has ended; the relay does not know yet
		}
		b.received = true
		switch c.req.Op {
		case wire.OpProbe:
		case wire.OpGoodbye:
			c.endRelayed(now, b, &wire.Request{Op: wire.OpGoodbye})
			b.sendEnd()
		case wire.OpLost:
			c.endRelayed(now, b, &wire.Request{Op: wire.OpLost, TTL: c.reconnectTimeout()})
		default:
			c.req.ID = call.ID
			full = c.executeRelayed(now, b) || full
		}
	}
	return full, nil
}

// executeRelayed carries out c.req, which is of b.
func (c *conn) executeRelayed(now core.Time, b *relayedConn) (full bool) {
	if !c.memory.attached(b.session, b) { // the session was resumed on another connection
		return false
	}
	c.stream.current = b
	return c.execute(now, b.session)
}

func (c *conn) processVotes(now core.Time) (full bool) {
	t := c.stream
	for i := range t.votes {
		v := &t.votes[i]
		b := t.conns[v.Conn]
		if b == nil {
			continue
		}
		b.received = true
		c.req = wire.Request{Op: wire.OpCollect, ID: v.ID, Timeout: v.Timeout, Value: v.Value, Group: t.vote}
		c.req.Group.Rank, c.req.Group.Want = v.Rank, v.Want
		full = c.executeRelayed(now, b) || full
	}
	return c.flushEqualReplies() > maxUnread || full
}

// replyToVote replies to a vote whose record is already decided, such as one that reads what a root
// has sent, together with equal replies.
func (c *conn) replyToVote(id uint64, rep *wire.Reply) (waiting int) {
	t := c.stream
	if len(t.equalCalls) > 0 && !sameReply(rep, &t.answer) {
		waiting = c.flushEqualReplies()
	}
	t.answer = *rep
	t.equalCalls = append(t.equalCalls, wire.RelayCall{Conn: t.current.number, ID: id})
	return waiting
}

// flushEqualReplies queues the collected equal replies.
func (c *conn) flushEqualReplies() (waiting int) {
	t := c.stream
	if len(t.equalCalls) == 0 {
		return 0
	}
	var encode encoder
	e := core.Effect{Op: wire.OpCollect, Reply: &t.answer}
	t.kept.Lock()
	defer t.kept.Unlock()
	outer, body := t.kept.Frame(e.Op, e.Reply, t.equalCalls, func() ([]byte, *transport.Body) { return encode.frameOf(e) })
	waiting = c.enqueue(func(b []byte) []byte { return append(append(b, outer...), body.Bytes...) })
	t.equalCalls, t.answer = t.equalCalls[:0], wire.Reply{}
	return waiting
}

// sameReply reports whether two replies to votes of one record are the same one.
func sameReply(a, b *wire.Reply) bool {
	return a.Code == b.Code && a.Detail == b.Detail && a.N == b.N && a.Failure == b.Failure && sameSlice(a.Value, b.Value) && sameSlice(a.Values, b.Values)
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0])
}

// openRelayed handles the hello of a relayed connection: it opens a session, or resumes one. The
// caller holds the Memory's mu.
func (c *conn) openRelayed(number uint32) error {
	t := c.stream
	if t.conns[number] != nil {
		return fmt.Errorf("%w: branch %d is opened twice", ErrProtocol, number)
	}
	m := c.memory
	b := &relayedConn{relay: c, number: number, name: strings.Clone(c.req.Key), timeout: c.req.Timeout, received: true}
	t.current = b
	var err error
	if b.rights, err = parseRights(c.req.Token); err != nil {
		return err
	}
	if why := c.server.addRelayedConn(c); why != "" {
		c.reply(wire.OpHello, 0, &wire.Reply{Code: wire.CodeFull, Detail: why})
		return nil
	}
	var welcome wire.Reply
	id := c.req.ID
	m.apply(core.Local, &c.req, &welcome)
	b.session = uint64(welcome.N)
	t.conns[number] = b
	if before := m.conns[b.session]; before != nil {
		t.replaced = append(t.replaced, before)
	}
	m.conns[b.session] = b
	welcome.Nums = append(welcome.Nums[:1], int64(c.limits.ReconnectTimeout), viaRelay)
	c.reply(wire.OpHello, id, &welcome)
	return nil
}

// endRelayed ends a relayed connection. The caller holds the Memory's mu.
func (c *conn) endRelayed(now core.Time, b *relayedConn, how *wire.Request) {
	delete(c.stream.conns, b.number)
	c.server.removeRelayedConns(c, 1)
	c.memory.endSession(now, b.session, b, how)
}

// dropRelayed ends a relayed connection after a malformed frame.
func (c *conn) dropRelayed(now core.Time, b *relayedConn, why error) {
	c.server.log().Warn("connection ended", "peer", c.peer, "who", clip(b.name), "branch", b.number, "err", why)
	c.endRelayed(now, b, &wire.Request{Op: wire.OpLost, TTL: c.reconnectTimeout()})
	b.sendEnd()
}

// detachRelayed detaches the sessions of all relayed connections of c, which has ended. They may
// reconnect by other paths. Those that do not fail together, in one result that names the relay.
func (m *Memory) detachRelayed(c *conn, err error) {
	m.mu.Lock()
	t := c.stream
	if t == nil || m.closed {
		m.mu.Unlock()
		return
	}
	lost := wire.Request{Op: wire.OpLost, TTL: c.reconnectTimeout(), Value: []byte(c.relayEndReason(err))}
	now := m.now()
	for _, n := range slices.Sorted(maps.Keys(t.conns)) {
		b := t.conns[n]
		m.endSession(now, b.session, b, &lost)
	}
	c.server.removeRelayedConns(c, len(t.conns))
	clear(t.conns)
	m.unlockAndDeliver()
}

// relayEndReason describes why the relay's connection ended, for the failure of its ranks.
func (c *conn) relayEndReason(err error) string {
	what := "was cut off"
	switch {
	case c.timedOut:
		what = "did not respond"
	case errors.Is(err, errDone), errors.Is(err, net.ErrClosed):
		what = "has ended"
	}
	return fmt.Sprintf("their relay (%s, %s) %s", strings.TrimPrefix(clip(c.hello.Key), relayName), c.peer, what)
}

// weight returns the number of requests in the current frame.
func (t *relayStream) weight() int {
	switch {
	case t != nil && t.op == wire.OpVotes:
		return max(1, len(t.votes))
	case t != nil && t.op == wire.OpRelay:
		return len(t.calls)
	}
	return 1
}

// closeReplaced closes the connections that relayed ones have replaced. The goroutine that reads
// calls it, without the Memory's mu.
func (t *relayStream) closeReplaced() {
	if t == nil {
		return
	}
	for _, l := range t.replaced {
		l.close()
	}
	t.replaced = t.replaced[:0]
}

// encode appends the reply to a request of b; a nil b is the connection itself.
func (b *relayedConn) encode(to []byte, op wire.Op, id uint64, rep *wire.Reply) []byte {
	if b == nil {
		return wire.AppendReply(to, op, id, rep)
	}
	return wire.AppendRelayReply(to, b.number, op, id, rep)
}

// deliver implements sessionConn; deliverRelayed does it for many.
func (b *relayedConn) deliver(e core.Effect, pos uint64, encode *encoder) {
	b.relay.deliverRelayed([]delivery{{b, e}}, pos, encode)
}

// Flush implements sessionConn.
func (b *relayedConn) Flush() { b.relay.out.Flush() }

// close implements sessionConn. It reports to the relay that the connection has ended.
func (b *relayedConn) close() {
	m := b.relay.memory
	m.mu.Lock()
	t := b.relay.stream
	here := t.conns[b.number] == b
	if here {
		delete(t.conns, b.number)
		b.relay.server.removeRelayedConns(b.relay, 1)
	}
	m.mu.Unlock()
	if here {
		b.sendEnd()
		b.Flush()
	}
}

// fail implements sessionConn: the relay gets the reason, and passes it on.
func (*relayedConn) fail(*wire.Reply) {}

// sendEnd reports to the relay that the relayed connection has ended.
func (b *relayedConn) sendEnd() {
	b.relay.out.Append(func(to []byte) []byte {
		return wire.AppendRelayReply(to, b.number, wire.OpLost, 0, new(wire.Reply))
	})
}

// deliverRelayed delivers replies to relayed connections of c. Successive equal replies go into one
// frame.
func (c *conn) deliverRelayed(letters []delivery, pos uint64, encode *encoder) {
	for len(letters) > 0 {
		first := letters[0].effect
		n := 1
		for n < len(letters) && letters[n].effect.Reply == first.Reply && letters[n].effect.Op == first.Op {
			n++
		}
		calls := make([]wire.RelayCall, n)
		for i, l := range letters[:n] {
			calls[i] = wire.RelayCall{Conn: l.conn.(*relayedConn).number, ID: l.effect.ID}
		}
		if isForOnePeer(first.Op) {
			first.Reply = c.limitReply(first.Reply)
		}
		c.deliverFrame(first, calls, pos, encode)
		letters = letters[n:]
	}
}

// deliverFrame queues the reply of e to calls.
func (c *conn) deliverFrame(e core.Effect, calls []wire.RelayCall, pos uint64, encode *encoder) {
	k := &c.stream.kept
	k.Lock()
	defer k.Unlock()
	outer, body := k.Frame(e.Op, e.Reply, calls, func() ([]byte, *transport.Body) { return encode.frameOf(e) })
	if isForOnePeer(e.Op) {
		c.out.AppendAt(pos, func(b []byte) []byte { return append(append(b, outer...), body.Bytes...) })
	} else {
		c.out.AppendShared(pos, outer, body)
	}
}

// isForOnePeer reports whether a reply to op is for a single peer, and counts against its limits.
func isForOnePeer(op wire.Op) bool {
	switch op {
	case wire.OpWait, wire.OpWatch, wire.OpRecv:
		return true
	}
	return false
}

// deliverToRelays delivers the replies that go through relays, and returns the others.
func deliverToRelays(letters []delivery, pos uint64) (others []delivery) {
	isBranch := func(l delivery) bool { _, ok := l.conn.(*relayedConn); return ok }
	first := slices.IndexFunc(letters, isBranch)
	if first < 0 {
		return letters
	}
	others = slices.Clone(letters[:first])
	fans := map[*conn][]delivery{}
	for _, l := range letters[first:] {
		if b, ok := l.conn.(*relayedConn); ok {
			fans[b.relay] = append(fans[b.relay], l)
		} else {
			others = append(others, l)
		}
	}
	var e encoder
	for c, ls := range fans {
		c.deliverRelayed(ls, pos, &e)
		c.out.Flush()
	}
	return others
}

// addRelayedConn counts a relayed connection like a direct one, and returns which limit it exceeds,
// or "".
func (s *Server) addRelayedConn(c *conn) (why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why = s.exceeds(c); why == "" {
		s.relayedConns++
		s.perAddr[c.addr]++
	}
	return why
}

// removeRelayedConns removes n relayed connections of c from the counts.
func (s *Server) removeRelayedConns(c *conn, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relayedConns -= n
	s.uncount(c, n)
}
