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

// conn is one peer of a Server. A goroutine does the handshake; then a loop reads, on systems that have one.
// What the peer asks is answered in line where it need not wait; other answers come from elsewhere.
type conn struct {
	server   *Server
	memory   *Memory // that carries out what the peer asks; nil behind a relay
	limits   ServerLimits
	peer     string     // its address
	addr     netip.Addr // that without the port; none if it is no TCP
	hello    wire.Request
	in       frameReader // owned by who reads
	req      wire.Request
	rep      wire.Reply
	session  atomic.Uint64 // 0 before it is open
	rights   rights        // nil is everything; since the handshake
	proof    [][]byte      // that this side knows the peer's secret; for the welcome
	lazy     bool          // the loop flushes what is answered in line
	log      *committer    // of a durable store; nil is none
	welcomed uint64        // the end of the reply to the hello in the outbox, if that was held
	trunk    *trunk        // of a relay: its branches; the Memory's mu protects it
	paused   atomic.Bool   // the server does not read from it: the peer is to read first, or the log to be written
	heard    atomic.Bool   // something came since the server last looked
	unheard  atomic.Int64  // how often it has looked in vain; for others than its watch
	meter    *meter        // nil is none
	live     liveness      // with stuck and taken, owned by the server's watch
	stuck    liveness      // while much waits for the peer, which takes nothing
	taken    uint64        // bytes, by the peer
	gaveUp   bool          // its server has, since it was silent; set before it is closed, with the Memory's mu

	began      time.Time     // these two are protected by the server's mu
	unfinished *list.Element // among the server's handshakes; nil once this one is over

	mu      sync.Mutex   // protects the fields below until the session begins
	nc      net.Conn     // nil once a loop has the socket
	foreign *foreignConn // of another protocol; nil is of this one
	pipe    transport.Pipe
	out     *transport.Outbox // nil before the session begins
}

func newConn(s *Server, nc net.Conn, limits ServerLimits) *conn {
	c := &conn{server: s, nc: nc, limits: limits, peer: nc.RemoteAddr().String(), in: frameReader{limit: maxHandshakeFrame, budget: s.budget}}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = a.AddrPort().Addr().Unmap()
	}
	if c.memory, _ = s.Engine.(*Memory); c.memory != nil {
		c.meter = &c.memory.meter
	}
	return c
}

// errDone is the end of a connection whose peer said goodbye.
var errDone = errors.New("goodbye")

// readRoom is the size of the buffer of a connection that a goroutine reads: small, since most
// connections are idle most of the time.
const readBufferSize = 4 << 10

// serve shakes hands and serves the connection, or leaves it to a loop.
func (c *conn) serve() {
	buf := make([]byte, readBufferSize)
	err := c.welcome(buf)
	c.server.shaken(c)
	if err != nil {
		_ = c.nc.Close()
		c.server.ended(c, err)
		return
	}
	if c.foreign != nil {
		err = c.foreign.serve(c)
		_ = c.nc.Close()
		c.server.ended(c, err)
		return
	}
	c.server.Engine.serve(c, buf)
}

// reader serves a connection after its handshake.
type reader interface {
	// adopted starts to serve it on a socket that a loop reads.
	adopted(s *transport.Sock) (transport.Reader, error)
	// run serves it until it ends, and reads into buf from this goroutine.
	run(buf []byte) error
}

// serveBy has r serve the connection.
func (c *conn) serveBy(r reader, buf []byte) {
	if tcp, ok := c.nc.(*net.TCPConn); ok {
		if loop := c.server.loop(); loop != nil {
			c.in.compact()
			if err := loop.Adopt(tcp, r.adopted); err != nil {
				_ = tcp.Close()
				c.server.ended(c, err)
			}
			return
		}
	}
	pipe := transport.NewPipe(c.nc)
	err := c.begin(pipe)
	if err == nil {
		err = r.run(buf)
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
	if c.memory != nil {
		var err error
		if c.log, err = c.memory.log(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.pipe = p
	c.out = transport.NewOutbox(p, c.limits.InFlight)
	c.out.Budget = c.server.budget
	if c.log != nil {
		c.out.Gate = c.log
	}
	if c.meter != nil {
		c.out.SentCounter = &c.meter.out
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
	if c.foreign != nil {
		c.foreign.stop()
	}
	_ = c.nc.Close()
}

// goodbye says that there will be nothing more. A peer that is still shaking hands hears nothing.
func (c *conn) goodbye() {
	c.mu.Lock()
	out, guest := c.out, c.foreign
	c.mu.Unlock()
	if guest != nil {
		guest.stop()
		return
	}
	if c.memory == nil || out == nil { // the store goes on without this relay
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
	if out != nil { // a stalled log does not delay it
		out.AppendUrgent(func(b []byte) []byte { return wire.AppendReply(b, wire.OpProbe, 0, new(wire.Reply)) })
		out.Flush()
	}
}

// grace is how long the session may be without a connection once this one has broken.
func (c *conn) grace() time.Duration {
	if c.server.ending() && !c.memory.stays() { // a durable store comes back
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

// queue puts what encode appends behind the answers that wait, and returns how many bytes of them there are. Called with the Memory's mu.
func (c *conn) queue(encode func(b []byte) []byte) (waiting int) {
	return c.out.AppendAt(c.memory.position(), encode)
}

// encode appends an answer to what is being carried out.
func (c *conn) encode(b []byte, op wire.Op, id uint64, rep *wire.Reply) []byte {
	if c.trunk != nil {
		return c.trunk.branch.encode(b, op, id, rep)
	}
	return wire.AppendReply(b, op, id, rep)
}

// deliver implements link.
func (c *conn) deliver(e core.Effect, pos uint64, encode *encoder) {
	if alone(e.Op) { // it counts against InFlight
		e.Reply = c.fitting(e.Reply)
	}
	head, body := encode.frameOf(e)
	if alone(e.Op) {
		c.out.AppendAt(pos, func(b []byte) []byte { return append(append(b, head...), body.Bytes...) })
		return
	}
	c.out.AppendShared(pos, head, body)
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
	if h.Op == wire.OpRelay || h.Op == wire.OpVotes {
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
	if out == nil || h.ID == 0 || h.Op == wire.OpRelay || h.Op == wire.OpVotes || errors.Is(err, errBuffers) {
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
	c.in.advance(n)
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
		n, err := c.nc.Read(c.in.buffer(buf))
		if c.got(n); n == 0 && err != nil {
			return err
		}
	}
}
