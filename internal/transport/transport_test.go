package transport_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/internal/transport"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

const testTimeout = 20 * time.Second

// pipe is a Pipe that accepts as many bytes as take says.
type pipe struct {
	mu     sync.Mutex
	take   int // bytes that it still accepts
	got    bytes.Buffer
	resume func()
	err    error
	closed bool
	during func() // called by each TryWrite
}

func (p *pipe) TryWrite(bufs [][]byte) (n int, err error) {
	if p.during != nil {
		p.during()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range bufs {
		b = b[:min(len(b), p.take)]
		p.take -= len(b)
		n += len(b)
		p.got.Write(b)
	}
	return n, p.err
}

func (p *pipe) NotifyWritable(resume func()) { p.resume = resume }
func (p *pipe) Close() error                 { p.closed = true; return nil }

// more lets the pipe accept n bytes, and resumes the writer.
func (p *pipe) more(n int) {
	p.take = n
	if r := p.resume; r != nil {
		p.resume = nil
		r()
	}
}

func add(o *transport.Outbox, s string) {
	o.Append(func(b []byte) []byte { return append(b, s...) })
}

func TestOutboxEndsWithAPeerThatIsTooSlow(t *testing.T) {
	p := &pipe{}
	o := transport.NewOutbox(p, 10)
	// Shared bytes do not count against the limit of one outbox.
	o.AppendShared(0, []byte("h"), &transport.Body{Bytes: make([]byte, 10_000)})
	// A single reply may have any size.
	add(o, "12345678901234567890")
	o.Flush()
	require.NoError(t, o.Err())
	add(o, "x")
	require.ErrorIs(t, o.Err(), transport.ErrSlow)
	require.True(t, p.closed)
	require.False(t, o.Blocked(0), "its reader receives the end elsewhere")
	p.more(100)
	require.Zero(t, p.got.Len())
}

func TestDrainedIsCalledOnceForAHold(t *testing.T) {
	p, drained := &pipe{}, 0
	o := transport.NewOutbox(p, 100)
	o.Drained = func() { drained++ }
	add(o, "1234567890")
	o.Flush()
	require.False(t, o.Blocked(10))
	require.True(t, o.Blocked(9))
	p.more(5)
	require.Zero(t, drained)
	p.more(5)
	require.Equal(t, 1, drained)
	add(o, "12")
	o.Flush()
	p.more(2)
	require.Equal(t, 1, drained, "no reader waited")
}

// TestDrainedIsCalledWhenTheConnectionEnds checks that Drained is called at any end of a
// connection: nothing else would resume a reader that is blocked.
func TestDrainedIsCalledWhenTheConnectionEnds(t *testing.T) {
	for name, end := range map[string]func(p *pipe, o *transport.Outbox){
		"too slow":  func(_ *pipe, o *transport.Outbox) { add(o, "more") },
		"broken":    func(p *pipe, _ *transport.Outbox) { p.err = io.ErrClosedPipe; p.more(1) },
		"discarded": func(_ *pipe, o *transport.Outbox) { o.Discard() },
	} {
		t.Run(name, func(t *testing.T) {
			p, drained := &pipe{}, 0
			o := transport.NewOutbox(p, 5)
			o.Drained = func() { drained++ }
			add(o, "1234567890")
			o.Flush()
			require.True(t, o.Blocked(0))
			end(p, o)
			require.Error(t, o.Err())
			require.Equal(t, 1, drained)
			o.Discard()
			require.Equal(t, 1, drained)
		})
	}
}

// TestOutboxesShareABudget checks that bytes that wait in several outboxes count against one
// budget: those of one peer once per peer, shared ones once. A peer is too slow if more bytes wait
// for it than the budget has left. Any end of a connection returns its bytes to the budget.
func TestOutboxesShareABudget(t *testing.T) {
	budget := transport.NewBudget(100_000)
	var outs []*transport.Outbox
	var pipes []*pipe
	for range 3 {
		p := &pipe{}
		o := transport.NewOutbox(p, 1<<20)
		o.Budget = budget
		outs, pipes = append(outs, o), append(pipes, p)
	}
	body := &transport.Body{Bytes: make([]byte, 20_000)}
	for _, o := range outs {
		o.AppendShared(0, []byte("head"), body)
		o.Flush()
	}
	require.EqualValues(t, 20_000+3*4, budget.Used(), "the body counts once")
	add(outs[0], strings.Repeat("x", 40_000))
	require.EqualValues(t, 60_012, budget.Used())
	add(outs[0], "y") // 60,004 bytes wait, 39,988 are left
	require.ErrorIs(t, outs[0].Err(), transport.ErrSlow)
	require.EqualValues(t, 20_008, budget.Used())
	add(outs[1], "small")
	outs[1].Flush()
	require.NoError(t, outs[1].Err(), "there is room for those that read")
	pipes[1].more(30_000)
	require.EqualValues(t, 20_004, budget.Used())
	pipes[2].more(10_000)
	outs[2].Discard()
	pipes[2].more(10_000)
	require.Zero(t, budget.Used())
}

// TestDrainedAfterAWriteWithoutWaiting checks that Drained is called if Blocked returned true
// during a write that then wrote everything, without ever waiting for the peer.
func TestDrainedAfterAWriteWithoutWaiting(t *testing.T) {
	drained, held := 0, false
	p := &pipe{take: 100}
	o := transport.NewOutbox(p, 100)
	o.Drained = func() { drained++ }
	p.during = func() { held = o.Blocked(0) }
	add(o, "1234567890")
	o.Flush()
	require.True(t, held)
	require.Equal(t, 1, drained)
}

func TestOutboxOfManyWriters(t *testing.T) {
	for name, connect := range map[string]func(*testing.T) (net.Conn, net.Conn){"socket": sockets, "pipe": func(*testing.T) (net.Conn, net.Conn) { return net.Pipe() }} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := connect(t)
			p := transport.NewPipe(ours)
			o := transport.NewOutbox(p, 1<<30)
			frame := bytes.Repeat([]byte("x"), 999)
			var writing sync.WaitGroup
			for range 8 {
				writing.Go(func() {
					for range 500 {
						o.Append(func(b []byte) []byte { return append(append(b, frame...), '\n') })
						o.Flush()
					}
				})
			}
			all := make([]byte, 8*500*1000)
			_, err := io.ReadFull(theirs, all)
			require.NoError(t, err)
			require.Equal(t, 4000, bytes.Count(all, append(frame, '\n')))
			writing.Wait()
			require.NoError(t, p.Close())
			p.Done()
			_ = theirs.Close()
		})
	}
}

