package tcpstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/muster-pg/muster/internal/transport"
)

// If the store answers at once, one loop reads all connections and carries out their requests:
// waking a goroutine for each request would take longer than the request. Long requests are left to
// the connection's goroutine; meanwhile the loop does not read the connection. With other engines and
// connections, and on systems that have no such loop, that goroutine reads.

// loops is the loop of a Protocol. It exists while the Protocol has connections.
type loops struct {
	mu    sync.Mutex // protects the fields below
	loop  *transport.Loop
	users int
}

// borrow returns the loop for one more connection, or nil if this system has none.
func (l *loops) borrow() *transport.Loop {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loop == nil {
		loop, err := transport.NewLoop()
		if err != nil {
			return nil
		}
		l.loop = loop
	}
	l.users++
	return l.loop
}

func (l *loops) giveBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users == 0 {
		l.loop.Close()
		l.loop = nil
	}
}

// end ends the requests of the connection that are under way, and returns why the connection ended.
func (p *peer) end(ctx context.Context, err error) error {
	if p.out.Outbox != nil && errors.Is(p.out.Err(), transport.ErrSlow) {
		err = transport.ErrSlow
	}
	p.fail(err)
	p.forget()
	p.running.Wait()
	p.in.Release()
	p.stall.stop()
	p.disown()
	if ctx.Err() != nil {
		return net.ErrClosed
	}
	return context.Cause(p.life)
}

// reader is a peer whose connection a loop reads, or, with loop nil, transport.Serve.
type reader struct {
	*peer
	sock transport.Socket
	need int
	away atomic.Bool   // the connection's goroutine owns the peer; the loop does not use it
	long chan struct{} // gets a token when the goroutine is to take over
	over chan error    // gets the connection's error when it ends
}

// serve serves a connection.
func (p *peer) serve(ctx context.Context, loop *transport.Loop) error {
	r := &reader{peer: p, long: make(chan struct{}, 1), over: make(chan error, 1)}
	p.quick = loop != nil
	adopted := func(s transport.Socket) (transport.Reader, error) {
		r.sock = s
		p.out.open(s, p.in.Budget)
		context.AfterFunc(p.life, func() { _ = s.Close() })
		defer r.flush()
		return r, r.goOn()
	}
	var err error
	if loop != nil {
		err = loop.Adopt(p.Conn.(*net.TCPConn), adopted)
	} else {
		err = transport.Serve(p.Conn, make([]byte, firstBuffer), adopted)
	}
	if r.sock != nil {
		defer p.out.Discard()
	}
	if err != nil {
		return p.end(ctx, err)
	}
	for {
		select {
		case err := <-r.over:
			return p.end(ctx, err)
		case <-r.long:
			r.takeTime()
		}
	}
}

// Buffer implements transport.Reader.
func (r *reader) Buffer(buf []byte) []byte {
	if r.away.Load() {
		return nil
	}
	return r.in.Room(buf, r.need)
}

// Received implements transport.Reader.
func (r *reader) Received(n int) error {
	r.in.Advance(n)
	return r.goOn()
}

// goOn carries out the requests that have arrived, and leaves long ones to the goroutine.
func (r *reader) goOn() error {
	need, long, err := r.carryOutAll()
	r.need = need
	r.in.Compact()
	switch {
	case err != nil:
		r.out.Flush()
	case !long:
		r.noteHeld()
	default:
		r.stall.held.Store(0)
		r.away.Store(true)
		r.sock.Pause(true)
		r.long <- struct{}{}
	}
	return err
}

// takeTime carries out the requests that have arrived, without a time limit.
func (r *reader) takeTime() {
	r.quick = false
	need, _, err := r.carryOutAll()
	if err == nil {
		err = r.room()
	}
	if err != nil {
		r.out.Flush()
		r.fail(err)
		return // the loop detects the end
	}
	r.need, r.quick = need, true
	r.noteHeld()
	r.away.Store(false)
	r.sock.Pause(false)
}

// Flush implements transport.Reader.
func (r *reader) Flush() { r.flush() }

// Ended implements transport.Reader.
func (r *reader) Ended(err error) { r.over <- err }
