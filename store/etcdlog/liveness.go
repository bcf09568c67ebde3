package etcdlog

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A standby detects at once that the leader's process has ended, however it ended. Each replica
// accepts connections for that purpose, on a separate port, sends its ID, and nothing more. A
// standby holds such a connection to the leader. The kernel closes it when the process ends; a
// second connection that is refused, or accepted by a process with another ID, confirms that. Where
// the port cannot be reached, the heartbeat of root/beat detects the failure.

// maxLivenessConns bounds the connections that a replica accepts.
const maxLivenessConns = 100

// livenessListener accepts the liveness connections of one replica. It owns its goroutines until
// close.
type livenessListener struct {
	net.Listener
	id      string
	life    context.Context // until close
	stop    context.CancelFunc
	slots   chan struct{} // has an element for each connection
	running sync.WaitGroup
}

// listenLiveness listens on a free port of the host of beside, for the process id.
func listenLiveness(beside net.Addr, id string) (*livenessListener, error) {
	host, _, err := net.SplitHostPort(beside.String())
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	v := &livenessListener{Listener: l, id: id, slots: make(chan struct{}, maxLivenessConns)}
	v.life, v.stop = context.WithCancel(context.Background())
	v.running.Go(v.accept)
	return v, nil
}

// addrFor returns the listener's address for peers that reach this process at addr.
func (v *livenessListener) addrFor(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	_, port, _ := net.SplitHostPort(v.Addr().String())
	return net.JoinHostPort(host, port)
}

func (v *livenessListener) accept() {
	for {
		c, err := v.Accept()
		if err != nil {
			return // closed, or out of file descriptors: standbys then use root/beat
		}
		_, _ = io.WriteString(c, v.id) // fits every socket buffer: it does not block
		select {
		case v.slots <- struct{}{}:
			v.running.Go(func() { v.waitClosed(c) })
		default:
			_ = c.Close()
		}
	}
}

// waitClosed waits until the standby closes c.
func (v *livenessListener) waitClosed(c net.Conn) {
	defer context.AfterFunc(v.life, func() { _ = c.Close() })()
	_, _ = c.Read(make([]byte, 1))
	_ = c.Close()
	<-v.slots
}

// close ends all connections, and waits for the goroutines.
func (v *livenessListener) close() {
	v.stop()
	_ = v.Close()
	v.running.Wait()
}

// watchProcess closes ended when the process of l has ended. The caller calls stop in the end.
func (l Leader) watchProcess(timeout time.Duration) (ended <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	c := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		if l.waitEnded(ctx, timeout) == nil {
			close(c)
		}
	})
	return c, func() {
		cancel()
		running.Wait()
	}
}

// waitEnded returns nil when the process of l has ended. It can detect that only of a process to
// which it has been connected; otherwise it returns when ctx ends.
func (l Leader) waitEnded(ctx context.Context, timeout time.Duration) error {
	if l.LivenessAddr == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	for known, pause := false, time.Millisecond; ; {
		began := time.Now()
		greeted, err := l.connectAndWait(ctx, timeout)
		switch {
		case greeted && time.Since(began) > time.Second:
			known, pause = true, time.Millisecond
		case greeted:
			known, pause = true, min(2*pause, time.Second)
		case known && processGone(err):
			return nil
		default: // not reachable from here, or not in time
			pause = time.Second
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// connectAndWait connects to the process of l, and returns when the connection has ended. greeted
// reports whether that process accepted it.
func (l Leader) connectAndWait(ctx context.Context, timeout time.Duration) (greeted bool, err error) {
	conn, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, "tcp", l.LivenessAddr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	greeting := make([]byte, len(l.ID))
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
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

// processGone reports whether err means that the process does not exist: the connection was
// refused, or ended without the ID.
func processGone(err error) bool {
	kinds := []error{syscall.ECONNREFUSED, syscall.ECONNRESET, io.EOF, io.ErrUnexpectedEOF}
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}
