package store

import (
	"container/list"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// conn is one peer of a Server. A goroutine shakes hands; who reads then depends on the engine.
// What the peer asks is answered in line where it need not wait; other answers come from elsewhere.
type conn struct {
	server  *Server
	limits  ServerLimits
	peer    string     // its address
	addr    netip.Addr // that without the port; none if it is no TCP
	hello   wire.Request
	in      frames // owned by who reads
	req     wire.Request
	rep     wire.Reply
	session atomic.Uint64 // 0 before it is open
	rights  rights        // nil is everything; since the handshake
	proof   [][]byte      // that this side knows the peer's secret; for the welcome
	lazy    bool          // the loop flushes what is answered in line
	commit  *committer    // of a durable store
	staged  []byte        // answers that are for it
	pos     uint64        // of the log, that staged shows
	parcels atomic.Int32  // on their way through commit: the rest has to follow them there
	greeted atomic.Bool   // the welcome has gone out, of a durable store
	trunk   *trunk        // of a relay: its branches; the Memory's mu protects it
	heard   atomic.Bool   // something came since the server last looked
	unheard atomic.Int64  // how often it has looked in vain; for others than its watch
	meter   *meter        // nil is none
	live    liveness      // with stuck and taken, owned by the server's watch
	stuck   liveness      // while much waits for the peer, which takes nothing
	taken   uint64        // bytes, by the peer
	gaveUp  bool          // its server has, since it was silent; set before it is closed

	began      time.Time     // these two are protected by the server's mu
	unfinished *list.Element // among the server's handshakes; nil once this one is over

	mu    sync.Mutex // protects the fields below until the session begins
	nc    net.Conn   // nil once a loop has the socket
	guest *guest     // of another protocol; nil is of this one
	pipe  transport.Pipe
	out   *transport.Outbox // nil before the session begins
}

func newConn(s *Server, nc net.Conn, limits ServerLimits) *conn {
	c := &conn{server: s, nc: nc, limits: limits, peer: nc.RemoteAddr().String(), in: frames{limit: helloRoom, budget: s.budget}}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = a.AddrPort().Addr().Unmap()
	}
	if m, ok := s.Engine.(*Memory); ok {
		c.meter = &m.meter
	}
	return c
}

// errDone is the end of a connection whose peer said goodbye.
var errDone = errors.New("goodbye")

// readRoom is the size of the buffer of a connection that a goroutine reads: small, since most
// connections are idle most of the time.
const readRoom = 4 << 10

// serve shakes hands and serves the connection, or leaves it to a loop.
func (c *conn) serve() {
	buf := make([]byte, readRoom)
	err := c.welcome(buf)
	c.server.shaken(c)
	if err != nil {
		_ = c.nc.Close()
		c.server.ended(c, err)
		return
	}
	if c.guest != nil {
		err = c.guest.serve(c)
		_ = c.nc.Close()
		c.server.ended(c, err)
		return
	}
	if r, ok := c.server.Engine.(*Relay); ok {
		c.serveRelay(r, buf)
		return
	}
	m, isMemory := c.server.Engine.(*Memory)
	tcp, isTCP := c.nc.(*net.TCPConn)
	if isMemory && isTCP {
		if loop := c.server.loop(); loop != nil {
			c.in.giveBack()
			if err := loop.Adopt(tcp, func(s *transport.Sock) (transport.Reader, error) { return c.adopted(m, s) }); err != nil {
				_ = tcp.Close()
				c.server.ended(c, err)
			}
			return
		}
	}
	pipe := transport.NewPipe(c.nc)
	if err = c.begin(pipe); err == nil {
		if isMemory {
			err = c.serveMemory(m, buf)
		} else {
			err = c.serveEngine(c.server.Engine, buf)
		}
	}
	if cause := c.out.Err(); cause != nil {
		err = cause
	}
	_ = c.nc.Close()
	pipe.Done()
	c.server.ended(c, err)
}

// begin makes p the way to the peer, unless the server is ending.
func (c *conn) begin(p transport.Pipe) error {
	c.mu.Lock()
	c.pipe = p
	c.out = transport.NewOutbox(p, c.limits.InFlight)
	c.out.Budget = c.server.budget
	if c.meter != nil {
		c.out.Taken = &c.meter.out
	}
	c.mu.Unlock()
	if c.server.ending() {
		return net.ErrClosed
	}
	return nil
}

// close ends the connection at once, from any goroutine.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pipe != nil {
		_ = c.pipe.Close()
		return
	}
	if c.guest != nil {
		c.guest.leave()
	}
	_ = c.nc.Close()
}

// goodbye says that there will be nothing more. A peer that is still shaking hands hears nothing.
func (c *conn) goodbye() {
	c.mu.Lock()
	out, guest := c.out, c.guest
	c.mu.Unlock()
	if guest != nil {
		guest.leave()
		return
	}
	if _, ok := c.server.Engine.(*Relay); ok || out == nil { // the store goes on without this relay
		c.close()
		return
	}
	out.Append(func(b []byte) []byte { return wire.AppendReply(b, wire.OpGoodbye, 0, &wire.Reply{Code: wire.CodeLeft}) })
	out.Flush()
}

