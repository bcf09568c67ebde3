package pgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-pg/muster/store"
)

// sharedStore is the store that groups of this process share, and in the process that hosts it the
// server too. Each group handle holds a reference; the last one closes it.
type sharedStore struct {
	store    *store.Store
	addr     string // for errors
	of       string // name of the group whose rank 0 hosts it; "": another process hosts it, or this one
	external bool   // Config.Store: the caller closes it

	// of the process that hosts it
	server *store.Server   // of the process that hosts the store; nil elsewhere, and so are the next ones
	served sync.WaitGroup  // for Serve
	broken context.Context // cancelled with the cause when Serve fails
	fail   context.CancelCauseFunc

	mu   sync.Mutex // protects refs
	refs int
}

// hosting is what this process serves, by address. A second group of the process at the same
// address shares the server that listens there: the port is in use, and the owner is known.
var hosting = struct {
	mu sync.Mutex // protects at
	at map[string]*sharedStore
}{at: map[string]*sharedStore{}}

// acquire adds a reference. It reports false if the last one has been released.
func (s *sharedStore) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs == 0 {
		return false
	}
	s.refs++
	return true
}

// release releases a reference. The last one closes what s owns; a server drains until ctx ends.
func (s *sharedStore) release(ctx context.Context) error {
	s.mu.Lock()
	s.refs--
	last := s.refs == 0
	s.mu.Unlock()
	switch {
	case !last || s.external:
		return nil
	case s.server == nil:
		return s.store.Close()
	}
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("pgroup: the store at %s: %w", s.addr, err), s.server.Close())
	}
	s.served.Wait()
	s.unpublish()
	return errors.Join(err, s.store.Close())
}

// releaseUnused releases the reference of a group that could not be formed.
func (s *sharedStore) releaseUnused(c *Config) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	if err := s.release(ctx); err != nil {
		c.logger().Debug("a store that no group came of was not released", "addr", s.addr, "err", err)
	}
}

// name returns the store as a user knows it.
func (s *sharedStore) name() string {
	if s.of != "" {
		return fmt.Sprintf("the store at %s, which rank 0 of %q hosted,", s.addr, s.of)
	}
	return "the store at " + s.addr
}

func (s *sharedStore) hosts() bool { return s.server != nil }

// openStore returns the store at which the ranks of c meet: it opens, hosts or dials it.
func (c *Config) openStore(ctx context.Context) (*sharedStore, error) {
	switch {
	case c.Store != nil:
		return &sharedStore{store: c.Store, addr: "Config.Store", external: true, refs: 1}, nil
	case c.Listener != nil:
		return c.host(c.Listener)
	case c.Address == "":
		return &sharedStore{store: store.New(new(store.Memory)), addr: "this process", refs: 1}, nil
	case isURL(c.Address):
		return c.openURLStore(ctx)
	case c.Rank == 0:
		return c.listen(ctx)
	}
	return c.dial(ctx, c.Address, true)
}

// openURLStore opens the store of a URL. It waits for a muster server to listen; other schemes
// decide by themselves.
func (c *Config) openURLStore(ctx context.Context) (*sharedStore, error) {
	u, err := url.Parse(c.Address)
	if err != nil {
		return nil, invalid("Config.Address: %v", err)
	}
	if c.Schemes != nil && (c.Secret != nil || c.TLS != nil || c.Dial != nil) {
		return nil, invalid("Config.Schemes opens %s by itself: put the secret, TLS or the way to dial into what it has for that scheme", u.Redacted())
	}
	var s *store.Store
	switch {
	case c.Schemes != nil:
		s, err = c.Schemes.Open(ctx, c.Address)
	case u.Scheme == "muster":
		s, err = store.DialURL(ctx, c.Address, c.dialOptions(true))
	default:
		s, err = store.Open(ctx, c.Address)
	}
	if err != nil {
		return nil, err
	}
	return &sharedStore{store: s, addr: u.Redacted(), refs: 1}, nil
}

func (c *Config) dial(ctx context.Context, addr string, wait bool) (*sharedStore, error) {
	s, err := store.Dial(ctx, addr, c.dialOptions(wait))
	if err != nil {
		return nil, err
	}
	return &sharedStore{store: s, addr: addr, of: c.Name, refs: 1}, nil
}

// dialOptions returns c.Dial with the settings of c for what it leaves out.
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
	o.LivenessTimeout = cmp.Or(o.LivenessTimeout, c.LivenessTimeout)
	o.Wait = wait
	return &o
}

// portWait is how long rank 0 looks for the owner of its port before that is an error: a host that
// is ending has not freed the port, and does not answer either.
const portWait = 2 * time.Second

// listen hosts at c.Address. If the port is in use, the group meets at the store that listens
// there: that of another group of this process, or of a launcher's agent.
func (c *Config) listen(ctx context.Context) (*sharedStore, error) {
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

// hostedHere returns the store that this process serves at an address, with a new reference, or
// nil.
func hostedHere(addr string) *sharedStore {
	hosting.mu.Lock()
	defer hosting.mu.Unlock()
	if s := hosting.at[addr]; s != nil && s.acquire() {
		return s
	}
	return nil
}

// newServer returns a server of a new store in memory, with the authentication that c asks for.
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

// host serves a new store on l. This process uses it without a socket. It owns l, even if it fails.
func (c *Config) host(l net.Listener) (*sharedStore, error) {
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
	s := &sharedStore{store: store.New(srv.Engine), addr: l.Addr().String(), refs: 1, server: srv}
	s.broken, s.fail = context.WithCancelCause(context.Background())
	s.publish(l.Addr().String(), c.Address)
	s.served.Go(func() {
		if err := s.server.Serve(l); !errors.Is(err, store.ErrServerClosed) {
			c.logger().Error("the server of the group's store failed", "addr", s.addr, "err", err)
			s.fail(fmt.Errorf("serving at %s: %w", s.addr, err))
		}
	})
	c.logger().Debug("hosting the store of the group", "addr", s.addr)
	return s, nil
}

// publish makes s known to other groups of this process.
func (s *sharedStore) publish(addrs ...string) {
	hosting.mu.Lock()
	defer hosting.mu.Unlock()
	for _, a := range addrs {
		if a != "" && !strings.HasSuffix(a, ":0") {
			hosting.at[a] = s
		}
	}
}

func (s *sharedStore) unpublish() {
	hosting.mu.Lock()
	defer hosting.mu.Unlock()
	maps.DeleteFunc(hosting.at, func(_ string, at *sharedStore) bool { return at == s })
	s.fail(nil)
}