func sockets(t *testing.T) (ours, theirs net.Conn) {
	theirs, ours = testcluster.Conns(t)
	require.NoError(t, theirs.SetDeadline(time.Now().Add(testTimeout)))
	return ours, theirs
}

// echo is a Reader of a Sock that sends all bytes back.
type echo struct {
	sock  transport.Socket
	out   *transport.Outbox
	buf   []byte
	ended chan error
}

func (e *echo) Buffer(buf []byte) []byte {
	e.buf = buf
	return buf
}

func (e *echo) Received(n int) error {
	if n > 0 { // an empty frame could never be written
		e.out.Append(func(b []byte) []byte { return append(b, e.buf[:n]...) })
	}
	if e.out.Blocked(1 << 20) {
		e.sock.Pause(true)
		if !e.out.Blocked(1 << 20) {
			e.sock.Pause(false)
		}
	}
	return nil
}

func (e *echo) Flush() { e.out.Flush() }

func (e *echo) Ended(err error) { e.ended <- err }

func newLoop(t *testing.T) *transport.Loop {
	l, err := transport.NewLoop()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("SKIPPED: there are loops on Linux only: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

func adopt(t *testing.T, l *transport.Loop) (*echo, net.Conn) {
	t.Helper()
	return adoptAs(t, l, func(e *echo) transport.Reader { return e })
}

// reads begins to read s.
func (e *echo) reads(s transport.Socket) (transport.Reader, error) {
	e.sock, e.out = s, transport.NewOutbox(s, 64<<20)
	e.out.Drained = func() { s.Pause(false) }
	return e, nil
}

// adoptAs lets l read a socket with the Reader that as makes of an echo.
func adoptAs(t *testing.T, l *transport.Loop, as func(*echo) transport.Reader) (*echo, net.Conn) {
	t.Helper()
	ours, theirs := sockets(t)
	e := &echo{ended: make(chan error, 1)}
	require.NoError(t, l.Adopt(ours.(*net.TCPConn), func(s transport.Socket) (transport.Reader, error) {
		_, _ = e.reads(s)
		return as(e), nil
	}))
	return e, theirs
}

// onLoops runs test with both kinds of loops.
func onLoops(t *testing.T, test func(t *testing.T)) {
	t.Run("io_uring", func(t *testing.T) {
		if kind := newLoop(t).Kind(); kind != "io_uring" {
			t.Skip("SKIPPED: this kernel, or the environment, has no io_uring")
		}
		test(t)
	})
	t.Run("epoll", func(t *testing.T) {
		t.Setenv(transport.NoIOUring, "1")
		require.Equal(t, "epoll", newLoop(t).Kind())
		test(t)
	})
}

// TestServe checks a connection that a goroutine reads: a reader that pauses until its peer reads goes on,
// and each end is reported.
func TestServe(t *testing.T) {
	for name, connect := range map[string]func(*testing.T) (net.Conn, net.Conn){"socket": sockets, "pipe": func(*testing.T) (net.Conn, net.Conn) { return net.Pipe() }} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := connect(t)
			e, served := &echo{ended: make(chan error, 1)}, make(chan error, 1)
			go func() { served <- transport.Serve(ours, make([]byte, 4<<10), e.reads) }()
			sent := bytes.Repeat([]byte("0123456789"), 2<<20) // large, so that echo pauses many times
			go func() { _, _ = theirs.Write(sent) }()
			got := make([]byte, len(sent))
			_, err := io.ReadFull(theirs, got)
			require.NoError(t, err)
			require.True(t, bytes.Equal(sent, got))
			require.NoError(t, theirs.Close())
			require.ErrorIs(t, <-e.ended, io.EOF)
			require.NoError(t, <-served)

			ours, theirs = connect(t)
			refused := errors.New("refused")
			require.Equal(t, refused, transport.Serve(ours, nil, func(transport.Socket) (transport.Reader, error) { return nil, refused }))
			_, err = theirs.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			_ = theirs.Close()
		})
	}
}

