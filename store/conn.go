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
	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// conn is a connection of a Server; of one that serves a Memory, it is the transport.Reader, too. A
// goroutine makes the handshake; then a loop reads, on systems that have one. Requests that need not wait
// are answered by the goroutine that has read them; other replies come from other goroutines.
type conn struct {
	server  *Server
	memory  *Memory // carries out the requests; nil for a relay
	limits  ServerLimits
	peer    string     // address of the peer
	addr    netip.Addr // the address without the port; invalid if it is not TCP
	hello   wire.Request
	in      handshake.FrameReader // owned by the goroutine that reads
	sock    transport.Socket      // that it reads from, after the handshake
	req     wire.Request
	rep     wire.Reply
	session atomic.Uint64 // 0 before the session is open
	rights  rights        // set by the handshake; nil: everything
	// of the groups whose stacks the peer may see; set by the handshake
	stackPrefixes []string
	proof         [][]byte     // that this side knows the peer's secret; for the welcome
	log           *committer   // of a durable store; nil: none
	welcomed      uint64       // where the reply to the hello ends in the outbox, if that was held
	stream        *relayStream // if the peer is a relay; guarded by the Memory's mu
	later         atomic.Int32 // requests that are carried out in goroutines
	paused        atomic.Bool  // reading is paused until the peer has read, or the log is written
	received      atomic.Bool  // bytes were received since the last check
	missedChecks  atomic.Int64 // checks without received bytes; read by other goroutines
	meter         *meter       // of the server
	liveness      liveness     // with stalled and sent: owned by watchPeers
	stalled       liveness     // while much waits for a peer that reads nothing
	sent          uint64       // bytes sent at the last check
	witness       witness      // of the peer's process
	sameHost      bool         // the peer is on this host
	timedOut      bool         // closed because it did not answer; set before it is closed, with the Memory's mu

	acceptedAt time.Time     // these two are guarded by the server's mu
	unfinished *list.Element // its element of Server.handshakes; nil when the handshake is finished

	mu      sync.Mutex        // protects the fields below until the session begins
	nc      net.Conn          // nil when a loop has the socket
	foreign *foreignConn      // for a connection of another protocol, else nil
	out     *transport.Outbox // nil before the session begins
}

func newConn(s *Server, nc net.Conn, limits ServerLimits) *conn {
	c := &conn{server: s, meter: s.meter, nc: nc, limits: limits, peer: nc.RemoteAddr().String(), sameHost: isSameHost(nc)}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = a.AddrPort().Addr().Unmap()
	}
	c.memory, _ = s.Engine.(*Memory)
	return c
}

// errDone is the end of a connection whose peer has said goodbye.
var errDone = errors.New("goodbye")

// readBufferSize is the size of the buffer of a connection that a goroutine reads: small, because
// most connections are idle most of the time.
const readBufferSize = 4 << 10

// serverFirstAlloc is how much is allocated for a large request before more of it has arrived: any peer
// may announce one.
const serverFirstAlloc = 64 << 10

// serve makes the handshake, and serves the connection or passes it to a loop.
func (c *conn) serve() {
	err := c.handshake()
	c.server.handshakeDone(c)
	if err == nil && c.foreign == nil {
		c.server.Engine.serve(c)
		return
	}
	if err == nil {
		err = c.foreign.serve(c)
	}
	_ = c.nc.Close()
	c.server.ended(c, err)
}

// handshake makes the handshake, and takes over what it says about the peer. A peer of another
// protocol is a foreignConn afterwards.
func (c *conn) handshake() error {
	accesses := c.server.Access
	policy := &handshake.Policy{Timeout: c.limits.Handshake, TLS: c.server.TLS, Credentials: credentials(accesses), Budget: c.server.budget}
	if c.server.Protocol != nil {
		policy.Other = c.server.Protocol.Match
	}
	peer, err := handshake.Accept(c.nc, policy)
	c.hello = peer.Hello
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.nc = peer.Conn
	c.mu.Unlock()
	if peer.Other != nil {
		return c.setForeign(peer.Other)
	}
	c.in, c.proof = peer.In, peer.Proof
	c.in.Limit, c.in.First = wire.MaxBody, serverFirstAlloc
	// Rights belong to the connection and not to its session: resuming a session needs its token, and
	// gives no rights beyond those that the peer has proved on this connection.
	if len(accesses) > 0 {
		c.rights = rightsOf(accesses, peer.Proved)
	}
	c.stackPrefixes = c.server.stackPrefixesOf(peer.Proved)
	unread, _ := c.in.Unread()
	c.countReceived(peer.Received + len(unread))
	return nil
}

