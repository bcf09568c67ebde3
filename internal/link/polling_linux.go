package link

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/spin"
)

// nap bounds a sleep. After it a changed deadline has effect.
const nap = 20 * time.Millisecond

// maxSlices is how many slices writev takes at once.
const maxSlices = 128

// pollingConn is a TCP connection outside the runtime's poller: its users wait in system calls of
// their own. In the poller each message would wake a thread that waits in epoll, and that thread
// another one for the goroutine: twice, on four ranks of two cores, the time of the message itself,
// even if a goroutine polls the socket meanwhile.
type pollingConn struct {
	poll            *spin.Poller
	local, remote   net.Addr
	fd              int          // non-blocking
	use             sync.RWMutex // read-locked while fd is used, and locked when it is closed
	closed          atomic.Bool
	readBy, writeBy atomic.Int64 // deadlines, in ns since epoch; 0: none
}

// newPollingConn takes the socket out of a TCP connection, which it closes. It returns other
// connections as they are.
func newPollingConn(conn net.Conn, p *spin.Poller) (net.Conn, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	defer tcp.Close()
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &pollingConn{poll: p, local: tcp.LocalAddr(), remote: tcp.RemoteAddr()}
	var failed error
	if err := raw.Control(func(fd uintptr) { c.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("fcntl", failed)
	}
	return c, nil
}

func (c *pollingConn) LocalAddr() net.Addr  { return c.local }
func (c *pollingConn) RemoteAddr() net.Addr { return c.remote }

func (c *pollingConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *pollingConn) SetReadDeadline(t time.Time) error {
	c.readBy.Store(nanos(t))
	return nil
}

func (c *pollingConn) SetWriteDeadline(t time.Time) error {
	c.writeBy.Store(nanos(t))
	return nil
}

// epoch is the beginning of deadlines: they follow the monotonic clock.
var epoch = time.Now()

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return int64(t.Sub(epoch))
}

func (c *pollingConn) Read(b []byte) (n int, err error) {
	err = c.retry("read", unix.POLLIN, &c.readBy, func() (err error) {
		if n, err = unix.Read(c.fd, b); n == 0 && err == nil && len(b) > 0 {
			return io.EOF
		}
		return err
	})
	return max(n, 0), err
}

func (c *pollingConn) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		err = c.retry("write", unix.POLLOUT, &c.writeBy, func() error {
			k, err := unix.Write(c.fd, b[n:])
			n += max(k, 0)
			return err
		})
	}
	return n, err
}

// WriteNow writes bufs, one after the other, as far as the socket takes them without waiting.
func (c *pollingConn) WriteNow(bufs [][]byte) (n int, err error) {
	for full := false; len(bufs) > 0 && !full && err == nil; {
		few := bufs[:min(len(bufs), maxSlices)]
		bufs = bufs[len(few):]
		err = c.retry("write", unix.POLLOUT, &c.writeBy, func() error {
			k, err := writev(c.fd, few)
			n += max(k, 0)
			for _, b := range few {
				k -= len(b)
			}
			if full = k < 0; errors.Is(err, unix.EAGAIN) {
				return nil
			}
			return err
		})
	}
	return n, err
}

// writev is unix.Writev without an allocation for more than 8 slices.
func writev(fd int, bufs [][]byte) (int, error) {
	var vecs [maxSlices]unix.Iovec
	for i, b := range bufs {
		vecs[i].Base = unsafe.SliceData(b)
		vecs[i].SetLen(len(b))
	}
	n, _, errno := syscall.Syscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&vecs)), uintptr(len(bufs)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// retry calls f, a system call, until it succeeds. While it would block, retry waits for events.
func (c *pollingConn) retry(op string, events int16, by *atomic.Int64, f func() error) error {
	c.use.RLock()
	defer c.use.RUnlock()
	try := func() error {
		if err := c.ended(by); err != nil {
			return err
		}
		return f()
	}
	for polled := events != unix.POLLIN; ; {
		err := try()
		if !polled && errors.Is(err, unix.EAGAIN) {
			polled = true
			c.poll.Poll(func() bool { err = try(); return !errors.Is(err, unix.EAGAIN) })
		}
		switch {
		case err == nil:
			return nil
		case c.closed.Load():
			err = net.ErrClosed // Close has shut the socket down, which a system call takes for the peer's end
		case errors.Is(err, io.EOF):
			return err
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			c.sleep(events, by)
			continue
		}
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = os.NewSyscallError(op, errno)
		}
		return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
	}
}

// ended returns why no system call may begin.
func (c *pollingConn) ended(by *atomic.Int64) error {
	if t := by.Load(); t != 0 && time.Since(epoch) >= time.Duration(t) {
		return os.ErrDeadlineExceeded
	}
	if c.closed.Load() {
		return net.ErrClosed
	}
	return nil
}

// sleep returns when one of events has occurred, the socket has been shut down, the deadline has
// passed, or after a nap.
func (c *pollingConn) sleep(events int16, by *atomic.Int64) {
	d := nap
	if t := by.Load(); t != 0 {
		d = max(min(d, time.Duration(t)-time.Since(epoch)+time.Millisecond), 0) // rounded up
	}
	fds := [1]unix.PollFd{{Fd: int32(c.fd), Events: events}}
	_, _ = unix.Poll(fds[:], int(d.Milliseconds())) // the next system call returns its errors, too
}

// Close ends all calls in progress, and waits until none uses the socket.
func (c *pollingConn) Close() error {
	if c.closed.Swap(true) {
		return &net.OpError{Op: "close", Net: "tcp", Source: c.local, Addr: c.remote, Err: net.ErrClosed}
	}
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // wakes those that wait
	c.use.Lock()
	defer c.use.Unlock()
	return os.NewSyscallError("close", unix.Close(c.fd))
}