// resuming is an echo that pauses, and is resumed at once, whenever something arrives: it answers when it is
// called again.
type resuming struct{ *echo }

func (r *resuming) Received(n int) error {
	if n == 0 {
		add(r.out, "held")
		return nil
	}
	r.sock.Pause(true)
	r.sock.Pause(false)
	return nil
}

// TestResumedAtOnce checks that Received is called after a pause that has ended before anyone waited for that.
func TestResumedAtOnce(t *testing.T) {
	answers := func(t *testing.T, c net.Conn) {
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		got := make([]byte, len("held"))
		_, err = io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, "held", string(got))
		require.NoError(t, c.Close())
	}
	t.Run("goroutine", func(t *testing.T) {
		ours, theirs := sockets(t)
		var serving sync.WaitGroup
		serving.Go(func() {
			_ = transport.Serve(ours, make([]byte, 100), func(s transport.Socket) (transport.Reader, error) {
				e := &echo{ended: make(chan error, 1)}
				_, err := e.reads(s)
				return &resuming{e}, err
			})
		})
		answers(t, theirs)
		serving.Wait()
	})
	onLoops(t, func(t *testing.T) {
		_, c := adoptAs(t, newLoop(t), func(e *echo) transport.Reader { return &resuming{e} })
		answers(t, c)
	})
}