// serveWith serves the connection with the reader that adopt returns: a loop reads it, if there is one for
// its socket, and otherwise this goroutine.
func (c *conn) serveWith(adopt func(transport.Socket) (transport.Reader, error)) {
	var loop *transport.Loop
	tcp, ok := c.nc.(*net.TCPConn)
	if ok {
		loop = c.server.loop()
	}
	var err error
	if loop == nil {
		err = transport.Serve(c.nc, make([]byte, readBufferSize), adopt)
	} else if err = loop.Adopt(tcp, adopt); err != nil {
		_ = tcp.Close()
	}
	if err != nil {
		c.server.ended(c, err)
	}
}

// useSocket creates the outbox, which writes to s. It returns an error if the store cannot be opened, or
// the server is stopping.
func (c *conn) useSocket(s transport.Socket) error {
	c.sock = s
	if c.memory != nil {
		var err error
		if c.log, err = c.memory.log(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.out = transport.NewOutbox(s, c.limits.InFlight)
	c.out.Budget, c.out.SentCounter = c.server.budget, &c.meter.out
	if c.log != nil {
		c.out.Gate = c.log
	}
	c.mu.Unlock()
	if c.server.isStopping() {
		return net.ErrClosed
	}
	return nil
}

// abort shuts the socket down, if the connection has made its handshake. It does not block.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != nil {
		c.out.Discard()
	}
}

// close ends the connection at once. Any goroutine may call it.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != nil { // a reader that waits for it to drain must notice
		c.out.Discard()
		return
	}
	if c.foreign != nil {
		c.foreign.stop()
	}
	_ = c.nc.Close()
}

// goodbye sends the peer the message that the server shuts down. A peer in the handshake gets no message.
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

// fail implements sessionConn. The peer has time to read the goodbye, and to close the connection itself.
func (c *conn) fail(why *wire.Reply) {
	c.out.AppendUrgent(func(b []byte) []byte { return wire.AppendReply(b, wire.OpGoodbye, 0, why) })
	c.out.Flush()
	time.AfterFunc(handshake.RefusalTimeout, c.close)
}

// probe sends a liveness probe, which overtakes replies that wait for a stalled log. The session is open.
func (c *conn) probe() {
	c.out.AppendUrgent(func(b []byte) []byte { return wire.AppendReply(b, wire.OpProbe, 0, new(wire.Reply)) })
	c.out.Flush()
}

// reconnectTimeout returns how long the session may be without a connection after this one.
func (c *conn) reconnectTimeout() time.Duration {
	if c.server.isStopping() && !c.memory.isDurable() { // a durable store is restarted
		return 0
	}
	return c.limits.ReconnectTimeout
}

// sendWelcome answers the hello. The engine has set whether it is durable, the server adds its
// reconnect timeout.
func (c *conn) sendWelcome(welcome *wire.Reply) {
	welcome.Values = c.proof
	welcome.Nums = append(welcome.Nums[:1], int64(c.limits.ReconnectTimeout), acceptsRelays)
	c.reply(wire.OpHello, c.hello.ID, welcome)
}

// denialReason returns why the peer has no right to make c.req, or "". A relayed peer needs the
// rights of its relay and its own.
func (c *conn) denialReason() string {
	why := c.rights.refuse(&c.req)
	if b := c.current(); why == "" && b != nil {
		why = b.rights.refuse(&c.req)
	}
	return why
}

// refuseRequest answers c.req with an error. A refused request still consumes its sequence number:
// OpSkip takes its place, so that later numbers stay valid. If the machine rejects the number
// itself, that is the reply.
func (c *conn) refuseRequest(now core.Time, session uint64, code wire.Code, why string) {
	op := c.req.Op
	c.rep = wire.Reply{}
	if c.req.Number != 0 {
		c.req = wire.Request{Op: wire.OpSkip, ID: c.req.ID, Number: c.req.Number, Acked: c.req.Acked}
		c.memory.applyLogged(now, session, &c.req, &c.rep)
	}
	if c.rep.Code == wire.CodeOK {
		c.rep = wire.Reply{Code: code, Detail: why}
	}
	c.reply(op, c.req.ID, &c.rep)
}

