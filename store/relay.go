package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/relay"
	"github.com/muster-pg/muster/wire"
)

// Relay multiplexes the connections of the ranks of one host to a store over one connection. A
// Server with a Relay as its Engine forwards the requests of its peers, so that the store has one
// connection per host, and receives one frame of votes and sends one result per host.
//
//	r, err := store.NewRelay(ctx, "muster://10.0.0.5:7070", nil)
//	server := &store.Server{Engine: r}
//	err = server.Serve(listener)
//
// Sessions are kept by the store. Each has what it would have on a separate connection: request
// numbers, reconnect timeout, liveness timeout, and its own name in errors. It can be resumed over
// any other path. When a relay ends, no session ends with it: its ranks reconnect through the next
// relay, or directly (see Dial), or fail after their reconnect timeout, in one result that names
// the relay.
//
// Votes for a record are held until those of all ranks behind the relay have arrived, for at most 2
// ms; everything else is forwarded at once, after the votes that came before it. The relay makes no
// decisions, reduces no values and answers no requests. It keeps up to 16 MiB of payloads of roots,
// which the store then sends once, however late its ranks read them.
//
// At the store, peers have the rights of the relay, restricted by Server.Access. Therefore a Server
// whose Relay authenticates to the store must authenticate its peers too, also on loopback, unless
// it is Insecure.
//
// A Relay owns a goroutine that reads from the store while there is a connection, one that dials
// when a peer connects and there is none, one for DialOptions.WaitReplaced, and a timer. Close ends
// them, and the connections of all peers.
type Relay struct {
	dialer         *dialer
	name           string
	logger         *slog.Logger
	hasCredentials bool // it authenticates to the store with a secret or a certificate
	ctx            context.Context
	cancel         context.CancelFunc

	mu      sync.Mutex // protects the fields below
	up      *upstream  // nil while there is none
	dialing chan struct{}
	dialErr error // error of the last dial
	direct  *Store
	closed  bool
	wg      sync.WaitGroup
}

// relayName begins the name of a relay, for logs.
const relayName = "relay, "

// NewRelay connects to the store that rawurl names, as DialURL does. ctx bounds only that; later
// the relay dials when a peer connects. With DialOptions.Resolve, rawurl only names the store in
// errors.
func NewRelay(ctx context.Context, rawurl string, o *DialOptions) (*Relay, error) {
	u, err := parseServerURL("relay", rawurl)
	if err != nil {
		return nil, err
	}
	if strings.TrimPrefix(u.Path, "/") != "" {
		return nil, &Error{
			Op: "relay", Key: redacted(rawurl), Code: wire.CodeInvalid, Err: ErrInvalid,
			Detail: "a relay serves the whole store: clients of the relay may use a prefix",
		}
	}
	addr, options, err := fromURL(u, o)
	if err != nil {
		return nil, err
	}
	r := &Relay{name: relayName + processName(), logger: logger(options.Logger)}
	if r.dialer, err = newDialer(addr, options); err != nil {
		return nil, err
	}
	config, err := r.dialer.tlsConfig(r.dialer.addrs[0])
	if err != nil {
		return nil, err
	}
	r.hasCredentials = options.Secret != nil || config != nil && (len(config.Certificates) > 0 || config.GetClientCertificate != nil)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	l, err := r.dialer.dialUntil(ctx, &wire.Request{Key: r.name})
	if err == nil {
		err = r.checkWelcome(l)
	}
	if err != nil {
		r.cancel()
		return nil, err
	}
	r.mu.Lock() // its reader may start at once
	defer r.mu.Unlock()
	r.use(l)
	return r, nil
}

// isRelayed reports whether a welcome has come through a relay.
func isRelayed(welcome *wire.Reply) bool {
	return len(welcome.Nums) > 2 && welcome.Nums[2] == viaRelay
}

// checkWelcome closes a connection that a relay cannot use, and returns the reason.
func (r *Relay) checkWelcome(l *clientConn) error {
	nums, why := l.welcome.Nums, "the server accepts no relays: it has another version"
	switch {
	case len(nums) > 2 && nums[2] == acceptsRelays:
		return nil
	case isRelayed(&l.welcome):
		why = "the address is that of a relay: name the store"
	}
	l.close()
	return &Error{Op: "relay", Key: r.dialer.addr, Code: wire.CodeUnsupported, Err: ErrUnsupported, Detail: why}
}