// TestLoopOfManySockets checks that a loop which serves many sockets together gives each its own
// bytes, also those of peers that read late, and that the end of one is not that of another.
func TestLoopOfManySockets(t *testing.T) {
	onLoops(t, func(t *testing.T) {
		l := newLoop(t)
		var working sync.WaitGroup
		for i := range 100 { // more than are served together
			e, c := adopt(t, l)
			require.NoError(t, c.SetDeadline(time.Now().Add(6*testTimeout)))
			sent, rounds := bytes.Repeat([]byte{byte(i), byte(i >> 4), 7}, 1000), 5
			if i%30 == 0 { // more than sockets hold
				sent, rounds = bytes.Repeat(sent, 2000), 1
			}
			working.Go(func() {
				defer c.Close()
				for range rounds {
					if i%10 == 3 {
						_ = c.(*net.TCPConn).SetLinger(0) // the end is a reset
						_, _ = c.Write(sent)
						break
					}
					go func() { _, _ = c.Write(sent) }()
					got := make([]byte, len(sent))
					_, err := io.ReadFull(c, got)
					if !assert.NoError(t, err) || !assert.True(t, bytes.Equal(sent, got), "socket %d", i) {
						return
					}
				}
				_ = c.Close()
				assert.Error(t, <-e.ended)
			})
		}
		working.Wait()
	})
}

// signal puts a token into c, unless one is there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// late is an echo that waits for open when the loop asks it for a buffer.
type late struct {
	*echo
	asked, open chan struct{}
}

func (r *late) Buffer(buf []byte) []byte {
	signal(r.asked)
	<-r.open
	return r.echo.Buffer(buf)
}

// full is an echo that at first has no space for more bytes.
type full struct {
	*echo
	received bool
}

func (r *full) Buffer(buf []byte) []byte {
	if !r.received {
		return buf[:0]
	}
	return r.echo.Buffer(buf)
}

func (r *full) Received(n int) error {
	r.received = true
	return r.echo.Received(n)
}

// TestLoopOfFullReaders checks that a reader without space for more bytes may continue with those
// that it has: its connection does not end.
func TestLoopOfFullReaders(t *testing.T) {
	onLoops(t, func(t *testing.T) {
		l := newLoop(t)
		first := &late{asked: make(chan struct{}, 1), open: make(chan struct{})}
		_, c := adoptAs(t, l, func(e *echo) transport.Reader { first.echo = e; return first })
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		<-first.asked // meanwhile two others become readable, which the loop then serves together
		var peers []net.Conn
		for range 2 {
			_, c := adoptAs(t, l, func(e *echo) transport.Reader { return &full{echo: e} })
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			peers = append(peers, c)
		}
		close(first.open)
		for _, c := range peers {
			_, err := io.ReadFull(c, make([]byte, 1))
			require.NoError(t, err)
		}
	})
}

// paused is a Reader that pauses when it is to receive.
type paused struct {
	*echo
	asked chan struct{}
}

func (r *paused) Buffer([]byte) []byte {
	r.sock.Pause(true)
	signal(r.asked)
	return nil
}

// TestLoopEndsAPausedSocket checks that the loop ends a paused socket whose peer has reset the
// connection, instead of asking its reader again and again.
func TestLoopEndsAPausedSocket(t *testing.T) {
	onLoops(t, func(t *testing.T) {
		asked := make(chan struct{}, 1)
		e, c := adoptAs(t, newLoop(t), func(e *echo) transport.Reader { return &paused{e, asked} })
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		<-asked
		require.NoError(t, c.(*net.TCPConn).SetLinger(0))
		require.NoError(t, c.Close())
		select {
		case err := <-e.ended:
			require.ErrorIs(t, err, io.EOF)
		case <-asked:
			require.Fail(t, "the reader is asked again")
		}
	})
}

