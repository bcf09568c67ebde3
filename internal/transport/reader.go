package transport

import (
	"net"
	"sync"
)

// Reader handles the events of a Socket. A Loop, or Serve, calls its methods, one at a time.
type Reader interface {
	// Buffer returns where the next bytes are received to: buf, or another buffer. Received is then
	// called before another Buffer is called with the same buf. If Buffer returns nil, nothing is
	// received.
	Buffer(buf []byte) []byte
	// Received handles n received bytes. It is also called with 0 if nothing has arrived, after a
	// pause, or if the buffer is empty. An error ends the connection.
	Received(n int) error
	// Flush writes the replies of Received. A loop calls it after all readable sockets have been
	// read: waking each peer at once would let it run, on a busy machine, before its neighbours are
	// served.
	Flush()
	// Ended is the last call, with the reason.
	Ended(err error)
}

// Socket is the connection that a Reader reads.
type Socket interface {
	Pipe
	// Pause stops reading, or resumes it. After resuming, Received is called even if nothing has
	// arrived.
	Pause(paused bool)
}

// Serve reads conn, until it ends, as a Loop reads a socket, but in the goroutine of its caller, into
// buf: for connections that no loop can read, such as those of TLS. newReader is called before the
// first event; its error is Serve's, and ends the connection. Otherwise Serve returns nil after Ended.
func Serve(conn net.Conn, buf []byte, newReader func(Socket) (Reader, error)) error {
	s := &connSocket{NetPipe: NewPipe(conn)}
	s.going.L = &s.mu
	r, err := newReader(s)
	var ended error
	if err == nil {
		ended = s.read(conn, buf, r)
	}
	_ = conn.Close()
	s.Done()
	if err == nil {
		r.Ended(ended)
	}
	return err
}

// connSocket is a Socket that Serve reads.
type connSocket struct {
	NetPipe

	mu      sync.Mutex // protects the fields below
	going   sync.Cond  // signals that paused is false
	paused  bool
	resumed bool // since the last call of Received, even if read has not noticed that it was paused
}

// read passes what it reads from conn to r, until one of them returns an error.
func (s *connSocket) read(conn net.Conn, buf []byte, r Reader) error {
	for {
		resumed := s.waitWhilePaused()
		b := r.Buffer(buf)
		if b == nil {
			continue
		}
		n := 0
		if !resumed {
			var err error
			if n, err = conn.Read(b); n == 0 && err != nil {
				return err
			}
		}
		if err := r.Received(n); err != nil {
			return err
		}
		r.Flush()
	}
}

// waitWhilePaused reports whether reading was resumed: the reader may hold requests that have arrived
// before, and for whose answers the peer waits.
func (s *connSocket) waitWhilePaused() (resumed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.paused {
		s.going.Wait()
	}
	resumed, s.resumed = s.resumed, false
	return resumed
}

// Pause implements Socket.
func (s *connSocket) Pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused = paused; !paused {
		s.resumed = true
		s.going.Signal()
	}
}
