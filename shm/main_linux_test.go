package shm_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/shm"
)

// testTimeout is the time limit of every expected event.
const testTimeout = 30 * time.Second

// childIs is the environment variable that makes the test binary a child. Its value is the child's
// role. The child's socket is its descriptor 3.
const childIs = "MUSTER_SHM_CHILD"

func TestMain(m *testing.M) {
	if what, ok := os.LookupEnv(childIs); ok {
		if err := children[what](); err != nil {
			fmt.Fprintln(os.Stderr, what+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testcluster.Leaks(m)
}

func within(t testing.TB) context.Context { return testcluster.Within(t, testTimeout) }

// sockets returns both ends of a stream.
func sockets(t testing.TB) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return must(socket(fds[0])), must(socket(fds[1]))
}

func socket(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// pair returns two Conns connected to each other.
func pair(t testing.TB) (*shm.Conn, *shm.Conn) {
	t.Helper()
	one, other := sockets(t)
	a, b := shm.NewConn(one), shm.NewConn(other)
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
	return a, b
}

func newArena(t testing.TB, o *shm.Options) *shm.Arena {
	t.Helper()
	a, err := shm.NewArena(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

func alloc(t testing.TB, a *shm.Arena, n int) []byte {
	t.Helper()
	b, err := a.Alloc(n)
	require.NoError(t, err)
	require.Len(t, b, n)
	return b
}

// filled allocates n bytes and fills them with random data from seed.
func filled(t testing.TB, a *shm.Arena, n int, seed uint64) ([]byte, shm.Ref) {
	t.Helper()
	b := alloc(t, a, n)
	fill(b, seed)
	ref, ok := a.Find(b)
	require.True(t, ok)
	return b, ref
}

// shared is filled of bytes that are shared over c.
func shared(t testing.TB, c *shm.Conn, a *shm.Arena, n int, seed uint64) ([]byte, shm.Ref) {
	t.Helper()
	b, ref := filled(t, a, n, seed)
	require.NoError(t, c.Share(within(t), a, ref))
	return b, ref
}

// mapped maps refs.
func mapped(t testing.TB, c *shm.Conn, refs ...shm.Ref) []*shm.Block {
	t.Helper()
	blocks, err := c.Map(within(t), refs...)
	require.NoError(t, err)
	return blocks
}

// passed maps what c has shared with d, releases it, and waits until c knows.
func passed(t testing.TB, c, d *shm.Conn, refs ...shm.Ref) {
	t.Helper()
	for _, b := range mapped(t, d, refs...) {
		b.Release()
	}
	require.NoError(t, c.WaitReleased(within(t), refs...))
}

func fill(b []byte, seed uint64) {
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)}).Read(b)
}

// sum returns a checksum of the contents.
func sum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// open returns how many descriptors this process has.
func open(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(fds)
}

// segments returns how many segments the process pid has mapped or open.
func segments(pid int) (n int) {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	n = bytes.Count(maps, []byte("memfd:muster-shm"))
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		if to, _ := os.Readlink(dir + "/" + fd.Name()); strings.Contains(to, "memfd:muster-shm") {
			n++
		}
	}
	return n
}