// TestLoopResumesAWriter checks that what a socket does not hold is written when its peer reads.
func TestLoopResumesAWriter(t *testing.T) {
	onLoops(t, func(t *testing.T) {
		e, c := adopt(t, newLoop(t))
		sent := bytes.Repeat([]byte("0123456789abcdef"), 2<<20) // more than sockets hold
		e.out.AppendUncopied(0, sent[:16], sent[16:])
		e.out.Flush()
		require.Positive(t, e.out.Waiting())
		got := make([]byte, len(sent))
		_, err := io.ReadFull(c, got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, got))
	})
}

func TestLoopReportsEachEnd(t *testing.T) {
	onLoops(t, func(t *testing.T) {
		l := newLoop(t)
		e, c := adopt(t, l)
		_ = c.Close()
		require.ErrorIs(t, <-e.ended, io.EOF)
		e, _ = adopt(t, l)
		require.NoError(t, e.sock.Close())
		require.ErrorIs(t, <-e.ended, io.EOF)
		require.NoError(t, e.sock.Close(), "its number may be another socket's by now")
		e.sock.Pause(true)
		_, err := e.sock.TryWrite([][]byte{{1}})
		require.ErrorIs(t, err, net.ErrClosed)
		e, _ = adopt(t, l)
		l.Close()
		require.ErrorIs(t, <-e.ended, net.ErrClosed)
		e, c = adopt(t, l)
		require.ErrorIs(t, <-e.ended, net.ErrClosed, "the loop is closed")
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err)
	})
}

func TestAdoptWithAReaderThatRefuses(t *testing.T) {
	ours, theirs := sockets(t)
	refused := errors.New("refused")
	err := newLoop(t).Adopt(ours.(*net.TCPConn), func(transport.Socket) (transport.Reader, error) { return nil, refused })
	require.Equal(t, refused, err)
	_, err = theirs.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestLoopKeepsNoDescriptor(t *testing.T) {
	onLoops(t, func(t *testing.T) {
		before := descriptors(t)
		l := newLoop(t)
		for i := range 1000 {
			e, c := adopt(t, l)
			if i%2 == 0 {
				_ = e.sock.Close()
			} else {
				_ = c.Close()
			}
			assert.Error(t, <-e.ended, "it ended without a reason")
			_ = c.Close()
		}
		l.Close()
		testcluster.Eventually(t, testTimeout, func() bool { return descriptors(t) <= before }, "all descriptors are closed")
	})
}

func descriptors(t *testing.T) int {
	fds, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("SKIPPED: this system does not list descriptors: ", err)
	}
	require.NoError(t, err)
	return len(fds)
}

func TestLoopsThatCloseWhileTheyWork(t *testing.T) {
	onLoops(t, func(t *testing.T) {
		for range 50 {
			l := newLoop(t)
			e, c := adopt(t, l)
			var closing sync.WaitGroup
			closing.Go(func() { _, _ = c.Write([]byte("x")) })
			closing.Go(l.Close)
			closing.Go(l.Close)
			closing.Wait()
			assert.Error(t, <-e.ended, "it ended without a reason")
		}
	})
}

// TestOutboxDoesNotReuseAnUncopiedBody checks that the memory of a body that is sent from where it
// is does not become a buffer for other frames, however the pipe takes it.
func TestOutboxDoesNotReuseAnUncopiedBody(t *testing.T) {
	const small = 4 << 10 // the size of the buffers that outboxes share
	body := bytes.Repeat([]byte("b"), 5*small)
	for range 100 { // a buffer that was put into a sync.Pool is not always the next that it returns
		p := &pipe{}
		o := transport.NewOutbox(p, 1<<20)
		o.AppendUncopied(0, nil, body)
		o.Flush()
		p.more(len(body) - small)
		p.more(small)
		add(o, "another frame")
		p.more(small)
	}
	require.Equal(t, bytes.Repeat([]byte("b"), 5*small), body)
}
