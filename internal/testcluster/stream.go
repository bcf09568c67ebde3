package testcluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readSize  = 32 << 10
	window    = 128 << 10 // bytes in flight in one direction of a connection
	long      = 4 << 20   // the same in a direction with delay, where more is in flight at full speed
	chunkCost = 64        // counted for each chunk, as tiny chunks would be unbounded otherwise
)

// pair is a client's connection and the connection to the target. Its goroutine (Proxy.serve) owns
// the four goroutines that move bytes; end stops all of them.
type pair struct {
	proxy *Proxy
	fins  atomic.Int32  // directions that have ended without an error
	gone  chan struct{} // closed when the last goroutine has ended

	ctx    context.Context // ends with the pair
	cancel context.CancelFunc

	mu      sync.Mutex // protects the fields below
	conns   []*net.TCPConn
	dialing syscall.RawConn // to the target; nil before
	how     Ending
}

func newPair(p *Proxy, client *net.TCPConn) *pair {
	pr := &pair{proxy: p, gone: make(chan struct{}), conns: []*net.TCPConn{client}}
	pr.ctx, pr.cancel = context.WithCancel(context.Background())
	return pr
}

// run moves bytes until the pair has ended.
func (pr *pair) run(target string) {
	client := pr.conns[0]
	d := net.Dialer{Control: pr.dials}
	c, err := d.DialContext(pr.ctx, "tcp", target)
	if err != nil {
		pr.end(RST)
		return
	}
	server := c.(*net.TCPConn)
	if !pr.add(server) {
		return
	}
	up := &stream{pair: pr, way: pr.proxy.Up, src: client, dst: server, queue: newQueue()}
	down := &stream{pair: pr, way: pr.proxy.Down, src: server, dst: client, queue: newQueue()}
	up.back, down.back = down.queue, up.queue

	var moving sync.WaitGroup
	for _, s := range []*stream{up, down} {
		moving.Go(s.take)
		moving.Go(s.give)
	}
	moving.Wait()
}

// dials keeps the socket to the target before it is connected, for end.
func (pr *pair) dials(_, _ string, c syscall.RawConn) error {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.dialing = c
	return nil
}

// add adds c to the pair, or closes it if the pair has ended meanwhile.
func (pr *pair) add(c *net.TCPConn) bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.conns = append(pr.conns, c)
	if pr.ctx.Err() != nil {
		shut(c, pr.how)
		return false
	}
	return true
}

// end closes both connections, once.
func (pr *pair) end(how Ending) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.ctx.Err() != nil {
		return
	}
	pr.how = how
	if how == RST && pr.dialing != nil {
		// The target may have accepted a connection that dialing has not yet returned and that is
		// closed now; without this, that would not be a reset.
		_ = pr.dialing.Control(resetOnClose)
	}
	pr.cancel()
	for _, c := range pr.conns {
		shut(c, how)
	}
}

