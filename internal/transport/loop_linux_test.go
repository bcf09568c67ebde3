package transport_test

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/internal/transport"
)

// TestLoopWithoutIOUring checks that a process that may not use io_uring, as in most containers,
// gets loops that do without it.
func TestLoopWithoutIOUring(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks it, so the thread and its filter end with the goroutine
		testcluster.Refuse(t, unix.SYS_IO_URING_SETUP, 0)
		l, err := transport.NewLoop()
		if assert.NoError(t, err) {
			assert.Equal(t, "epoll", l.Kind())
			l.Close()
		}
	}()
	<-done
}

// TestLoopWhoseRingIsRefused checks that a loop goes on if the kernel accepts no more requests of its
// ring: the process has forbidden io_uring since, or has no memory left. It runs in a process of its
// own, all of whose threads have the filter.
func TestLoopWhoseRingIsRefused(t *testing.T) {
	const inChild = "MUSTER_TEST_REFUSED_RING"
	if os.Getenv(inChild) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inChild+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	l := newLoop(t)
	testcluster.Refuse(t, unix.SYS_IO_URING_ENTER, unix.SECCOMP_FILTER_FLAG_TSYNC)
	first := &late{asked: make(chan struct{}, 1), open: make(chan struct{})}
	_, a := adoptAs(t, l, func(e *echo) transport.Reader { first.echo = e; return first })
	_, b := adopt(t, l)
	_, c := adopt(t, l)
	for i, conn := range []io.Writer{a, b, c} {
		_, err := conn.Write([]byte("x"))
		require.NoError(t, err)
		if i == 0 {
			<-first.asked // the others become readable together
		}
	}
	close(first.open)
	for _, conn := range []io.Reader{a, b, c} {
		_, err := io.ReadFull(conn, make([]byte, 1))
		require.NoError(t, err)
	}
}
