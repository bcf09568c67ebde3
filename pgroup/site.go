package pgroup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-pg/muster/store"
)

// site is where groups meet: a store, and in the process that hosts it, its server. Every group handle
// on it holds it; it goes with the last one.
type site struct {
	store *store.Store
	addr  string // in errors
	kept  bool   // somebody else closes store

	// of the process that hosts it
	server *store.Server
	served chan struct{}   // closed when Serve has returned
	broken context.Context // ends with the cause when Serve fails
	fail   context.CancelCauseFunc
	keys   []string // in hosting

	mu   sync.Mutex // protects refs
	refs int
}

// hosting is what this process serves, by address. That a port is taken is a fact of the process: a second group of it at the
// same address shares the server that listens there, and holds it like the first one.
var hosting = struct {
	mu sync.Mutex // protects at
	at map[string]*site
}{at: map[string]*site{}}

// hold counts one more handle; false if the last one is gone.
func (s *site) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs == 0 {
		return false
	}
	s.refs++
	return true
}

// release counts one handle less; the last one closes what the site owns, and a server drains until ctx ends.
func (s *site) release(ctx context.Context) error {
	s.mu.Lock()
	s.refs--
	last := s.refs == 0
	s.mu.Unlock()
	switch {
	case !last || s.kept:
		return nil
	case s.server == nil:
		return s.store.Close()
	}
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("pgroup: the store at %s: %w", s.addr, err), s.server.Close())
	}
	<-s.served
	s.forget()
	return errors.Join(err, s.store.Close())
}

// abandon releases a site that no group came of.
func (s *site) abandon(c *Config) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	if err := s.release(ctx); err != nil {
		c.logger().Debug("a store that no group came of was not released", "addr", s.addr, "err", err)
	}
}

func (s *site) hosts() bool { return s != nil && s.server != nil }

// meet finds the place that c names: it opens, hosts or dials it.
func (c *Config) meet(ctx context.Context) (*site, error) {
	switch {
	case c.Store != nil:
		return &site{store: c.Store, addr: "Config.Store", kept: true, refs: 1}, nil
	case c.Listener != nil:
		return c.host(c.Listener)
	case c.Address == "":
		return &site{store: store.New(new(store.Memory)), addr: "this process", refs: 1}, nil
	case isURL(c.Address):
		return c.openURL(ctx)
	case c.Rank == 0:
		return c.listen(ctx)
	}
	return c.dial(ctx, c.Address, true)
}

// openURL opens the store of a URL. That of a muster server is waited for; other schemes have their own ways.
func (c *Config) openURL(ctx context.Context) (*site, error) {
	u, err := url.Parse(c.Address)
	if err != nil {
		return nil, invalid("Config.Address: %v", err)
	}
	if c.Schemes != nil && (c.Secret != nil || c.TLS != nil || c.Dial != nil) {
		return nil, invalid("Config.Schemes opens %s by itself: put the secret, TLS or the way to dial into what it has for that scheme", u.Redacted())
	}
	var s *store.Store
	if u.Scheme == "muster" && c.Schemes == nil {
		s, err = store.DialURL(ctx, c.Address, c.dialOptions(true))
	} else {
		schemes := c.Schemes
		if schemes == nil {
			schemes = store.Builtin()
		}
		s, err = schemes.Open(ctx, c.Address)
	}
	if err != nil {
		return nil, err
	}
	return &site{store: s, addr: u.Redacted(), refs: 1}, nil
}

func (c *Config) dial(ctx context.Context, addr string, wait bool) (*site, error) {
	s, err := store.Dial(ctx, addr, c.dialOptions(wait))
	if err != nil {
		return nil, err
	}
	return &site{store: s, addr: addr, refs: 1}, nil
}

// dialOptions are those of c.Dial, with what c has of its own.
func (c *Config) dialOptions(wait bool) *store.DialOptions {
	o := store.DialOptions{Logger: c.storeLogger()}
	if c.Dial != nil {
		o = *c.Dial
	}
	if o.TLS == nil && c.TLS != nil {
		o.TLS = c.TLS.Client
	}
	if o.Secret == nil {
		o.Secret = c.Secret
	}
	if o.LivenessTimeout == 0 {
		o.LivenessTimeout = c.LivenessTimeout
	}
	o.Wait = wait
	return &o
}

