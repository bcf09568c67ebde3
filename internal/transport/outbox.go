// Package transport has the bytes on their way to a connection: an Outbox, whose callers never wait for the peer.
package transport

import (
	"errors"
	"net"
	"sync"
	"syscall"
)

// ErrSlow is the end of a connection whose peer does not read what it asked for.
var ErrSlow = errors.New("the peer does not read: too much is waiting for it")

const (
	// shareFrom is from where on bytes that several connections get are not copied for each.
	shareFrom = 8 << 10
	// room is the size of the buffers in which small frames are gathered.
	room = 4 << 10
)

var buffers = sync.Pool{New: func() any { return new([room]byte) }}

// chunk is some bytes to be written.
type chunk struct {
	b      []byte
	shared bool // with other connections: not ours to reuse, and not counted
}

// Outbox gathers frames for one connection and writes them, many at once if they come fast.
// Whoever calls Flush writes, as far as the socket takes it at once; what it does not take is
// written by a goroutine that Flush starts, and that ends when all is written or the connection is closed.
type Outbox struct {
	conn  net.Conn
	raw   syscall.RawConn // nil: conn has no writes that do not wait
	limit int

	mu      sync.Mutex // protects the fields below; not held while writing
	queue   []chunk    // the last one is open for more if it is not shared
	bytes   int        // of chunks that are not shared and not written
	writing bool       // somebody writes: Flush leaves it to them
	err     error
	rested  sync.Cond // on mu: writing has become false

	// owned by whoever set writing: a closure for each write would be garbage for each write
	attempt func(fd uintptr) bool
	next    []byte
	wrote   int
	fault   error
}

// NewOutbox returns the outbox of conn. When more than limit bytes wait for the peer,
// it is too slow, and the connection is closed.
func NewOutbox(conn net.Conn, limit int) *Outbox {
	o := &Outbox{conn: conn, limit: limit}
	o.rested.L = &o.mu
	o.attempt = o.writeOnce
	if sc, ok := conn.(syscall.Conn); ok {
		o.raw, _ = sc.SyscallConn()
	}
	return o
}

// Append appends what f appends to its argument.
func (o *Outbox) Append(f func(b []byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.grow(f)
	}
}

// AppendShared appends head, and body, which nobody may change any more: it may go to many connections.
func (o *Outbox) AppendShared(head, body []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.err != nil:
	case len(body) < shareFrom:
		o.grow(func(b []byte) []byte { return append(append(b, head...), body...) })
	default:
		o.grow(func(b []byte) []byte { return append(b, head...) })
		o.queue = append(o.queue, chunk{body, true})
	}
}

func (o *Outbox) grow(f func(b []byte) []byte) {
	if n := len(o.queue); n == 0 || o.queue[n-1].shared {
		o.queue = append(o.queue, chunk{b: buffers.Get().(*[room]byte)[:0]})
	}
	last := &o.queue[len(o.queue)-1]
	before := len(last.b)
	last.b = f(last.b)
	if o.bytes += len(last.b) - before; o.bytes > o.limit {
		o.fail(ErrSlow)
	}
}

// Flush writes what was appended, without waiting for the peer.
func (o *Outbox) Flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.writing && len(o.queue) > 0 {
		o.writing = true
		queue := o.queue
		o.queue = nil
		if o.raw == nil {
			go o.drain(queue)
			return
		}
		o.mu.Unlock()
		rest, err := o.writeNow(queue)
		o.mu.Lock()
		if err == nil && len(rest) > 0 {
			go o.drain(rest)
			return
		}
		o.rest(err)
	}
}

// writeNow writes as much of queue as the socket takes, and returns what it did not.
func (o *Outbox) writeNow(queue []chunk) (rest []chunk, err error) {
	for i := range queue {
		c := &queue[i]
		whole := *c
		for len(c.b) > 0 {
			o.next, o.wrote, o.fault = c.b, 0, nil
			if err := o.raw.Write(o.attempt); err != nil {
				return nil, err
			}
			if o.fault != nil {
				return nil, o.fault
			}
			if o.wrote == 0 {
				return queue[i:], nil
			}
			o.written(c, o.wrote)
		}
		whole.recycle()
	}
	return nil, nil
}

// writeOnce is one write that does not wait: it always says that it is done.
func (o *Outbox) writeOnce(fd uintptr) bool {
	n, err := syscall.Write(int(fd), o.next)
	switch {
	case err == nil:
		o.wrote = n
	case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR):
		o.fault = err
	}
	return true
}

// drain writes queue, and what comes meanwhile, at the peer's pace.
func (o *Outbox) drain(queue []chunk) {
	for {
		for i := range queue {
			c := &queue[i]
			whole := *c
			n, err := o.conn.Write(c.b)
			o.written(c, n)
			if err != nil {
				o.mu.Lock()
				o.rest(err)
				o.mu.Unlock()
				return
			}
			whole.recycle()
		}
		o.mu.Lock()
		if queue = o.queue; len(queue) == 0 || o.err != nil {
			o.rest(nil)
			o.mu.Unlock()
			return
		}
		o.queue = nil
		o.mu.Unlock()
	}
}

func (o *Outbox) written(c *chunk, n int) {
	c.b = c.b[n:]
	if !c.shared {
		o.mu.Lock()
		o.bytes -= n
		o.mu.Unlock()
	}
}

func (c chunk) recycle() {
	if !c.shared && cap(c.b) == room {
		buffers.Put((*[room]byte)(c.b[:room]))
	}
}

// rest ends a turn of writing. Called with mu.
func (o *Outbox) rest(err error) {
	o.writing = false
	if err != nil {
		o.fail(err)
	}
	o.rested.Broadcast()
}

// fail closes the connection: its reader notices. Called with mu.
func (o *Outbox) fail(err error) {
	if o.err == nil {
		o.err = err
		o.queue = nil
		_ = o.conn.Close()
	}
}

// Waiting is how many bytes wait for the peer.
func (o *Outbox) Waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// Err is why the connection was closed, if it was the outbox that closed it.
func (o *Outbox) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Rest waits until nobody writes: all is written, or the connection is closed.
func (o *Outbox) Rest() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing {
		o.rested.Wait()
	}
}
