package shm_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/shm"
)

const sealedAll = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

// rawPeer sends messages to a Conn by hand.
type rawPeer struct {
	t    testing.TB
	sock *net.UnixConn
}

// raw returns a Conn, and its peer.
func raw(t testing.TB) (*shm.Conn, rawPeer) {
	t.Helper()
	near, far := sockets(t)
	c := shm.NewConn(near)
	t.Cleanup(func() {
		_ = c.Close()
		_ = far.Close()
	})
	return c, rawPeer{t, far}
}

func (p rawPeer) send(b []byte, fds ...int) {
	p.t.Helper()
	_, _, err := p.sock.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	require.NoError(p.t, err)
}

// message returns count records, whose bytes are words.
func message(kind byte, count uint32, words ...uint64) []byte {
	b := []byte{0x73, 0x4d, 1, kind}
	b = binary.LittleEndian.AppendUint32(b, count)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// memfd returns a descriptor that is closed when the test ends.
func (p rawPeer) memfd(size int64, seals int) int {
	p.t.Helper()
	fd, err := unix.MemfdCreate("muster-shm-raw", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(p.t, unix.Ftruncate(fd, size))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(p.t, err)
	return fd
}

// segment sends fd as segment 1 of arena 1.
func (p rawPeer) segment(fd int, size uint64) {
	p.t.Helper()
	p.send(message(1, 1, 1, 1, size), fd)
}

// giveBack releases each of refs once.
func (p rawPeer) giveBack(refs ...shm.Ref) {
	p.t.Helper()
	b := message(2, uint32(len(refs)))
	for _, r := range refs {
		for _, w := range []uint64{r.Arena, uint64(r.Segment), uint64(r.Offset), uint64(r.Len)} {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	_, err := p.sock.Write(b)
	require.NoError(p.t, err)
}

// TestHostile checks that any invalid message of a peer ends the Conn with a clear error, and
// leaves nothing open.
func TestHostile(t *testing.T) {
	const size = 1 << 16
	good := func(p rawPeer) { p.segment(p.memfd(size, sealedAll), size) }
	ref := shm.Ref{Arena: 1, Segment: 1, Offset: 0, Len: 64}
	file := func(p rawPeer, dir string) int {
		f, err := os.CreateTemp(dir, "shm-test-")
		require.NoError(p.t, err)
		require.NoError(p.t, os.Remove(f.Name()))
		require.NoError(p.t, f.Truncate(size))
		p.t.Cleanup(func() { f.Close() })
		return int(f.Fd())
	}
	cases := map[string]struct {
		send func(p rawPeer)
		want string
	}{
		"garbage":          {func(p rawPeer) { p.send([]byte("GET / HTTP/1.1\r\n\r\n")) }, "not the beginning of a message"},
		"version":          {func(p rawPeer) { p.send([]byte{0x73, 0x4d, 9, 1, 1, 0, 0, 0}) }, "the peer has version 9, this process has 1"},
		"kind 0":           {func(p rawPeer) { p.send(message(0, 1)) }, "no kind 0"},
		"kind 200":         {func(p rawPeer) { p.send(message(200, 1)) }, "no kind 200"},
		"no records":       {func(p rawPeer) { p.send(message(2, 0)) }, "0 records"},
		"too many records": {func(p rawPeer) { p.send(message(2, math.MaxUint32)) }, "4294967295 records"},
		"two segments":     {func(p rawPeer) { p.send(message(1, 2)) }, "2 records"},
		"no descriptor":    {func(p rawPeer) { p.send(message(1, 1, 1, 1, size)) }, "without a descriptor"},
		"stray descriptor": {func(p rawPeer) { good(p); p.send(message(3, 1, 1, 1), 0) }, "belongs to no segment"},
		"two descriptors":  {func(p rawPeer) { fd := p.memfd(size, sealedAll); p.send(message(1, 1, 1, 1, size), fd, fd) }, "belongs to no segment"},
		"250 descriptors":  {func(p rawPeer) { p.send(message(1, 1, 1, 1, size), make([]int, 250)...) }, "cut off"},
		"hoard":            {func(p rawPeer) { p.send([]byte{0x73}, 0, 0); p.send([]byte{0x4d}, 0, 0) }, "more descriptors than segments"},
		"not sealed":       {func(p rawPeer) { p.segment(p.memfd(size, 0), size) }, "not sealed"},
		"no shrink seal":   {func(p rawPeer) { p.segment(p.memfd(size, unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE), size) }, "size of its segment is not sealed"},
		"no write seal":    {func(p rawPeer) { p.segment(p.memfd(size, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK), size) }, "not sealed against writers"},
		"too small":        {func(p rawPeer) { p.segment(p.memfd(size, sealedAll), size*2) }, "has 65536 bytes, not 131072"},
		"empty":            {func(p rawPeer) { p.segment(p.memfd(0, sealedAll), 0) }, "has 0 bytes"},
		"negative size":    {func(p rawPeer) { p.segment(p.memfd(size, sealedAll), 1<<63) }, "65536 bytes"},
		"beyond all":       {func(p rawPeer) { p.segment(p.memfd(1<<45, sealedAll), 1<<45) }, "of 35184372088832 bytes"},
		"file":             {func(p rawPeer) { p.segment(file(p, ""), size) }, "something else than memory"},
		"file in /dev/shm": {func(p rawPeer) { p.segment(file(p, "/dev/shm"), size) }, "not sealed"},
		"pipe":             {func(p rawPeer) { r, _ := pipe(p.t); p.segment(r, size) }, "something else than memory"},
		"socket": {func(p rawPeer) {
			f, err := p.sock.File()
			require.NoError(p.t, err)
			defer f.Close()
			p.segment(int(f.Fd()), size)
		}, "something else than memory"},
		"twice":                      {func(p rawPeer) { good(p); good(p) }, "there before: true"},
		"padding":                    {func(p rawPeer) { p.send(message(1, 1, 1, 1|1<<32, size), p.memfd(size, sealedAll)) }, "0x1 where 0 is due"},
		"segments without end":       {segmentsWithoutEnd, "4096 segments"},
		"returns what is not shared": {func(p rawPeer) { p.giveBack(ref) }, fmt.Sprintf("release of %+v, which is not shared", ref)},
		"returns padding":            {func(p rawPeer) { p.send(message(2, 1, 1, 1|1<<32, 0, 1)) }, "0x1 where 0 is due"},
		"drops nothing":              {func(p rawPeer) { p.send(message(3, 1, 1, 1)) }, "the end of segment 1"},
		"drops twice":                {func(p rawPeer) { good(p); p.send(message(3, 2, 1, 1, 1, 1)) }, "the end of segment 1"},
		"ends in between":            {func(p rawPeer) { p.send(message(2, 1, 1)); p.sock.Close() }, "ended the connection"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before, mine := open(t), segments(os.Getpid())
			t.Cleanup(func() { // the last of all
				require.Equal(t, before, open(t))
				require.Equal(t, mine, segments(os.Getpid()))
			})
			c, p := raw(t)
			tc.send(p)
			<-c.Done()
			require.ErrorContains(t, c.Err(), tc.want)
			require.NoError(t, c.Close())
			_, err := c.Map(t.Context(), ref)
			require.ErrorIs(t, err, shm.ErrClosed)
		})
	}
}

func pipe(t testing.TB) (int, int) {
	t.Helper()
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	t.Cleanup(func() {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
	})
	return p[0], p[1]
}

func segmentsWithoutEnd(p rawPeer) {
	fd := p.memfd(1<<12, sealedAll)
	for i := range 4097 {
		p.send(message(1, 1, 1, uint64(i), 1<<12), fd)
	}
}

// TestReturnsTooMuch checks that a peer that returns more than was shared is no longer trusted: the
// memory that it has is retired, the memory that it returned before is not.
func TestReturnsTooMuch(t *testing.T) {
	for name, extra := range map[string]func(shared shm.Ref) shm.Ref{
		"once more": func(shared shm.Ref) shm.Ref { return shared },
		"a part":    func(shared shm.Ref) shm.Ref { shared.Len--; return shared },
		"another":   func(shared shm.Ref) shm.Ref { shared.Arena++; return shared },
	} {
		for _, frames := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s in %d frames", name, frames), func(t *testing.T) {
				ctx := within(t)
				c, p := raw(t)
				a := newArena(t, nil)
				_, ref := filled(t, a, 100, 1)
				_, other := filled(t, a, 100, 2)
				require.NoError(t, c.Share(ctx, a, ref, ref, other))
				if frames == 2 {
					p.giveBack(ref, ref)
					require.NoError(t, c.WaitReleased(ctx, ref))
					p.giveBack(extra(ref))
				} else {
					p.giveBack(ref, ref, extra(ref))
				}
				<-c.Done()
				require.ErrorContains(t, c.Err(), fmt.Sprintf("refused what the peer has sent: the release of %+v, which is not shared", extra(ref)))
				require.NoError(t, c.WaitReleased(ctx, ref))
				require.ErrorIs(t, c.WaitReleased(ctx, other), c.Err())
				require.Equal(t, 1, a.Stats().Retired)
				require.Zero(t, a.Stats().Shared)
			})
		}
	}
}

