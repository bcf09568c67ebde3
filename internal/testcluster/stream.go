package testcluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readSize is how many bytes a direction of a connection holds at most; the rest waits in the kernel.
const readSize = 32 << 10

// pair is a client's connection and the connection to the target. Its goroutine (Proxy.serve) owns
// the two goroutines that move bytes; end stops both.
type pair struct {
	proxy *Proxy
	fins  atomic.Int32  // directions that have ended without an error
	gone  chan struct{} // closed when the last goroutine has ended

	ctx    context.Context // ends with the pair
	cancel context.CancelFunc

	mu    sync.Mutex // protects the fields below
	conns []*net.TCPConn
	how   Ending
}

func newPair(p *Proxy, client *net.TCPConn) *pair {
	pr := &pair{proxy: p, gone: make(chan struct{}), conns: []*net.TCPConn{client}}
	pr.ctx, pr.cancel = context.WithCancel(context.Background())
	return pr
}

// run moves bytes until the pair has ended.
func (pr *pair) run(target string) {
	client := pr.conns[0]
	// The target may have accepted a connection that DialContext gives up: that is a reset, too.
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return c.Control(resetOnClose) }}
	c, err := d.DialContext(pr.ctx, "tcp", target)
	if err != nil {
		pr.end(RST)
		return
	}
	server := c.(*net.TCPConn)
	if !pr.add(server) {
		return
	}
	up := &stream{pair: pr, way: pr.proxy.Up, src: client, dst: server}
	down := &stream{pair: pr, way: pr.proxy.Down, src: server, dst: client, back: up}
	up.back = down
	var moving sync.WaitGroup
	moving.Go(up.move)
	moving.Go(down.move)
	moving.Wait()
	<-pr.ctx.Done() // the ends of both directions may be lost
}

// add adds c to the pair, or closes it if the pair has ended meanwhile.
func (pr *pair) add(c *net.TCPConn) bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.conns = append(pr.conns, c)
	if pr.ctx.Err() != nil {
		shut(c, pr.how)
		return false
	}
	return true
}

// end closes both connections, once.
func (pr *pair) end(how Ending) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.ctx.Err() != nil {
		return
	}
	pr.how = how
	pr.cancel()
	for _, c := range pr.conns {
		shut(c, how)
	}
}

func resetOnClose(fd uintptr) {
	_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

func shut(c *net.TCPConn, how Ending) {
	switch how {
	case RST:
		_ = c.SetLinger(0)
	case FIN: // Close alone would reset if anything is unread, and what was dialed resets
		_ = c.SetLinger(-1)
		_ = c.CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(unreadTime))
		_, _ = io.Copy(io.Discard, c)
	}
	c.Close()
}

// unreadTime bounds how long shut takes what is unread.
const unreadTime = time.Millisecond

// stream is one direction of a pair.
type stream struct {
	pair     *pair
	way      *Direction
	src, dst *net.TCPConn
	back     *stream // the other direction

	free time.Time   // owned by move: when the next piece may be sent
	lost atomic.Bool // data was lost, so nothing may follow it
}

// move moves bytes until the pair or this direction has ended.
func (s *stream) move() {
	buf := make([]byte, readSize)
	for {
		n, err := s.src.Read(buf)
		read := time.Now()
		if !s.deliver(buf[:n], read) {
			return
		}
		if err != nil {
			s.finish(err, read)
			return
		}
	}
}

// deliver returns when bytes that were read at a time are delivered or lost. It reports false if the
// pair has ended.
func (s *stream) deliver(b []byte, read time.Time) bool {
	for len(b) > 0 {
		f, ok := s.await(read, s.free)
		if !ok || s.lost.Load() {
			return ok
		}
		n := f.piece(len(b))
		if _, err := s.dst.Write(b[:n]); err != nil {
			return s.refused()
		}
		s.free = f.next(s.free, n)
		b = b[n:]
	}
	return true
}

// await returns when what was read at a time is due, not before free, with the faults at that moment.
// It reports false if the pair has ended.
func (s *stream) await(read, free time.Time) (faults, bool) {
	for {
		f, changed := s.way.current()
		d := max(time.Until(read.Add(f.delay)), time.Until(free))
		if f.blackhole {
			s.lost.Store(true)
		}
		if s.pair.ctx.Err() != nil {
			return f, false
		}
		if s.lost.Load() || !f.stall && d <= 0 {
			return f, true
		}
		var soon <-chan time.Time
		if !f.stall {
			soon = time.After(d)
		}
		select {
		case <-soon:
		case <-changed:
		case <-s.pair.ctx.Done():
		}
	}
}

// refused is called if the receiver has closed. Its sender is notified in the other direction, where
// that may be delayed or lost too. It reports false if the pair has ended.
func (s *stream) refused() bool {
	s.lost.Store(true)
	if _, ok := s.back.await(time.Now(), time.Time{}); ok && !s.back.lost.Load() {
		s.pair.end(RST)
	}
	return s.pair.ctx.Err() == nil
}

// finish passes on the end of the stream, unless that is lost.
func (s *stream) finish(err error, read time.Time) {
	switch _, ok := s.await(read, s.free); {
	case !ok || s.lost.Load():
	case !errors.Is(err, io.EOF):
		s.pair.end(RST)
	default:
		_ = s.dst.CloseWrite() // if it was reset meanwhile, the other direction reports it
		if s.pair.fins.Add(1) == 2 {
			s.pair.end(FIN)
		}
	}
}
