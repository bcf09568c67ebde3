package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Relay is the store at the other end of one connection, for the ranks of one host: a Server with a Relay as its Engine passes on what
// its peers say, so that the store has as many connections as there are hosts, and one vote and one verdict for each of them.
//
//	r, err := store.NewRelay(ctx, "muster://10.0.0.5:7070", nil)
//	server := &store.Server{Engine: r}
//	err = server.Serve(listener)
//
// Sessions live at the store. Each has what it would have on a connection of its own: its numbers, its grace, its silence, its own name
// in errors; it may be taken up again by any other way. A relay that ends takes no session with it: its ranks come back through the next
// one, or without one (see Dial), or are lost when their grace has passed, in one verdict that names the relay.
//
// Votes for one record are held back until those of all its ranks here have come, and for 2 ms at most; all else is passed on at once, behind
// the votes that came before it. Nothing is decided, added up or answered here.
//
// Towards the store its peers have the rights that the relay has, and of those what Server.Access leaves them. So a Server whose Relay shows
// the store a secret or a certificate refuses to serve whoever comes, on loopback too, unless it is Insecure.
//
// It owns one goroutine that reads from the store while there is a connection, one that dials when a peer comes and there is none, and a
// timer. Close ends them, and the connections of all peers with them.
type Relay struct {
	dialer *dialer
	name   string
	logger *slog.Logger
	shows  bool // a secret or a certificate
	life   context.Context
	stop   context.CancelFunc

	mu      sync.Mutex // protects the fields below
	up      *uplink    // nil while there is none
	dialing chan struct{}
	why     error // the last dial failed
	own     *Store
	closed  bool
	running sync.WaitGroup
}

// relayName begins the name of a relay, for logs.
const relayName = "relay, "

// NewRelay connects to the store that rawurl names, as DialURL does. ctx bounds that alone; later the relay dials when a peer comes.
// With DialOptions.Resolve, rawurl only names the store in errors.
func NewRelay(ctx context.Context, rawurl string, o *DialOptions) (*Relay, error) {
	bad := func(detail string) error {
		return &Error{Op: "relay", Key: redacted(rawurl), Code: wire.CodeInvalid, Err: ErrInvalid, Detail: detail}
	}
	u, err := url.Parse(rawurl)
	switch {
	case err != nil || u.Scheme != "muster":
		return nil, bad("it is no URL of the form muster://host:port")
	case strings.TrimPrefix(u.Path, "/") != "":
		return nil, bad("a relay passes on the whole store: let those who connect to it name a prefix")
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
	r.shows = options.Secret != nil || config != nil && showsCertificate(config)
	r.life, r.stop = context.WithCancel(context.Background())
	l, err := r.dialer.dialUntil(ctx, &wire.Request{Key: r.name})
	if err == nil {
		err = r.accept(l)
	}
	if err != nil {
		r.stop()
		return nil, err
	}
	r.mu.Lock() // its reader may be early
	defer r.mu.Unlock()
	r.use(l)
	return r, nil
}

// showsCertificate reports whether there is one for the server to see.
func showsCertificate(c *tls.Config) bool {
	return len(c.Certificates) > 0 || c.GetClientCertificate != nil
}

// relayed reports whether a welcome has come through a relay.
func relayed(welcome *wire.Reply) bool {
	return len(welcome.Nums) > 2 && welcome.Nums[2] == cameByRelay
}

// accept refuses, and ends, a connection that a relay can do nothing with.
func (r *Relay) accept(l *clientConn) error {
	nums, why := l.welcome.Nums, "it takes no relays: it is of another version, or has another engine"
	switch {
	case len(nums) > 2 && nums[2] == takesRelays:
		return nil
	case relayed(&l.welcome):
		why = "that is a relay itself: name the store"
	}
	l.close()
	return &Error{Op: "relay", Key: r.dialer.addr, Code: wire.CodeUnsupported, Err: ErrUnsupported, Detail: why}
}

// Do implements Engine: calls of this process have a connection of their own.
func (r *Relay) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	s, err := r.direct(ctx)
	if err != nil {
		return err
	}
	return s.engine.Do(ctx, req, rep)
}

func (r *Relay) direct(ctx context.Context) (*Store, error) {
	r.mu.Lock()
	own, closed := r.own, r.closed
	r.mu.Unlock()
	if own != nil || closed {
		return own, closedIf(closed)
	}
	d := &dialer{addr: r.dialer.addr, addrs: r.dialer.addrs, options: r.dialer.options} // who dials has its own
	l, err := d.dialUntil(ctx, &wire.Request{})
	if err != nil {
		return nil, err
	}
	s := New(newClient(d, l))
	r.mu.Lock()
	if own, closed = r.own, r.closed; own == nil && !closed {
		own, r.own = s, s
	}
	r.mu.Unlock()
	if own != s {
		_ = s.Close()
	}
	return own, closedIf(closed)
}

