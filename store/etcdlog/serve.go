package etcdlog

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
)

// Replica is one process of a replicated store. It follows the leader, and serves clients while it
// leads itself.
//
// It owns Listener, which it closes, and all goroutines that serve, until Run returns.
type Replica struct {
	Client   *clientv3.Client
	Options  Options
	Listener net.Listener
	Addr     string // where clients reach Listener, host:port; default: its address
	// NewMemory returns the store of a new term, with its limits; nil means default limits. Run
	// sets its Replica, and its ReconnectTimeout to 20 s if that is 0.
	NewMemory func() *store.Memory
	// NewServer returns the server of a term; nil means a store.Server without TLS and secrets.
	NewServer    func(m *store.Memory) (*store.Server, error)
	DrainTimeout time.Duration // how long peers get to disconnect when ctx ends; 0: none
	// OnLead, if not nil, is called with the term's store when this process begins to lead, and
	// with nil when it follows again.
	OnLead func(m *store.Memory)
}

// Run follows and leads until ctx ends (nil), or until an error that no retry can resolve: etcd
// denies access, or its content is malformed. It gives up the leadership before it returns, so that
// another process takes over at once.
func (r *Replica) Run(ctx context.Context) error {
	g := &acceptor{Listener: r.Listener}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.accept()
	}()
	defer func() {
		_ = r.Listener.Close()
		<-done
	}()
	addr := cmp.Or(r.Addr, r.Listener.Addr().String())
	me := Leader{Addr: addr, ID: newID()}
	if v, err := listenLiveness(r.Listener.Addr(), me.ID); err != nil {
		r.Options.withDefaults().Logger.Warn("no liveness listener: standbys detect the end of this process only after the failure timeout", "err", err)
	} else {
		defer v.close()
		me.LivenessAddr = v.addrFor(addr)
	}
	for {
		l, err := lead(ctx, r.Client, me, &r.Options)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := r.term(ctx, g, l); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// reconnectTimeout is how long sessions get to reconnect to the next leader. A client that was
// partitioned or stopped notices the takeover after its own liveness timeout, which is 10 s.
const reconnectTimeout = 20 * time.Second

// term serves until l has ended, or ctx ends.
func (r *Replica) term(ctx context.Context, g *acceptor, l *Leadership) error {
	defer l.Close()
	m := &store.Memory{Logger: r.Options.Logger}
	if r.NewMemory != nil {
		m = r.NewMemory()
	}
	if m.Replica = l; m.ReconnectTimeout == 0 {
		m.ReconnectTimeout = reconnectTimeout
	}
	if err := m.Open(); err != nil {
		if errors.Is(err, ErrReplaced) || transient(err) {
			l.Logger.Warn("following", "root", l.Root, "err", err)
			return nil
		}
		return err
	}
	defer m.Close()
	s := &store.Server{Engine: m, Logger: r.Options.Logger}
	if r.NewServer != nil {
		var err error
		if s, err = r.NewServer(m); err != nil {
			return err
		}
	}
	if r.OnLead != nil {
		r.OnLead(m)
		defer r.OnLead(nil)
	}
	way := g.beginTerm()
	ended := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { ended <- s.Serve(way) })
	var err error
	select {
	case err = <-ended:
	case <-m.Failed():
		l.Logger.Info("following", "root", l.Root, "err", m.Err())
	case <-ctx.Done():
		l.Logger.Info("handing over the leadership", "root", l.Root)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.DrainTimeout)
		_ = s.Shutdown(drain)
		cancel()
	}
	_ = s.Close()
	serving.Wait()
	return err
}

// acceptor passes the connections of a listener to the server of the current term. While this
// process does not lead, it closes them: their clients try another address.
type acceptor struct {
	net.Listener

	mu   sync.Mutex
	term *termListener // nil while this process follows
}

// termListener is the listener of the server of one term.
type termListener struct {
	acceptor *acceptor
	conns    chan net.Conn
	done     chan struct{}
	once     sync.Once
}

// beginTerm returns the listener of a new term.
func (g *acceptor) beginTerm() *termListener {
	w := &termListener{acceptor: g, conns: make(chan net.Conn), done: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.term = w
	return w
}

// accept accepts connections until the listener is closed.
func (g *acceptor) accept() {
	for pause := time.Millisecond; ; {
		c, err := g.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, or the peer closed at once: try again
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		g.mu.Lock()
		w := g.term
		g.mu.Unlock()
		if w == nil {
			_ = c.Close()
			continue
		}
		select {
		case w.conns <- c:
		case <-w.done:
			_ = c.Close()
		}
	}
}

// Accept implements net.Listener.
func (w *termListener) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It ends the term.
func (w *termListener) Close() error {
	w.once.Do(func() {
		w.acceptor.mu.Lock()
		if w.acceptor.term == w {
			w.acceptor.term = nil
		}
		w.acceptor.mu.Unlock()
		close(w.done)
	})
	return nil
}

// Addr implements net.Listener.
func (w *termListener) Addr() net.Addr { return w.acceptor.Addr() }