// portWait is how long rank 0 looks for who uses its port, before that is an error: a host that ends has neither
// freed it nor answers.
const portWait = 2 * time.Second

// listen hosts at c.Address. If the port is in use, whoever listens there is where the group meets: another group of this
// process, or the agent of a launcher.
func (c *Config) listen(ctx context.Context) (*site, error) {
	for began := time.Now(); ; {
		l, err := store.Listen(ctx, c.Address)
		switch {
		case err == nil:
			return c.host(l)
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("hosting at Config.Address: %w", err)
		}
		if s := hostedHere(c.Address); s != nil {
			return s, nil
		}
		s, dialErr := c.dial(ctx, c.Address, false)
		if dialErr == nil {
			return s, nil
		}
		if errors.Is(dialErr, store.ErrProtocol) || errors.Is(dialErr, store.ErrDenied) || ctx.Err() != nil || time.Since(began) > portWait {
			return nil, fmt.Errorf("hosting at Config.Address: %w: end what listens there, or use another port (MASTER_PORT); and connecting to it: %w", err, dialErr)
		}
		select {
		case <-ctx.Done():
		case <-time.After(portWait / 40):
		}
	}
}

// hostedHere holds the site that this process serves at an address, if it does.
func hostedHere(addr string) *site {
	hosting.mu.Lock()
	defer hosting.mu.Unlock()
	if s := hosting.at[addr]; s != nil && s.hold() {
		return s
	}
	return nil
}

// newServer is a server of a new store, with what c says of who may come in.
func (c *Config) newServer() (*store.Server, error) {
	srv := &store.Server{Engine: new(store.Memory), Insecure: c.Insecure, Logger: c.storeLogger()}
	srv.Limits.LivenessTimeout = c.LivenessTimeout
	if c.Secret != nil {
		srv.Access = []store.Access{{Secret: c.Secret, Write: true}}
	}
	if c.TLS == nil {
		return srv, nil
	}
	var err error
	srv.TLS, err = c.TLS.Server()
	return srv, err
}

// host serves a new store on l. This process uses it without a socket.
func (c *Config) host(l net.Listener) (*site, error) {
	srv, err := c.newServer()
	if err == nil {
		err = srv.Check(l.Addr())
	}
	if errors.Is(err, store.ErrInsecure) {
		err = fmt.Errorf("%w: %s; set Config.Secret (MUSTER_SECRET_FILE), or in a network that you trust Config.Insecure (MUSTER_INSECURE=1)", store.ErrInsecure, l.Addr())
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &site{store: store.New(srv.Engine), addr: l.Addr().String(), refs: 1, served: make(chan struct{}), server: srv}
	s.broken, s.fail = context.WithCancelCause(context.Background())
	s.enter(l.Addr().String(), c.Address)
	go func() {
		defer close(s.served)
		if err := s.server.Serve(l); !errors.Is(err, store.ErrServerClosed) {
			c.logger().Error("the server of the group's store failed", "addr", s.addr, "err", err)
			s.fail(fmt.Errorf("serving at %s: %w", s.addr, err))
		}
	}()
	c.logger().Debug("hosting the store of the group", "addr", s.addr)
	return s, nil
}

// enter makes s known to the other groups of this process.
func (s *site) enter(addrs ...string) {
	hosting.mu.Lock()
	defer hosting.mu.Unlock()
	for _, a := range addrs {
		if a != "" && !strings.HasSuffix(a, ":0") {
			hosting.at[a] = s
			s.keys = append(s.keys, a)
		}
	}
}

func (s *site) forget() {
	hosting.mu.Lock()
	defer hosting.mu.Unlock()
	for _, a := range s.keys {
		if hosting.at[a] == s {
			delete(hosting.at, a)
		}
	}
	s.fail(nil)
}
