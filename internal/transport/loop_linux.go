package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Loop reads many sockets from one goroutine, with epoll. A goroutine for each socket would cost a
// second, unsuccessful read for every message, a stack and a buffer for each idle connection, and a
// pass through the scheduler: with 50 connections and two cores the p99 latency of requests was
// twice as long.
//
// A Loop owns that goroutine, which ends with Close, and the sockets that it has adopted.
type Loop struct {
	ep   int // epoll descriptor
	wake int // eventfd: readable when the loop has to end
	done chan struct{}

	mu      sync.Mutex // protects the fields below
	socks   map[int32]*Sock
	closing bool
}

// Reader handles the events of a Sock. The loop's goroutine calls its methods.
type Reader interface {
	// Readable reads once, into buf or another buffer. An error ends the connection.
	Readable(buf []byte) error
	// Flush writes the replies of Readable. The loop calls it after all readable sockets have been
	// read: waking each peer at once would let it run, on a busy machine, before its neighbours are
	// served.
	Flush()
	// Ended is the last call, with the reason. The socket is closed after it.
	Ended(err error)
}

// Sock is a socket of a Loop, and a Pipe.
type Sock struct {
	loop   *Loop
	reader Reader

	mu     sync.Mutex // protects the fields below, and fd against being closed while it is used
	fd     int
	events uint32
	closed bool
	resume func()
}

// readBufferSize is the size of the buffer that the sockets of a loop share for reading.
const readBufferSize = 64 << 10

// NewLoop starts a loop.
func NewLoop() (*Loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
	}
	if err != nil {
		_ = unix.Close(ep)
		return nil, os.NewSyscallError("eventfd", err)
	}
	l := &Loop{ep: ep, wake: wake, done: make(chan struct{}), socks: map[int32]*Sock{}}
	go l.run()
	return l, nil
}

// Adopt takes the socket out of c, which it closes, and lets the loop read it. newReader is called
// before the first event; its error is Adopt's, and ends the connection. If newReader succeeds,
// Adopt returns nil: a later failure is reported to Ended.
func (l *Loop) Adopt(c *net.TCPConn, newReader func(*Sock) (Reader, error)) error {
	f, err := c.File() // a second descriptor, without Go's poller
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	_ = f.Close()
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	_ = c.Close()
	s := &Sock{loop: l, fd: fd, events: unix.EPOLLIN}
	if s.reader, err = newReader(s); err != nil {
		s.markClosed()
		_ = unix.Close(fd)
		return err
	}
	if err := l.add(s); err != nil {
		l.end(s, err)
	}
	return nil
}

func (l *Loop) add(s *Sock) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return net.ErrClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: s.events, Fd: int32(s.fd)}); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	l.socks[int32(s.fd)] = s // its first event waits for the lock
	return nil
}

// Close ends the loop and its connections, and waits for the goroutine. It may be called twice.
func (l *Loop) Close() {
	l.mu.Lock()
	if !l.closing { // with the lock, since the loop closes wake after it has seen closing
		l.closing = true
		_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	l.mu.Unlock()
	<-l.done
}

func (l *Loop) run() {
	defer close(l.done)
	events := make([]unix.EpollEvent, 256)
	buf := make([]byte, readBufferSize)
	read := make([]*Sock, 0, len(events))
	for {
		n, err := unix.EpollWait(l.ep, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			// Another part of the process has closed the descriptor.
			panic(os.NewSyscallError("epoll_wait", err))
		}
		read = read[:0]
		for _, e := range events[:max(n, 0)] {
			if s := l.handle(e, buf); s != nil {
				read = append(read, s)
			}
		}
		for _, s := range read {
			s.reader.Flush()
		}
		if l.endIfClosing() {
			return
		}
	}
}

// handle handles an event, and returns the socket if it was read.
func (l *Loop) handle(e unix.EpollEvent, buf []byte) *Sock {
	l.mu.Lock()
	s := l.socks[e.Fd]
	l.mu.Unlock()
	if s == nil { // wake, or a socket that has ended
		return nil
	}
	// A reader that was paused may have unprocessed requests: it continues when its socket is
	// writable.
	if e.Events&unix.EPOLLOUT != 0 && s.writable() || e.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		if err := s.reader.Readable(buf); err != nil {
			l.end(s, err)
			return nil
		}
		return s
	}
	return nil
}

// end closes a socket. It must be unused by then, because its number can be reused.
func (l *Loop) end(s *Sock, err error) {
	l.mu.Lock()
	delete(l.socks, int32(s.fd))
	l.mu.Unlock()
	s.markClosed()
	s.reader.Ended(err)
	_ = unix.Close(s.fd)
}

// markClosed prevents further use of the socket, and calls resume of a waiting writer.
func (s *Sock) markClosed() {
	s.mu.Lock()
	s.closed = true
	resume := s.resume
	s.resume = nil
	s.mu.Unlock()
	if resume != nil {
		resume()
	}
}

// endIfClosing ends the remaining sockets if Close was called, and reports whether it was.
func (l *Loop) endIfClosing() bool {
	l.mu.Lock()
	if !l.closing {
		l.mu.Unlock()
		return false
	}
	socks := make([]*Sock, 0, len(l.socks))
	for _, s := range l.socks {
		socks = append(socks, s)
	}
	l.mu.Unlock()
	for _, s := range socks {
		l.end(s, net.ErrClosed)
	}
	_ = unix.Close(l.ep)
	_ = unix.Close(l.wake)
	return true
}

// Read reads what is available; 0 without an error means nothing. Only the loop's goroutine may
// call it.
func (s *Sock) Read(b []byte) (int, error) {
	n, err := unix.Read(s.fd, b)
	switch {
	case n > 0:
		return n, nil
	case err == nil:
		return 0, io.EOF
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return 0, nil
	}
	return 0, os.NewSyscallError("read", err)
}

// TryWrite implements Pipe.
func (s *Sock) TryWrite(bufs [][]byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	n, err := tryWrite(s.fd, bufs)
	return n, os.NewSyscallError("write", err)
}

// NotifyWritable implements Pipe.
func (s *Sock) NotifyWritable(resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume = resume
	if s.closed {
		s.resume = nil
		go resume()
		return
	}
	s.setEvents(s.events | unix.EPOLLOUT)
}

// Pause stops reading, or resumes it. After resuming, Readable is called even if nothing has
// arrived.
func (s *Sock) Pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if paused {
		s.setEvents(s.events &^ unix.EPOLLIN)
	} else {
		s.setEvents(s.events | unix.EPOLLIN | unix.EPOLLOUT)
	}
}

// setEvents sets the events that the loop waits for. The caller holds mu.
func (s *Sock) setEvents(events uint32) {
	if events != s.events {
		s.events = events
		_ = unix.EpollCtl(s.loop.ep, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: events, Fd: int32(s.fd)})
	}
}

// writable resumes the writer, and reports whether the socket may also be read.
func (s *Sock) writable() (reads bool) {
	s.mu.Lock()
	resume := s.resume
	s.resume = nil
	s.setEvents(s.events &^ unix.EPOLLOUT)
	s.mu.Unlock()
	if resume != nil {
		resume()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events&unix.EPOLLIN != 0
}

// Close implements Pipe. It shuts the connection down; the loop notices, and closes the socket.
func (s *Sock) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR)
	}
	return nil
}
