package transport

import (
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Loop reads many sockets from one goroutine, with epoll. A goroutine for each socket would cost a
// second, unsuccessful read for every message, a stack and a buffer for each idle connection, and a
// pass through the scheduler: with 50 connections and two cores the p99 latency of requests was
// twice as long.
//
// Where io_uring is available, one system call receives from all sockets that are readable, and
// another one sends the replies: a fifth to a third less CPU time per request.
//
// A Loop owns that goroutine, which ends with Close, and the sockets that it has adopted.
type Loop struct {
	ep   int   // epoll descriptor
	wake int   // eventfd: readable when the loop has to end
	ring *ring // nil: each receive and send is a system call
	done chan struct{}

	// owned by the goroutine
	buf     []byte    // for receiving
	ready   []*Sock   // readable sockets, and then those that were read and go on
	sending []*Outbox // that sendTogether has taken

	mu      sync.Mutex // protects the fields below
	socks   map[int32]*Sock
	closing bool
}

// Sock is a socket of a Loop. It is closed after Ended.
type Sock struct {
	loop   *Loop
	reader Reader
	outbox *Outbox // that writes to it; nil: none

	buf []byte // owned by the loop's goroutine: what it receives to; nil: it does not receive

	mu     sync.Mutex // protects the fields below, and fd against being closed while it is used
	fd     int
	events uint32
	closed bool
	resume func()
}

const (
	// maxEvents is how many sockets a loop serves together.
	maxEvents = 64
	// readSize is how much a loop receives from a socket at once. What is not the rest of a large
	// frame goes into a buffer of the loop. More would mean that more of a large frame is copied from
	// there; with 64 KiB a set of 16 KiB took a quarter more CPU time.
	readSize = 16 << 10
	// maxRun is how long a loop runs until it yields: less than the 10 ms after which it is preempted.
	maxRun = 8 * time.Millisecond
)

// NewLoop starts a loop. It uses io_uring where the kernel has it, unless NoIOUring is set.
func NewLoop() (*Loop, error) {
	l := &Loop{ep: -1, wake: -1, done: make(chan struct{}), socks: map[int32]*Sock{}}
	if os.Getenv(NoIOUring) == "" {
		l.ring, _ = newRing(maxEvents)
	}
	var err error
	if l.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err == nil {
		err = unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, l.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(l.wake)})
	}
	if err != nil {
		l.release()
		return nil, os.NewSyscallError("epoll", err)
	}
	go l.run()
	return l, nil
}

// release closes the descriptors of the loop.
func (l *Loop) release() {
	_, _ = unix.Close(l.ep), unix.Close(l.wake)
	if l.ring != nil {
		l.ring.close()
	}
}

// Kind returns how the loop receives and sends: "io_uring" or "epoll".
func (l *Loop) Kind() string {
	if l.ring != nil {
		return "io_uring"
	}
	return "epoll"
}

// Adopt takes the socket out of c, which it closes, and lets the loop read it. newReader is called
// before the first event; its error is Adopt's, and ends the connection. If newReader succeeds,
// Adopt returns nil: a later failure is reported to Ended.
func (l *Loop) Adopt(c *net.TCPConn, newReader func(Socket) (Reader, error)) error {
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
	l.buf = make([]byte, maxEvents*readSize)
	events := make([]unix.EpollEvent, maxEvents)
	var yielded time.Time
	for {
		// A goroutine that never passes the scheduler loses its processor to sysmon every 10 ms, after
		// which sysmon wakes up every 20 µs for a while.
		if now := time.Now(); now.Sub(yielded) > maxRun {
			yielded = now
			runtime.Gosched()
		}
		n, err := unix.EpollWait(l.ep, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			// Another part of the process has closed the descriptor.
			panic(os.NewSyscallError("epoll_wait", err))
		}
		l.ready = l.ready[:0]
		for _, e := range events[:max(n, 0)] {
			if s := l.handle(e); s != nil {
				l.ready = append(l.ready, s)
			}
		}
		if l.ring != nil && len(l.ready) > 1 {
			l.receiveTogether()
			l.sendTogether()
		} else {
			l.receive()
		}
		for _, s := range l.ready {
			s.reader.Flush()
		}
		if l.endIfClosing() {
			return
		}
	}
}

// handle handles an event, and returns the socket if it is to be read. It ends a socket whose
// connection has ended while it is paused: epoll would report that again and again.
func (l *Loop) handle(e unix.EpollEvent) *Sock {
	l.mu.Lock()
	s := l.socks[e.Fd]
	l.mu.Unlock()
	if s == nil { // wake, or a socket that has ended
		return nil
	}
	// A reader that was paused may have unprocessed requests: it continues when its socket is
	// writable.
	if e.Events&unix.EPOLLOUT != 0 && s.writable() || e.Events&unix.EPOLLIN != 0 {
		return s
	}
	if e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.end(s, io.EOF)
	}
	return nil
}

// receive receives from all ready sockets, one after the other, and leaves those in ready that go on.
func (l *Loop) receive() {
	l.ready = slices.DeleteFunc(l.ready, func(s *Sock) bool {
		s.buf = s.reader.Buffer(l.buf[:readSize])
		if s.buf == nil {
			return false
		}
		n, err := unix.Read(s.fd, s.buf)
		return !l.received(s, n, err)
	})
}

// receiveTogether is receive with one system call.
func (l *Loop) receiveTogether() {
	for i, s := range l.ready {
		if s.buf = s.reader.Buffer(l.buf[i*readSize:][:readSize:readSize]); s.buf != nil {
			l.ring.transfer(ringRecv, s.fd, s.buf)
		}
	}
	results := l.ring.submit()
	l.ready = slices.DeleteFunc(l.ready, func(s *Sock) bool {
		if s.buf == nil {
			return false
		}
		n, err := results[0].bytes()
		results = results[1:]
		if errors.Is(err, unix.EAGAIN) { // perhaps because the kernel has not accepted the request
			n, err = unix.Read(s.fd, s.buf)
		}
		return !l.received(s, n, err)
	})
}

// received passes the result of a receive to the reader of s, or ends s, and reports whether s goes
// on.
func (l *Loop) received(s *Sock, n int, err error) bool {
	full := len(s.buf) == 0
	s.buf = nil
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		n, err = 0, nil
	case err != nil:
		err = os.NewSyscallError("read", err)
	case n == 0 && !full:
		err = io.EOF
	}
	if err == nil {
		err = s.reader.Received(n)
	}
	if err != nil {
		l.end(s, err)
	}
	return err == nil
}

// sendTogether sends the replies of all ready sockets with one system call. Flush sends what it
// leaves.
func (l *Loop) sendTogether() {
	l.sending = l.sending[:0]
	for _, s := range l.ready {
		if s.outbox == nil {
			continue
		}
		if b := s.outbox.take(); b != nil {
			l.ring.transfer(ringSend, s.fd, b)
			l.sending = append(l.sending, s.outbox)
		}
	}
	for i, result := range l.ring.submit() {
		n, err := result.bytes()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			err = nil
		}
		l.sending[i].took(n, os.NewSyscallError("write", err))
	}
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
	socks := slices.Collect(maps.Values(l.socks))
	l.mu.Unlock()
	for _, s := range socks {
		l.end(s, net.ErrClosed)
	}
	l.release()
	return true
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
	if s.closed {
		go resume()
		return
	}
	s.resume = resume
	s.setEvents(s.events | unix.EPOLLOUT)
}

// Pause implements Socket.
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