// Do implements Engine. Calls of this process use a separate connection.
func (r *Relay) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	s, err := r.directStore(ctx)
	if err != nil {
		return err
	}
	return s.engine.Do(ctx, req, rep)
}

func (r *Relay) directStore(ctx context.Context) (*Store, error) {
	if own, err := r.useDirect(nil); own != nil || err != nil {
		return own, err
	}
	s, err := Dial(ctx, r.dialer.addr, &r.dialer.options)
	if err != nil {
		return nil, err
	}
	own, err := r.useDirect(s)
	if own != s { // another call was faster, or r is closed
		_ = s.Close()
	}
	return own, err
}

// useDirect returns the store for calls of this process, which is s if there was none.
func (r *Relay) useDirect(s *Store) (*Store, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	if r.direct == nil {
		r.direct = s
	}
	return r.direct, nil
}

// Close ends the connection to the store, and those of all peers. It may be called twice.
func (r *Relay) Close() error {
	r.cancel()
	r.mu.Lock()
	r.closed = true
	up, own := r.up, r.direct
	r.mu.Unlock()
	if own != nil {
		_ = own.Close()
	}
	if up != nil {
		up.conn.send(&wire.Request{Op: wire.OpGoodbye})
		up.conn.out.Flush()
		_ = up.conn.nc.SetReadDeadline(time.Now().Add(goodbyeTimeout))
	}
	r.wg.Wait()
	return nil
}

var errCutAgain = errors.New("the connection ended at once")

// connection returns the connection to the store. If there is none it is dialed, once for all
// callers that wait meanwhile. It returns ErrClosed when stopped is closed.
func (r *Relay) connection(stopped <-chan struct{}) (*upstream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for tried := false; r.up == nil; tried = true {
		switch {
		case r.closed:
			return nil, ErrClosed
		case tried && r.dialing == nil:
			return nil, cmp.Or(r.dialErr, errCutAgain)
		case r.dialing == nil:
			r.dialing = make(chan struct{})
			r.wg.Go(r.dial)
		}
		done := r.dialing
		r.mu.Unlock()
		select {
		case <-done:
		case <-stopped:
		}
		r.mu.Lock()
		select {
		case <-stopped:
			return nil, ErrClosed
		default:
		}
	}
	return r.up, nil
}

func (r *Relay) dial() {
	l, err := r.dialStore()
	if err == nil {
		err = r.checkWelcome(l)
	}
	if err != nil {
		r.logger.Warn("the store cannot be reached", "addr", r.dialer.addr, "err", err)
	}
	r.mu.Lock()
	done := r.dialing
	r.dialing, r.dialErr = nil, err
	used := err == nil && !r.closed
	if used {
		r.use(l)
	}
	r.mu.Unlock()
	if err == nil && !used {
		l.close()
	}
	close(done)
}

// dialStore tries each address once. With Resolve, a new leader may be taking over: then it tries
// for takeoverTimeout.
func (r *Relay) dialStore() (*clientConn, error) {
	began := time.Now()
	for tries := 1; ; tries++ {
		l, err := r.dialer.dial(r.ctx, &wire.Request{Key: r.name})
		switch {
		case err == nil || r.ctx.Err() != nil:
			return l, err
		case tries < len(r.dialer.addrs):
		case r.dialer.options.Resolve != nil && isUnreachable(err) && time.Since(began) < takeoverTimeout:
			time.Sleep(takeoverTimeout / 100)
		default:
			return nil, err
		}
	}
}

// upstream is a relay's connection to the store.
type upstream struct {
	relay    *Relay
	conn     *clientConn
	mux      *relay.Mux
	received atomic.Bool
	liveness liveness // of the store; guarded by the relay's mu
}

// read reads from the store until the connection ends, and then ends the connections of all peers,
// which reconnect.
func (u *upstream) read() {
	var err error
	for err == nil {
		var h wire.Header
		var body []byte
		var owned bool
		if h, body, owned, err = u.conn.in.Read(u.conn.nc, u.conn.buf); err == nil {
			u.received.Store(true)
			err = u.handleFrame(h, body, owned)
		}
	}
	u.relay.upstreamEnded(u, err)
	u.mux.End(goodbyeOf(err))
	u.conn.close()
}

