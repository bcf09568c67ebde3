package link_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/internal/testcluster"
)

// pollingPair is the two ends of a TCP connection, outside the runtime's poller.
func pollingPair(t *testing.T) (a, b link.NowWriter) {
	t.Helper()
	dialed, accepted := testcluster.Conns(t)
	for i, c := range []net.Conn{dialed, accepted} {
		p, err := link.PollingConn(c)
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.Close() })
		_, err = c.Write([]byte{0})
		require.ErrorIs(t, err, net.ErrClosed, "the runtime's connection")
		assert.Equal(t, c.LocalAddr(), p.LocalAddr())
		assert.Equal(t, c.RemoteAddr(), p.RemoteAddr())
		if i == 0 {
			a = p.(link.NowWriter)
		} else {
			b = p.(link.NowWriter)
		}
	}
	return a, b
}

// TestWriteNow writes more than the sockets take: WriteNow returns how much they took, of many
// slices, and Write waits with the rest until the peer reads.
func TestWriteNow(t *testing.T) {
	t.Parallel()
	a, b := pollingPair(t)
	var bufs [][]byte
	data := make([]byte, 64<<20)
	for i := range data {
		data[i] = byte(i % 251)
	}
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 1+len(bufs)*1000)
		bufs, rest = append(bufs, rest[:n]), rest[n:]
	}
	sent, err := a.WriteNow(bufs)
	require.NoError(t, err)
	require.Positive(t, sent)
	require.Less(t, sent, len(data))
	again, err := a.WriteNow([][]byte{data[sent:]})
	require.NoError(t, err)
	require.Less(t, sent+again, len(data))
	var rest sync.WaitGroup
	rest.Go(func() {
		n, err := a.Write(data[sent+again:])
		assert.NoError(t, err)
		assert.Equal(t, len(data)-sent-again, n)
		assert.NoError(t, a.Close())
	})
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(got, data))
	rest.Wait()
}

// TestWriteNowOfSmallSlices checks that many small slices are few segments.
func TestWriteNowOfSmallSlices(t *testing.T) {
	t.Parallel()
	a, _ := pollingPair(t)
	bufs := make([][]byte, 1000)
	for i := range bufs {
		bufs[i] = []byte{byte(i)}
	}
	n, err := a.WriteNow(bufs)
	require.NoError(t, err)
	require.Equal(t, len(bufs), n)
	segments, err := link.Segments(a)
	require.NoError(t, err)
	require.Less(t, segments, uint32(10))
}

// TestPollingEnds ends a call of a connection that waits: by Close, by a deadline that is set before
// or during it, and by the peer.
func TestPollingEnds(t *testing.T) {
	t.Parallel()
	past := time.Unix(1, 0)
	for _, test := range []struct {
		name   string
		writes bool
		before bool // end is called before the call
		end    func(mine, theirs net.Conn) error
		want   error
	}{
		{"close a reader", false, false, func(mine, _ net.Conn) error { return mine.Close() }, net.ErrClosed},
		{"close a writer", true, false, func(mine, _ net.Conn) error { return mine.Close() }, net.ErrClosed},
		{"read after close", false, true, func(mine, _ net.Conn) error { return mine.Close() }, net.ErrClosed},
		{"write after close", true, true, func(mine, _ net.Conn) error { return mine.Close() }, net.ErrClosed},
		{"deadline of a reader", false, false, func(mine, _ net.Conn) error { return mine.SetReadDeadline(past) }, os.ErrDeadlineExceeded},
		{"deadline of a writer", true, false, func(mine, _ net.Conn) error { return mine.SetWriteDeadline(past) }, os.ErrDeadlineExceeded},
		{"read after a deadline", false, true, func(mine, _ net.Conn) error { return mine.SetDeadline(past) }, os.ErrDeadlineExceeded},
		{"the peer closes", false, false, func(_, theirs net.Conn) error { return theirs.Close() }, io.EOF},
		{"the peer closes, with data unread", true, false, func(_, theirs net.Conn) error { return theirs.Close() }, syscall.ECONNRESET},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			mine, theirs := pollingPair(t)
			call := func() error {
				var err error
				for n := 1; err == nil && n > 0; {
					if test.writes {
						n, err = mine.Write(make([]byte, 1<<20))
					} else {
						n, err = mine.Read(make([]byte, 1))
					}
				}
				return err
			}
			if test.before {
				require.NoError(t, test.end(mine, theirs))
				require.ErrorIs(t, call(), test.want)
				return
			}
			ended := make(chan error)
			go func() { ended <- call() }()
			require.NoError(t, test.end(mine, theirs))
			err := <-ended
			if errors.Is(err, syscall.EPIPE) { // of a write after the one that was reset
				err = syscall.ECONNRESET
			}
			require.ErrorIs(t, err, test.want)
		})
	}
}

// TestPolling dials with the option, and with one and several Ps.
func TestPolling(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for procs, want := range map[int]bool{1: false, 2: true} {
		runtime.GOMAXPROCS(procs)
		meshes, accepted := open(t, cluster(t, 2, true, nil))
		mine, _ := talk(t, meshes[0], 1, accepted[1])
		_, polls := mine.Conn.(link.NowWriter)
		assert.Equal(t, want, polls, "GOMAXPROCS=%d", procs)
	}
}