func closedIf(closed bool) error {
	if closed {
		return ErrClosed
	}
	return nil
}

// Close ends the connection to the store, and with it those of all peers. It may be called twice.
func (r *Relay) Close() error {
	r.stop()
	r.mu.Lock()
	r.closed = true
	up, own := r.up, r.own
	r.mu.Unlock()
	if own != nil {
		_ = own.Close()
	}
	if up != nil {
		up.line.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpGoodbye}) })
		up.line.out.Flush()
		_ = up.line.nc.SetReadDeadline(time.Now().Add(goodbyeTimeout))
	}
	r.running.Wait()
	return nil
}

var errCutAgain = errors.New("the connection has ended as soon as it was there")

// uplink is the connection to the store. Without one it is dialed, once for all who ask meanwhile; stopped is the end of asking.
func (r *Relay) uplink(stopped <-chan struct{}) (*uplink, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for tried := false; r.up == nil; tried = true {
		switch {
		case r.closed:
			return nil, ErrClosed
		case tried && r.dialing == nil:
			return nil, cmp.Or(r.why, errCutAgain)
		case r.dialing == nil:
			r.dialing = make(chan struct{})
			r.running.Go(r.dial)
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
		err = r.accept(l)
	}
	if err != nil {
		r.logger.Warn("the store cannot be reached", "addr", r.dialer.addr, "err", err)
	}
	r.mu.Lock()
	done := r.dialing
	r.dialing, r.why = nil, err
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

// dialStore tries each address once. If Resolve finds the store, its leader may be changing: then it
// tries for takeoverTime.
func (r *Relay) dialStore() (*clientConn, error) {
	began := time.Now()
	for tries := 1; ; tries++ {
		l, err := r.dialer.dial(r.life, &wire.Request{Key: r.name})
		switch {
		case err == nil || r.life.Err() != nil:
			return l, err
		case tries < len(r.dialer.addrs):
		case r.dialer.options.Resolve != nil && isUnreachable(err) && time.Since(began) < takeoverTimeout:
			time.Sleep(takeoverTimeout / 100)
		default:
			return nil, err
		}
	}
}

// use makes l the connection to the store. Called with mu.
func (r *Relay) use(l *clientConn) {
	u := newUplink(r, l)
	r.up = u
	if moved := r.dialer.options.WaitReplaced; moved != nil {
		r.running.Go(l.watchReplaced(r.life, moved))
	}
	r.running.Go(u.read)
}

// gone notes that u has ended.
func (r *Relay) gone(u *uplink, err error) {
	if u.line.stopWatch != nil {
		u.line.stopWatch()
	}
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

// excuse is what a peer is told for which there is no store: the code says whether one may be there soon.
func (r *Relay) excuse(err error) (code wire.Code, detail string) {
	code = wire.CodeUnavailable
	switch {
	case isAmbiguousTLS(err): // the next peer makes it try again
	case isConnRefused(err):
		code = wire.CodeLost
	case errors.Is(err, ErrDenied), errors.Is(err, ErrProtocol), errors.Is(err, ErrInvalid), errors.Is(err, ErrUnsupported):
		code = wire.CodeDenied
	}
	return code, fmt.Sprintf("the relay cannot reach the store at %s: %v", r.dialer.addr, err)
}

// lookAround implements Backend: the store looks after its peers. It asks a store that is silent, and gives up its connection if it stays so. For those peers that are heard here, and of
// which the store wants to know, it says so. late is that this process itself stood still.
func (r *Relay) lookAround(_ *Server, late bool) {
	r.mu.Lock()
	u := r.up
	asks, lost := false, false
	if u != nil {
		asks, lost = u.silence(late)
	}
	r.mu.Unlock()
	switch {
	case u == nil:
		return
	case lost:
		_ = u.line.nc.Close() // its reader notices
	case asks:
		u.line.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpPing}) })
	}
	u.vouch()
	u.line.out.Flush()
}

// refuses implements Backend: a relay that presents credentials to the store needs a Server that
// authenticates its clients.
func (r *Relay) refuses(s *Server) string {
	if !r.shows || s.Insecure || len(s.Access) > 0 || s.wantsCertificate() {
		return ""
	}
	return "it shows the store a secret or a certificate, and whoever reaches this address would have its rights: want a secret or a client certificate " +
		"here too (Access, TLS), or set Insecure if all who reach it may have them"
}

// serve implements Backend.
func (r *Relay) serve(c *conn, buf []byte) {
	u, err := r.uplink(c.server.stopped)
	if err != nil {
		code, why := r.excuse(err)
		c.turnAway(code, why)
		c.server.ended(c, err)
		return
	}
	c.serveBy(&passage{conn: c, up: u, seats: map[seat]struct{}{}}, buf)
}
