package transport

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// NewPipe returns the Pipe of conn: it writes to the socket of conn if it has one, and otherwise
// (TLS, net.Pipe) to a buffer that a goroutine writes. Done waits for the pipe's goroutines, which
// end with the connection.
func NewPipe(conn net.Conn) NetPipe {
	if sc, ok := conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			p := &socketPipe{conn: conn, raw: raw}
			p.attempt = p.writeOnce
			return p
		}
	}
	return &bufferPipe{conn: conn}
}

// NetPipe is a Pipe that may have goroutines.
type NetPipe interface {
	Pipe
	Done() // waits until its goroutines have ended
}

// socketPipe writes to a socket that Go's runtime polls.
type socketPipe struct {
	conn       net.Conn
	raw        syscall.RawConn
	goroutines lateWaitGroup

	// state of the write in progress, so that no closure is allocated for each
	attempt func(fd uintptr) bool
	next    [][]byte
	wrote   int
	err     error
}

func (p *socketPipe) TryWrite(bufs [][]byte) (int, error) {
	p.next, p.wrote, p.err = bufs, 0, nil
	if err := p.raw.Write(p.attempt); err != nil {
		return 0, err
	}
	return p.wrote, p.err
}

// writeOnce returns true in any case, so that the runtime does not wait for the socket.
func (p *socketPipe) writeOnce(fd uintptr) bool {
	p.wrote, p.err = tryWrite(int(fd), p.next)
	return true
}

// tryWrite makes one write without waiting.
func tryWrite(fd int, bufs [][]byte) (n int, err error) {
	if len(bufs) == 1 {
		n, err = unix.Write(fd, bufs[0])
	} else {
		n, err = unix.Writev(fd, bufs)
	}
	if err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			err = nil
		}
		return 0, err
	}
	return n, nil
}

func (p *socketPipe) NotifyWritable(resume func()) {
	p.goroutines.Go(func() {
		// The socket may have become writable before the runtime began to wait: poll it first.
		_ = p.raw.Write(func(fd uintptr) bool {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			n, err := unix.Poll(fds, 0)
			return n > 0 || err != nil
		})
		resume()
	})
}

func (p *socketPipe) Close() error { return p.conn.Close() }
func (p *socketPipe) Done()        { p.goroutines.Wait() }

// bufferPipe copies what is written, and writes it from a goroutine.
type bufferPipe struct {
	conn       net.Conn
	goroutines lateWaitGroup

	mu     sync.Mutex // protects the fields below
	busy   bool
	resume func()
	err    error
}

// maxBufferedWrite is how many bytes a bufferPipe takes at once.
const maxBufferedWrite = 64 << 10

func (p *bufferPipe) TryWrite(bufs [][]byte) (int, error) {
	b := bufs[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy || p.err != nil {
		return 0, p.err
	}
	own := append([]byte(nil), b[:min(len(b), maxBufferedWrite)]...)
	p.busy = true
	p.goroutines.Go(func() { p.write(own) })
	return len(own), nil
}

func (p *bufferPipe) write(b []byte) {
	_, err := p.conn.Write(b)
	p.mu.Lock()
	p.busy = false
	p.err = err
	resume := p.resume
	p.resume = nil
	p.mu.Unlock()
	if resume != nil {
		resume()
	}
}

func (p *bufferPipe) NotifyWritable(resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy {
		p.resume = resume
		return
	}
	p.goroutines.Go(resume)
}

func (p *bufferPipe) Close() error { return p.conn.Close() }
func (p *bufferPipe) Done()        { p.goroutines.Wait() }

// lateWaitGroup is a WaitGroup whose goroutines may also start while another goroutine waits: a
// writer does not know that the connection has just ended.
type lateWaitGroup struct {
	mu    sync.Mutex
	n     int
	ended sync.Cond // signals that n has decreased
}

func (c *lateWaitGroup) Go(f func()) {
	c.mu.Lock()
	if c.n++; c.ended.L == nil {
		c.ended.L = &c.mu
	}
	c.mu.Unlock()
	go func() {
		defer c.done()
		f()
	}()
}

func (c *lateWaitGroup) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	c.ended.Broadcast()
}

func (c *lateWaitGroup) Wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n > 0 {
		c.ended.Wait()
	}
}