func resetOnClose(fd uintptr) {
	_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

func shut(c *net.TCPConn, how Ending) {
	switch how {
	case RST:
		_ = c.SetLinger(0)
	case FIN:
		_ = c.CloseWrite() // Close alone would reset if anything is unread
	}
	c.Close()
}

// stream is one direction of a pair: take reads into the queue, and give writes from it.
type stream struct {
	pair     *pair
	way      *Direction
	src, dst *net.TCPConn
	queue    *queue
	back     *queue // the other direction's

	free  time.Time // owned by give: when the next piece may be sent
	holed bool      // owned by give: data was lost, so nothing may follow it
}

// chunk is the bytes of one read, or the end of the stream.
type chunk struct {
	data []byte
	last bool
	how  Ending // if last

	read time.Time
}

func (s *stream) chunk(data []byte) chunk {
	return chunk{data: bytes.Clone(data), read: time.Now()}
}

func (s *stream) take() {
	buf := make([]byte, readSize)
	for {
		n, err := s.src.Read(buf)
		if n > 0 && !s.queue.push(s.pair.ctx, s.chunk(buf[:n]), s.window()) {
			return
		}
		if err != nil {
			s.queue.push(s.pair.ctx, s.end(err), window)
			return
		}
	}
}

func (s *stream) window() int {
	if f, _ := s.way.current(); f.delay > 0 {
		return long
	}
	return window
}

func (s *stream) end(err error) chunk {
	c := s.chunk(nil)
	c.last, c.how = true, RST
	if errors.Is(err, io.EOF) {
		c.how = FIN
	}
	return c
}

// give delivers until the pair ends. It continues after the end of the stream, since a reset may
// follow.
func (s *stream) give() {
	for {
		c, ok := s.queue.pop(s.pair.ctx)
		if !ok || !s.deliver(c) {
			return
		}
	}
}

// deliver returns when c is delivered or lost. It reports false if the pair has ended.
func (s *stream) deliver(c chunk) bool {
	for {
		f, ok := s.await(c)
		if !ok {
			return false
		}
		s.holed = s.holed || f.blackhole
		switch {
		case s.holed:
			return true
		case c.last:
			s.finish(c.how)
			return true
		}
		n := f.piece(len(c.data))
		if !s.write(c.data[:n], f) {
			return true
		}
		if c.data = c.data[n:]; len(c.data) == 0 {
			return true
		}
	}
}

// await returns when c is due, with the faults at that moment. It reports false if the pair has
// ended.
func (s *stream) await(c chunk) (faults, bool) {
	for {
		f, changed := s.way.current()
		d := time.Until(s.due(c, f))
		if s.pair.ctx.Err() != nil {
			return f, false
		}
		if f.blackhole || s.holed || !f.stall && d <= 0 {
			return f, true
		}
		var due <-chan time.Time
		if !f.stall {
			due = time.After(d)
		}
		select {
		case <-due:
		case <-changed:
		case <-s.pair.ctx.Done():
		}
	}
}

func (s *stream) due(c chunk, f faults) time.Time {
	due := c.read.Add(f.delay)
	if (f.throttle > 0 || f.split > 0) && due.Before(s.free) {
		return s.free
	}
	return due
}

// write sends a piece. If the receiver has closed, its sender is notified in the other direction,
// where that may be delayed or lost too.
func (s *stream) write(b []byte, f faults) bool {
	s.free = f.free(s.free, time.Now(), len(b))
	if _, err := s.dst.Write(b); err != nil {
		s.holed = true
		s.back.push(s.pair.ctx, s.end(err), window)
		return false
	}
	return true
}

func (s *stream) finish(how Ending) {
	if how == RST {
		s.pair.end(RST)
		return
	}
	_ = s.dst.CloseWrite() // if it was reset meanwhile, the other direction reports it
	if s.pair.fins.Add(1) == 2 {
		s.pair.end(FIN)
	}
}

// queue holds the bytes in flight.
type queue struct {
	more, room chan struct{} // hold one token each: check again

	mu     sync.Mutex // protects the fields below
	chunks []chunk
	size   int
}

func newQueue() *queue {
	return &queue{more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// push waits until the queue has fewer than limit bytes, except for the last chunk. It reports
// false if the pair has ended.
func (q *queue) push(ctx context.Context, c chunk, limit int) bool {
	for !q.tryPush(c, limit) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
	wake(q.more)
	return true
}

func (q *queue) tryPush(c chunk, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size >= limit && !c.last {
		return false
	}
	q.chunks = append(q.chunks, c)
	q.size += len(c.data) + chunkCost
	return true
}

// pop waits for a chunk. It reports false if the pair has ended.
func (q *queue) pop(ctx context.Context) (chunk, bool) {
	for {
		if c, ok := q.tryPop(); ok {
			wake(q.room)
			return c, true
		}
		select {
		case <-q.more:
		case <-ctx.Done():
			return chunk{}, false
		}
	}
}

func (q *queue) tryPop() (chunk, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.chunks) == 0 {
		return chunk{}, false
	}
	c := q.chunks[0]
	q.chunks[0] = chunk{} // the array is still used by the slice
	q.chunks = q.chunks[1:]
	q.size -= len(c.data) + chunkCost
	return c, true
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
