package tcpstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/transport"
)

// If the store answers at once, one loop reads all connections and carries out their requests:
// waking a goroutine for each request would take longer than the request. Long requests are left to
// the connection's goroutine; meanwhile the loop does not read the connection. With other engines,
// and on systems that have no such loop, that goroutine reads.

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

// replyGrace is how long a client may take to read the replies that were queued before the end.
const replyGrace = time.Second

// serve serves a connection with a goroutine that reads.
func (p *peer) serve(ctx context.Context, c net.Conn) error {
	pipe := transport.NewPipe(c)
	p.out.open(pipe, p.in.Budget)
	stop := context.AfterFunc(p.life, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	err := p.run(c)
	stop()
	err = p.end(ctx, err)
	last, cancel := context.WithTimeout(ctx, replyGrace)
	defer cancel()
	_ = p.out.room(last, 0)
	_ = c.Close()
	p.out.Discard()
	pipe.Done()
	return err
}

// run carries out the client's requests.
func (p *peer) run(c net.Conn) error {
	for {
		need, _, err := p.carryOutAll()
		if err == nil {
			p.flush()
			p.noteHeld()
			err = p.in.fill(c, need)
			p.stall.held.Store(0)
		}
		if err != nil {
			return err
		}
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

// reader is a peer whose connection a loop reads.
type reader struct {
	*peer
	sock transport.Socket
	need int
	away atomic.Bool   // the connection's goroutine owns the peer; the loop does not use it
	long chan struct{} // gets a token when the goroutine is to take over
	over chan error    // gets the connection's error when it ends
}

// serveBy serves a connection that the loop reads.
func (p *peer) serveBy(ctx context.Context, loop *transport.Loop, c *net.TCPConn) error {
	r := &reader{peer: p, long: make(chan struct{}, 1), over: make(chan error, 1)}
	p.quick = true
	defer func() {
		if r.sock != nil {
			p.out.Discard()
		}
	}()
	err := loop.Adopt(c, func(s transport.Socket) (transport.Reader, error) {
		r.sock = s
		p.out.open(s, p.in.Budget)
		defer r.flush()
		return r, r.goOn()
	})
	if err != nil {
		return p.end(ctx, err)
	}
	stop := context.AfterFunc(p.life, func() { _ = r.sock.Close() })
	defer stop()
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