// TestHeldTooLong checks that a segment which the peer drops while it is mapped here stays
// readable, until it is released.
func TestHeldTooLong(t *testing.T) {
	c, p := raw(t)
	p.segment(p.memfd(1<<16, sealedAll), 1<<16)
	ref := shm.Ref{Arena: 1, Segment: 1, Len: 1 << 16}
	blocks := mapped(t, c, ref, ref)
	p.send(message(3, 1, 1, 1))
	p.send(message(1, 1, 1, 2, 1<<12), p.memfd(1<<12, sealedAll))
	after := mapped(t, c, shm.Ref{Arena: 1, Segment: 2, Len: 1})
	for _, b := range append(blocks, after...) {
		require.Zero(t, sum(b.Data)-sum(make([]byte, len(b.Data))))
		b.Release()
	}
}

// TestThePeerCannotWrite checks that a process with the descriptor can only read.
func TestThePeerCannotWrite(t *testing.T) {
	c, p := raw(t)
	b, _ := shared(t, c, newArena(t, &shm.Options{Segment: 1 << 16}), 1<<16, 1)
	want := sum(b)
	oob := make([]byte, unix.CmsgSpace(4))
	_, oobn, _, _, err := p.sock.ReadMsgUnix(make([]byte, 1024), oob)
	require.NoError(t, err)
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	require.NoError(t, err)
	fds, err := unix.ParseUnixRights(&msgs[0])
	require.NoError(t, err)
	fd := fds[0]
	defer unix.Close(fd)

	_, err = unix.Mmap(fd, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)
	_, err = unix.Pwrite(fd, []byte{1}, 0)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 1<<20), unix.EPERM)
	require.ErrorIs(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<16), unix.EPERM)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.ErrorIs(t, err, unix.EPERM)
	require.Equal(t, want, sum(b))
	b[0]++ // the owner can still write
}