// probe asks the peer whether it is there.
func (c *conn) probe() {
	c.mu.Lock()
	out := c.out
	c.mu.Unlock()
	if out != nil {
		out.Append(func(b []byte) []byte { return wire.AppendReply(b, wire.OpProbe, 0, new(wire.Reply)) })
		out.Flush()
	}
}

// grace is how long the session may be without a connection once this one has broken.
func (c *conn) grace() time.Duration {
	if m, ok := c.server.Engine.(*Memory); c.server.ending() && (!ok || !m.stays()) { // a durable store comes back
		return 0
	}
	return c.limits.Grace
}

// reply queues an answer, and returns how many bytes wait for the peer now.
func (c *conn) reply(op wire.Op, id uint64, rep *wire.Reply) (waiting int) {
	if t := c.trunk; t != nil && t.op == wire.OpVotes && t.branch != nil {
		return c.replyToVote(op, id, rep)
	}
	rep = c.fitting(rep)
	return c.queue(func(b []byte) []byte { return c.encode(b, op, id, rep) })
}

// queue puts what encode appends behind the answers that wait, and returns how many bytes of them there are.
func (c *conn) queue(encode func(b []byte) []byte) (waiting int) {
	if c.commit == nil {
		return c.out.Append(encode)
	}
	if c.staged == nil {
		c.staged = (*stages.Get().(*[]byte))[:0]
	}
	c.staged = encode(c.staged)
	return len(c.staged)
}

// encode appends an answer to what is being carried out.
func (c *conn) encode(b []byte, op wire.Op, id uint64, rep *wire.Reply) []byte {
	if c.trunk != nil {
		return c.trunk.branch.encode(b, op, id, rep)
	}
	return wire.AppendReply(b, op, id, rep)
}

// unstage gives up what is staged; it is for who has the turn.
func (c *conn) unstage() []byte {
	staged := c.staged
	c.staged = nil
	return staged
}

// deliver implements link.
func (c *conn) deliver(e core.Effect, encode *encoder) {
	if alone(e.Op) { // it counts against InFlight
		e.Reply = c.fitting(e.Reply)
	}
	head, body := encode.frameOf(e)
	if alone(e.Op) {
		c.out.Append(func(b []byte) []byte { return append(append(b, head...), body.Bytes...) })
		return
	}
	c.out.AppendShared(head, body)
}

// flush implements link.
func (c *conn) flush() { c.out.Flush() }

// next parses the next request that is whole into c.req, if there is one. Its value is the machine's to keep.
func (c *conn) next() (ok bool, err error) {
	h, body, owned, ok, err := c.in.next()
	if err != nil {
		c.refuseFrame(h, err)
	}
	if err != nil || !ok {
		return false, err
	}
	if h.Op == wire.OpBranch || h.Op == wire.OpVotes {
		return true, c.nextOfBranches(h, body, owned)
	}
	if c.trunk != nil {
		c.trunk.op = 0
	}
	err = c.req.Parse(h, body)
	if err == nil && (h.Op == wire.OpLost || h.Op == wire.OpHello && c.session.Load() != 0) {
		err = wire.ErrUnknownOp
	}
	if err != nil {
		c.refuseFrame(h, err)
		return false, fmt.Errorf("%s: %w", h.Op, err)
	}
	c.ownValue(owned)
	return true, nil
}

// refuseFrame says goodbye to the call whose frame cannot be read, behind the answers that wait: the connection ends, since what comes next
// is not known either. Without that the peer would take it for broken, and send the same frame on the next one.
func (c *conn) refuseFrame(h wire.Header, err error) {
	c.mu.Lock()
	out := c.out
	c.mu.Unlock()
	if out == nil || h.ID == 0 || h.Op == wire.OpBranch || h.Op == wire.OpVotes || errors.Is(err, errBuffers) {
		return
	}
	c.queue(func(b []byte) []byte { return wire.AppendReply(b, wire.OpGoodbye, h.ID, refusedFrame(err)) })
}

// refusedFrame is the goodbye to a frame that cannot be read.
func refusedFrame(err error) *wire.Reply {
	code := wire.CodeInvalid
	switch {
	case errors.Is(err, wire.ErrTooLarge):
		code = wire.CodeTooLarge
	case errors.Is(err, wire.ErrUnknownOp):
		code = wire.CodeUnsupported
	}
	return &wire.Reply{Code: code, Detail: err.Error()}
}

// ownValue makes the value of what was parsed the machine's to keep.
func (c *conn) ownValue(owned bool) {
	if !owned && core.Keeps(c.req.Op) && c.req.Value != nil {
		c.req.Value = append(make([]byte, 0, len(c.req.Value)), c.req.Value...)
	}
}

// got takes n bytes that have been read.
func (c *conn) got(n int) {
	c.in.got(n)
	if n > 0 {
		c.heard.Store(true)
		if c.meter != nil {
			c.meter.in.Add(uint64(n))
		}
	}
}

// read reads until there is a whole request.
func (c *conn) read(buf []byte) error {
	for {
		if ok, err := c.next(); ok || err != nil {
			return err
		}
		n, err := c.nc.Read(c.in.room(buf))
		if c.got(n); n == 0 && err != nil {
			return err
		}
	}
}
