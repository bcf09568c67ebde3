package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Loop reads many sockets from one goroutine. A goroutine for each would cost a second read, in vain, for every
// message, a stack and a buffer for each idle connection, and a pass through the scheduler: with 50
// connections and two cores the slowest hundredth of all requests waited twice as long.
//
// It owns that goroutine, which ends with Close, and the sockets that it has adopted.
type Loop struct {
	ep   int // epoll
	wake int // eventfd: readable once the loop is to end
	done chan struct{}

	mu      sync.Mutex // protects the fields below
	socks   map[int32]*Sock
	closing bool
}

// Reader is told of a Sock's bytes, by the loop's goroutine.
type Reader interface {
	// Readable reads once, with buf if it likes; an error ends the connection.
	Readable(buf []byte) error
	// Flush writes what Readable has answered. The loop calls it when all sockets that were readable have been read: to wake each
	// peer at once would have it run, on a busy machine, before its neighbours are served.
	Flush()
	// Ended is the last call: why the connection ended. The peer sees its end after that.
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

// borrowed is the size of the buffer that the sockets of a loop read into, one after the other.
const borrowed = 64 << 10

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

// Adopt takes the socket out of c, which is closed, and leaves its reading to the loop. newReader is
// called with it before the first event; its error is Adopt's, and the end of the connection. If it
// has none, Adopt has none either: what ends the connection then is told to Ended.
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
		s.retire()
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

// Close ends the loop, and every connection that it still has. It waits for the goroutine. It may be called twice.
func (l *Loop) Close() {
	l.mu.Lock()
	if !l.closing { // with the lock, since the loop closes wake once it has seen closing
		l.closing = true
		_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	l.mu.Unlock()
	<-l.done
}

func (l *Loop) run() {
	defer close(l.done)
	events := make([]unix.EpollEvent, 256)
	buf := make([]byte, borrowed)
	read := make([]*Sock, 0, len(events))
	for {
		n, err := unix.EpollWait(l.ep, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(os.NewSyscallError("epoll_wait", err)) // a descriptor that is not ours was closed
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
		if l.ended() {
			return
		}
	}
}

// handle returns the socket if it has been read.
func (l *Loop) handle(e unix.EpollEvent, buf []byte) *Sock {
	l.mu.Lock()
	s := l.socks[e.Fd]
	l.mu.Unlock()
	if s == nil { // that is wake, or one that has ended
		return nil
	}
	// A reader that was paused may have requests left, and goes on with them when it has been written to.
	if e.Events&unix.EPOLLOUT != 0 && s.writable() || e.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		if err := s.reader.Readable(buf); err != nil {
			l.end(s, err)
			return nil
		}
		return s
	}
	return nil
}

// end closes a socket. Nobody uses its number any more when it is free for others.
func (l *Loop) end(s *Sock, err error) {
	l.mu.Lock()
	delete(l.socks, int32(s.fd))
	l.mu.Unlock()
	s.retire()
	s.reader.Ended(err)
	_ = unix.Close(s.fd)
}

// retire lets nobody use the socket any more.
func (s *Sock) retire() {
	s.mu.Lock()
	s.closed = true
	resume := s.resume
	s.resume = nil
	s.mu.Unlock()
	if resume != nil {
		resume()
	}
}

// ended ends what is left, once the loop is to end.
func (l *Loop) ended() bool {
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

// Read reads what is there; nothing is 0 without an error. For the loop's goroutine alone.
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

// Room implements Pipe.
func (s *Sock) Room(resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume = resume
	if s.closed {
		s.resume = nil
		go resume()
		return
	}
	s.want(s.events | unix.EPOLLOUT)
}

// Pause stops reading, or goes on: Readable is called then even if nothing has come.
func (s *Sock) Pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if paused {
		s.want(s.events &^ unix.EPOLLIN)
	} else {
		s.want(s.events | unix.EPOLLIN | unix.EPOLLOUT)
	}
}

// want is what the loop is told of. Called with mu.
func (s *Sock) want(events uint32) {
	if events != s.events {
		s.events = events
		_ = unix.EpollCtl(s.loop.ep, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: events, Fd: int32(s.fd)})
	}
}

// writable lets the writer go on, and reports whether the reader may go on too.
func (s *Sock) writable() (reads bool) {
	s.mu.Lock()
	resume := s.resume
	s.resume = nil
	s.want(s.events &^ unix.EPOLLOUT)
	s.mu.Unlock()
	if resume != nil {
		resume()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events&unix.EPOLLIN != 0
}

// Close implements Pipe: it ends the connection. The loop notices, and closes the socket.
func (s *Sock) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR)
	}
	return nil
}
