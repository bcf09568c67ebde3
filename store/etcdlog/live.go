package etcdlog

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// The end of a process is noticed at once, however it ends: each replica accepts connections for that alone, on a port of its own, greets
// them with its ID, and sends nothing more. A standby holds such a connection to the leader. When it breaks, and the same process
// does not greet a second one, the process has ended. Where the port cannot be reached, root/beat shows that a leader has failed.

// mostLive bounds the connections that a replica holds for others.
const mostLive = 100

// live is the listener of one replica. It owns its goroutines until close.
type live struct {
	net.Listener
	id      string
	running sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	conns  map[net.Conn]struct{}
	closed bool
}

// listenLive listens at the host of beside, for the process id.
func listenLive(beside net.Addr, id string) (*live, error) {
	host, _, err := net.SplitHostPort(beside.String())
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	v := &live{Listener: l, id: id, conns: map[net.Conn]struct{}{}}
	v.running.Go(v.accept)
	return v, nil
}

// at is the address for others, who reach this process at addr.
func (v *live) at(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	_, port, _ := net.SplitHostPort(v.Addr().String())
	return net.JoinHostPort(host, port)
}

func (v *live) accept() {
	for {
		c, err := v.Accept()
		if err != nil {
			return // closed, or no more file descriptors: standbys do without
		}
		_, err = io.WriteString(c, v.id) // no socket is too full for that
		v.mu.Lock()
		held := err == nil && !v.closed && len(v.conns) < mostLive
		if held {
			v.conns[c] = struct{}{}
			v.running.Go(func() { v.hold(c) })
		}
		v.mu.Unlock()
		if !held {
			_ = c.Close()
		}
	}
}

// hold waits until a standby, which has been greeted, hangs up.
func (v *live) hold(c net.Conn) {
	_, _ = c.Read(make([]byte, 1))
	_ = c.Close()
	v.mu.Lock()
	delete(v.conns, c)
	v.mu.Unlock()
}

// close ends all connections.
func (v *live) close() {
	v.mu.Lock()
	v.closed = true
	for c := range v.conns {
		_ = c.Close()
	}
	v.mu.Unlock()
	_ = v.Close()
	v.running.Wait()
}

// observe closes ended when the process of l has ended. The caller calls stop in the end.
func (l Leader) observe(patience time.Duration) (ended <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	c := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		if l.ended(ctx, patience) == nil {
			close(c)
		}
	})
	return c, func() {
		cancel()
		running.Wait()
	}
}

// ended returns nil when the process of l has ended. That is noticed only of a process that has been reached before; otherwise ended
// returns when ctx ends.
func (l Leader) ended(ctx context.Context, patience time.Duration) error {
	if l.Live == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	for known, pause := false, time.Millisecond; ; {
		began := time.Now()
		greeted, err := l.hold(ctx, patience)
		switch {
		case greeted && time.Since(began) > time.Second:
			known, pause = true, time.Millisecond
		case greeted:
			known, pause = true, min(2*pause, time.Second)
		case known && gone(err):
			return nil
		default: // not reached from here, or not in time
			pause = time.Second
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hold connects to the process of l, and returns when the connection has ended; greeted reports whether it was that process.
func (l Leader) hold(ctx context.Context, patience time.Duration) (greeted bool, err error) {
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", l.Live)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	greeting := make([]byte, len(l.ID))
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(conn, greeting); err != nil {
		return false, err
	}
	if string(greeting) != l.ID {
		return false, io.EOF
	}
	_ = conn.SetReadDeadline(time.Time{})
	_, err = conn.Read(greeting)
	return true, err
}

// gone reports whether err is that of a connection to a process that is not there: refused, or ended without the greeting.
func gone(err error) bool {
	for _, e := range [...]error{syscall.ECONNREFUSED, syscall.ECONNRESET, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
