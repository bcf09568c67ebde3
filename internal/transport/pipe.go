package transport

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// NewPipe returns the Pipe of conn: of its socket if it has one, otherwise (TLS, net.Pipe) of a
// buffer that a goroutine writes. Done waits for the goroutines of a pipe, which end with the connection.
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
	conn    net.Conn
	raw     syscall.RawConn
	waiting crew

	// of the write in progress: a closure for each would be garbage for each
	attempt func(fd uintptr) bool
	next    [][]byte
	wrote   int
	fault   error
}

func (p *socketPipe) TryWrite(bufs [][]byte) (int, error) {
	p.next, p.wrote, p.fault = bufs, 0, nil
	if err := p.raw.Write(p.attempt); err != nil {
		return 0, err
	}
	return p.wrote, p.fault
}

// writeOnce says that it is done whatever happened: that keeps the runtime from waiting.
func (p *socketPipe) writeOnce(fd uintptr) bool {
	p.wrote, p.fault = tryWrite(int(fd), p.next)
	return true
}

// tryWrite is one write that does not wait.
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

func (p *socketPipe) Room(resume func()) {
	p.waiting.Go(func() {
		// The runtime may have seen the room before it began to wait: so look, then wait.
		_ = p.raw.Write(func(fd uintptr) bool {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			n, err := unix.Poll(fds, 0)
			return n > 0 || err != nil
		})
		resume()
	})
}

func (p *socketPipe) Close() error { return p.conn.Close() }
func (p *socketPipe) Done()        { p.waiting.Wait() }

// bufferPipe copies what is written, and writes it from a goroutine while there is something.
type bufferPipe struct {
	conn    net.Conn
	waiting crew

	mu     sync.Mutex // protects the fields below
	busy   bool
	resume func()
	err    error
}

// bufferRoom is how much a bufferPipe takes at once.
const bufferRoom = 64 << 10

func (p *bufferPipe) TryWrite(bufs [][]byte) (int, error) {
	b := bufs[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy || p.err != nil {
		return 0, p.err
	}
	own := append([]byte(nil), b[:min(len(b), bufferRoom)]...)
	p.busy = true
	p.waiting.Go(func() { p.write(own) })
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

func (p *bufferPipe) Room(resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy {
		p.resume = resume
		return
	}
	p.waiting.Go(resume)
}

func (p *bufferPipe) Close() error { return p.conn.Close() }
func (p *bufferPipe) Done()        { p.waiting.Wait() }

// crew is a WaitGroup for goroutines that may begin while somebody waits already: whoever writes does not know that the connection
// has ended just now.
type crew struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0; nil unless somebody waits
}

func (c *crew) Go(f func()) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	go func() {
		defer c.gone()
		f()
	}()
}

func (c *crew) gone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

func (c *crew) Wait() {
	c.mu.Lock()
	none := c.none
	if c.n > 0 && none == nil {
		none = make(chan struct{})
		c.none = none
	}
	c.mu.Unlock()
	if none != nil {
		<-none
	}
}
