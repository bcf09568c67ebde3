package etcdlog

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
)

// Replica is one process of a replicated store: it follows the leader, and serves while it leads itself.
//
// It owns Listener, which it closes, and all goroutines that serve, until Run returns.
type Replica struct {
	Client   *clientv3.Client
	Options  Options
	Listener net.Listener
	Addr     string // where clients reach Listener, host:port; default its address
	// Memory makes the store of a term, with its limits; nil is one with default limits. Its Replica is set, and its Grace, if that is 0, to 20 s.
	Memory func() *store.Memory
	// Server makes what serves it; nil is a store.Server without TLS and secrets.
	Server func(m *store.Memory) (*store.Server, error)
	Drain  time.Duration // for peers to hang up, when ctx ends; 0 is not at all
	// Leads, if it is not nil, is called with the store of a term when this process begins to lead, and with nil when it follows again.
	Leads func(m *store.Memory)
}

// Run follows and leads until ctx ends, or something is wrong that does not pass: etcd denies access, or what is in it is
// malformed. It gives up the leadership before it returns, so that another process takes over at once.
func (r *Replica) Run(ctx context.Context) error {
	g := &gate{Listener: r.Listener}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.accept()
	}()
	defer func() {
		_ = r.Listener.Close()
		<-done
	}()
	addr := r.Addr
	if addr == "" {
		addr = r.Listener.Addr().String()
	}
	me := Leader{Addr: addr, ID: newID()}
	if v, err := listenLive(r.Listener.Addr(), me.ID); err != nil {
		r.Options.withDefaults().Logger.Warn("standbys will not notice the end of this process at once", "err", err)
	} else {
		defer v.close()
		me.Live = v.at(addr)
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

// comeBack is what sessions get to come to the next leader. A client of one that was cut off, or stands still, notices when its own liveness
// timeout has passed, which is 10 s.
const comeBack = 20 * time.Second

// term serves until l is over, or ctx ends.
func (r *Replica) term(ctx context.Context, g *gate, l *Leadership) error {
	defer l.Close()
	m := &store.Memory{Logger: r.Options.Logger}
	if r.Memory != nil {
		m = r.Memory()
	}
	if m.Replica = l; m.Grace == 0 {
		m.Grace = comeBack
	}
	if err := m.Open(); err != nil {
		if errors.Is(err, ErrReplaced) || transient(err) {
			l.Logger.Warn("follows", "root", l.Root, "err", err)
			return nil
		}
		return err
	}
	defer m.Close()
	s := &store.Server{Engine: m, Logger: r.Options.Logger}
	if r.Server != nil {
		var err error
		if s, err = r.Server(m); err != nil {
			return err
		}
	}
	if r.Leads != nil {
		r.Leads(m)
		defer r.Leads(nil)
	}
	way := g.open()
	ended := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { ended <- s.Serve(way) })
	var err error
	select {
	case err = <-ended:
	case <-m.Failed():
		l.Logger.Info("follows", "root", l.Root, "err", m.Err())
	case <-ctx.Done():
		l.Logger.Info("hands over", "root", l.Root)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Drain)
		_ = s.Shutdown(drain)
		cancel()
	}
	_ = s.Close()
	serving.Wait()
	return err
}

// gate is a listener whose connections go to the server of a term, and are closed while there is none: their clients try another address.
type gate struct {
	net.Listener

	mu   sync.Mutex
	term *termListener // nil: this process follows
}

// termListener is the listener of one term's server.
type termListener struct {
	gate  *gate
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// open begins a term.
func (g *gate) open() *termListener {
	w := &termListener{gate: g, conns: make(chan net.Conn), done: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.term = w
	return w
}

// accept accepts until the listener is closed.
func (g *gate) accept() {
	for pause := time.Millisecond; ; {
		c, err := g.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no more file descriptors, or a peer that went away: that passes
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

// Close implements net.Listener: it ends the term.
func (w *termListener) Close() error {
	w.once.Do(func() {
		w.gate.mu.Lock()
		if w.gate.term == w {
			w.gate.term = nil
		}
		w.gate.mu.Unlock()
		close(w.done)
	})
	return nil
}

// Addr implements net.Listener.
func (w *termListener) Addr() net.Addr { return w.gate.Addr() }
