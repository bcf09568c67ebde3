// Package transport is how the bytes of many connections get in and out of a process: Outbox, whose callers
// never wait for the peer, and Loop, which reads many sockets from one goroutine.
package transport

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// ErrSlow is the end of a connection whose peer does not read what it asked for.
var ErrSlow = errors.New("the peer does not read: too much is waiting for it")

// Pipe is the way out of an Outbox.
type Pipe interface {
	// TryWrite writes what fits of bufs, one behind the other, without waiting for the peer.
	TryWrite(bufs [][]byte) (n int, err error)
	// Room sees to it that resume is called, once and not before Room has returned, when there is
	// room for more or the connection has ended.
	Room(resume func())
	// Close ends the connection. It is called with the outbox locked.
	Close() error
}

const (
	// ShareFrom is from where on bytes that several connections get are not copied for each.
	ShareFrom = 8 << 10
	// sharedLimit bounds what is shared and waits for one peer: others may long have theirs.
	sharedLimit = 1 << 30
	// room is the size of the buffers in which small frames are gathered.
	room = 4 << 10
	// full is from where on a buffer gets no more: one that grows is copied, and has room for more than it holds.
	full = 64 << 10
	// most is how many pieces go into one write.
	most = 16
)

var buffers = sync.Pool{New: func() any { return new([room]byte) }}

// chunk is some bytes to be written.
type chunk struct {
	b      []byte
	shared *Body // that b is of, if it is with other connections: not ours to use again, and not counted
}

// Outbox gathers frames for one connection and writes them, many at once if they come fast.
// Whoever calls Flush writes, as far as the pipe takes it at once; the rest is written when the pipe has room.
// It owns no goroutine.
type Outbox struct {
	// Drained, if not nil, is called once for a Hold that was true, when all is written or the
	// connection has ended. It is set before the first Append, and called with the outbox locked.
	Drained func()
	// Taken, if not nil, counts the bytes that the pipe takes. It is set before the first Append.
	Taken *atomic.Uint64
	// Budget, if not nil, bounds what waits in this outbox and in others. A peer for whom more waits than is left of it is too slow: so
	// something is always left for those that read. It is set before the first Append.
	Budget *Budget

	pipe Pipe

	mu      sync.Mutex // protects the fields below; not held while writing
	limit   int
	queue   []chunk // the last one is open for more if it is not shared
	bytes   int     // of chunks that are not shared and not written
	shared  int     // of those that are shared
	writing bool    // somebody writes, or waits for room: Flush leaves it to them
	held    bool    // somebody waits for Drained
	taken   uint64  // bytes, by the pipe
	err     error

	bufs [most][]byte // of whoever set writing
}

// NewOutbox returns the outbox of a connection. If there is more for a peer for whom more than limit
// bytes wait already, it is too slow, and the connection is closed. What is shared has a limit of its own.
func NewOutbox(p Pipe, limit int) *Outbox { return &Outbox{pipe: p, limit: limit} }

// Widen lets n bytes more wait, or with n below 0 fewer.
func (o *Outbox) Widen(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limit += n
}

// Append appends what f appends to its argument, and returns how many bytes wait now.
func (o *Outbox) Append(f func(b []byte) []byte) (waiting int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open() {
		o.grow(f)
	}
	return o.bytes
}

// AppendShared appends head, and body, which nobody may change any more: it may go to many connections.
func (o *Outbox) AppendShared(head []byte, body *Body) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.open():
	case len(body.Bytes) < ShareFrom:
		o.grow(func(b []byte) []byte { return append(append(b, head...), body.Bytes...) })
	default:
		o.grow(func(b []byte) []byte { return append(b, head...) })
		o.queue = append(o.queue, chunk{body.Bytes, body})
		o.shared += len(body.Bytes)
		body.hold(o.Budget)
	}
}

// open reports whether there may be more, and ends the connection if too much waits already: not
// if this makes it too much, so that one answer may be as large as it has to be.
func (o *Outbox) open() bool {
	if o.err == nil && (o.bytes > o.limit || o.shared > sharedLimit || !o.Budget.Fits(o.bytes+o.shared)) {
		o.fail(ErrSlow)
	}
	return o.err == nil
}