// handleFrame handles a frame of the store.
func (u *upstream) handleFrame(h wire.Header, body []byte, owned bool) error {
	switch h.Op {
	case wire.OpRelay:
		return u.mux.Handle(h, body, owned)
	case wire.OpStacks: // a relay is no rank, and says nothing of its process
		return nil
	}
	return u.conn.handleServerFrame(h, body)
}

// checkStore returns what to do with the connection to the store. The caller holds the relay's mu.
func (u *upstream) checkStore(late bool) action {
	if u.received.Swap(false) {
		u.liveness.missed = 0
		return noAction
	}
	return u.liveness.miss(livenessTimeout(u.relay.dialer.options.LivenessTimeout), late)
}

// use makes l the connection to the store. The caller holds mu.
func (r *Relay) use(l *clientConn) {
	l.in.Limit = wire.MaxReply + wire.MaxBody // the list of calls precedes a reply
	u := &upstream{relay: r, conn: l, mux: relay.NewMux(l.out, func() { _ = l.nc.Close() })}
	r.up = u
	if moved := r.dialer.options.WaitReplaced; moved != nil {
		r.wg.Go(l.watchReplaced(r.ctx, moved))
	}
	r.wg.Go(u.read)
}

// upstreamEnded handles the end of u.
func (r *Relay) upstreamEnded(u *upstream, err error) {
	u.conn.stopWatch()
	r.mu.Lock()
	if r.up == u {
		r.up = nil
	}
	closed := r.closed
	r.mu.Unlock()
	if !closed {
		r.logger.Warn("the connection to the store has ended", "addr", r.dialer.addr, "err", err)
	}
}

// unavailableReply returns the code and the message for a peer while the store cannot be reached.
// The code shows whether the store may be reachable soon.
func (r *Relay) unavailableReply(err error) (code wire.Code, detail string) {
	code = wire.CodeUnavailable
	switch {
	case handshake.IsDoubtful(err): // the next peer makes it try again
	case isConnRefused(err):
		code = wire.CodeLost
	case errors.Is(err, ErrDenied), errors.Is(err, ErrProtocol), errors.Is(err, ErrInvalid), errors.Is(err, ErrUnsupported):
		code = wire.CodeDenied
	}
	return code, fmt.Sprintf("the relay cannot reach the store at %s: %v", r.dialer.addr, err)
}

// checkPeers implements Backend. The store itself checks the liveness of the peers. checkPeers
// pings a store from which nothing was received, and closes its connection after the liveness
// timeout. It also confirms probed peers whose frames could not be forwarded. late means that this
// process was stopped.
func (r *Relay) checkPeers(_ *Server, late bool) {
	r.mu.Lock()
	u, do := r.up, noAction
	if u != nil {
		do = u.checkStore(late)
	}
	r.mu.Unlock()
	switch {
	case u == nil:
		return
	case do == endPeer:
		_ = u.conn.nc.Close() // its reader notices
	case do == sendProbe:
		u.conn.send(&wire.Request{Op: wire.OpPing})
	}
	u.mux.Vouch()
	u.conn.out.Flush()
}

// checkServer implements Backend. A relay that authenticates to the store needs a Server that
// authenticates its peers.
func (r *Relay) checkServer(s *Server) string {
	if !r.hasCredentials || s.Insecure || len(s.Access) > 0 || s.requiresCertificate() {
		return ""
	}
	return "the relay authenticates to the store, and every peer would have its rights: require a secret or a client certificate " +
		"here too (Access, TLS), or set Insecure if all who reach it may have them"
}

// serve implements Backend.
func (r *Relay) serve(c *conn) {
	u, err := r.connection(c.server.stopped)
	if err != nil {
		code, why := r.unavailableReply(err)
		handshake.Refuse(c.nc, &handshake.RefusalError{Code: code, Reason: wire.ReasonRelay, Detail: why})
		c.server.ended(c, err)
		return
	}
	p := &relayPeer{conn: c, upstream: u}
	c.serveWith(p.adopted)
}