// reply queues a reply, and returns how many bytes wait for the peer now.
func (c *conn) reply(op wire.Op, id uint64, rep *wire.Reply) (waiting int) {
	if t := c.stream; t != nil && t.op == wire.OpVotes && t.current != nil {
		return c.replyToVote(id, rep)
	}
	if c.stream == nil {
		return c.replyAt(c.memory.position(), op, id, rep)
	}
	rep = c.limitReply(rep)
	return c.enqueue(func(b []byte) []byte { return c.encode(b, op, id, rep) })
}

// replyAt queues a reply that shows the log up to pos, and returns how many bytes wait. It does not
// copy a large value: those of the machine are never modified.
func (c *conn) replyAt(pos uint64, op wire.Op, id uint64, rep *wire.Reply) (waiting int) {
	rep = c.limitReply(rep)
	if len(rep.Value) >= transport.ShareFrom {
		if head, ok := wire.AppendReplyHead(nil, op, id, rep); ok {
			return c.out.AppendUncopied(pos, head, rep.Value)
		}
	}
	return c.out.AppendAt(pos, func(b []byte) []byte { return wire.AppendReply(b, op, id, rep) })
}

// enqueue queues what encode appends, behind the replies that wait, and returns how many bytes
// wait. The caller holds the Memory's mu.
func (c *conn) enqueue(encode func(b []byte) []byte) (waiting int) {
	return c.out.AppendAt(c.memory.position(), encode)
}

// encode appends the reply to the current request.
func (c *conn) encode(b []byte, op wire.Op, id uint64, rep *wire.Reply) []byte {
	return c.current().encode(b, op, id, rep)
}

// deliver implements sessionConn.
func (c *conn) deliver(e core.Effect, pos uint64, encode *encoder) {
	if isForOnePeer(e.Op) { // it counts against InFlight, and no other reply is the same
		c.replyAt(pos, e.Op, e.ID, e.Reply)
		return
	}
	head, body := encode.frameOf(e)
	c.out.AppendShared(pos, head, body)
}

// next parses the next complete request into c.req, if there is one. The machine may keep its
// value.
func (c *conn) next() (ok bool, err error) {
	h, body, owned, ok, err := c.in.Next()
	if err != nil {
		c.refuseFrame(h, err)
	}
	if err != nil || !ok {
		return false, err
	}
	if h.Op == wire.OpRelay || h.Op == wire.OpVotes {
		return true, c.parseRelayFrame(h, body, owned)
	}
	if c.stream != nil {
		c.stream.op = 0
	}
	err = c.req.Parse(h, body)
	if err == nil && (h.Op == wire.OpLost || h.Op == wire.OpStalled || h.Op == wire.OpHello && c.session.Load() != 0) {
		err = wire.ErrUnknownOp
	}
	if err != nil {
		c.refuseFrame(h, err)
		return false, fmt.Errorf("%s: %w", h.Op, err)
	}
	c.ownValue(owned)
	return true, nil
}

// refuseFrame sends a goodbye for a call whose frame cannot be parsed, after the replies that wait.
// The connection ends, because what follows cannot be parsed either. Without the goodbye the client
// would reconnect and send the same frame again.
func (c *conn) refuseFrame(h wire.Header, err error) {
	if h.ID == 0 || h.Op == wire.OpRelay || h.Op == wire.OpVotes || errors.Is(err, transport.ErrBuffers) {
		return
	}
	c.enqueue(func(b []byte) []byte { return wire.AppendReply(b, wire.OpGoodbye, h.ID, refusedFrame(err)) })
}

// refusedFrame returns the goodbye for a frame that cannot be parsed.
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

// ownValue copies the value of c.req if the machine may keep it.
func (c *conn) ownValue(owned bool) {
	if !owned && c.req.Op.KeepsValue() {
		c.req.Value = core.CopyValue(c.req.Value)
	}
}

// receivedBytes takes n bytes that were read.
func (c *conn) receivedBytes(n int) {
	c.in.Advance(n)
	c.countReceived(n)
}

func (c *conn) countReceived(n int) {
	if n > 0 {
		c.received.Store(true)
		c.meter.in.Add(uint64(n))
	}
}