func (o *Outbox) grow(f func(b []byte) []byte) {
	if n := len(o.queue); n == 0 || o.queue[n-1].shared != nil || len(o.queue[n-1].b) >= full {
		o.queue = append(o.queue, chunk{b: buffers.Get().(*[room]byte)[:0]})
	}
	last := &o.queue[len(o.queue)-1]
	before := len(last.b)
	last.b = f(last.b)
	o.bytes += len(last.b) - before
	o.Budget.Take(len(last.b) - before)
}

// Flush writes what was appended, without waiting for the peer.
func (o *Outbox) Flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.writing && len(o.queue) > 0 {
		o.writing = true
		o.write()
	}
}

// resume goes on writing when there is room.
func (o *Outbox) resume() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.write()
}

// write writes until the queue is empty or the pipe full. Called with mu and writing; it unlocks meanwhile.
func (o *Outbox) write() {
	for len(o.queue) > 0 && o.err == nil {
		queue := o.queue
		o.queue = nil
		o.mu.Unlock()
		rest, freed, shared, err := o.writeAll(queue)
		o.mu.Lock()
		if o.err == nil { // otherwise nothing is counted any more
			o.bytes -= freed
			o.shared -= shared
			o.Budget.Take(-freed)
		}
		o.taken += uint64(freed + shared)
		if o.Taken != nil {
			o.Taken.Add(uint64(freed + shared))
		}
		if err != nil {
			o.fail(err)
		}
		if o.err != nil {
			release(rest)
			break
		}
		if len(rest) > 0 {
			o.queue = append(rest, o.queue...)
			o.pipe.Room(o.resume)
			return
		}
	}
	o.writing = false
	o.letGo()
}

// letGo tells who waits for it that nothing waits for the peer any more. Called with mu.
func (o *Outbox) letGo() {
	if o.held && o.Drained != nil {
		o.held = false
		o.Drained()
	}
}

// writeAll writes what the pipe takes of queue, and returns what it did not.
func (o *Outbox) writeAll(queue []chunk) (rest []chunk, freed, shared int, err error) {
	for len(queue) > 0 {
		bufs := o.bufs[:0]
		for _, c := range queue[:min(len(queue), most)] {
			bufs = append(bufs, c.b)
		}
		n, err := o.pipe.TryWrite(bufs)
		clear(bufs)
		if err != nil {
			return queue, freed, shared, err
		}
		if n == 0 {
			return queue, freed, shared, nil
		}
		var f int
		queue, f = written(queue, n)
		freed += f
		shared += n - f
	}
	return nil, freed, shared, nil
}

// written takes n bytes off queue, and says how many of them were not shared.
func written(queue []chunk, n int) (rest []chunk, freed int) {
	for len(queue) > 0 {
		c := &queue[0]
		k := min(n, len(c.b))
		n -= k
		if c.shared == nil {
			freed += k
		}
		if k < len(c.b) {
			c.b = c.b[k:]
			break
		}
		if c.shared != nil {
			c.shared.release()
		} else if cap(c.b) == room {
			buffers.Put((*[room]byte)(c.b[:room]))
		}
		queue = queue[1:]
	}
	return queue, freed
}

// release lets go of the shared bytes in queue.
func release(queue []chunk) {
	for _, c := range queue {
		if c.shared != nil {
			c.shared.release()
		}
	}
}

// fail closes the connection: its reader notices. Called with mu.
func (o *Outbox) fail(err error) {
	if o.err == nil {
		o.err = err
		release(o.queue)
		o.queue = nil
		o.Budget.Take(-o.bytes)
		o.bytes, o.shared = 0, 0
		_ = o.pipe.Close()
		o.letGo()
	}
}

// Discard forgets what waits: the connection has ended.
func (o *Outbox) Discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail(net.ErrClosed)
}

// Hold reports whether more than n bytes wait for the peer, after Flush. If so, Drained is called later.
func (o *Outbox) Hold(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = o.held || o.err == nil && o.bytes > n
	return o.err == nil && o.bytes > n
}

// Backlog is how many bytes wait for the peer, and how many it has taken so far.
func (o *Outbox) Backlog() (waiting int, taken uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes, o.taken
}

// Err is why the connection was closed, if it was the outbox that closed it.
func (o *Outbox) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
