// Package transport is how the bytes of many connections get in and out of a process: Outbox, whose callers
// never wait for the peer, and Loop, which reads many sockets from one goroutine.
package transport

import (
	"errors"
	"sync"
)

// ErrSlow is the end of a connection whose peer does not read what it asked for.
var ErrSlow = errors.New("the peer does not read: too much is waiting for it")

// Pipe is the way out of an Outbox.
type Pipe interface {
	// TryWrite writes what fits without waiting for the peer.
	TryWrite(b []byte) (n int, err error)
	// Room sees to it that resume is called, once and not before Room has returned, when there is
	// room for more or the connection has ended.
	Room(resume func())
	// Close ends the connection. It is called with the outbox locked.
	Close() error
}

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
	shared bool // with other connections: not ours to use again, and not counted
}

// Outbox gathers frames for one connection and writes them, many at once if they come fast.
// Whoever calls Flush writes, as far as the pipe takes it at once; the rest is written when the pipe has room.
// It owns no goroutine.
type Outbox struct {
	// Drained, if not nil, is called when what had to wait for the peer is written, or the connection has
	// ended. It is set before the first Append, and called with the outbox locked.
	Drained func()

	pipe  Pipe
	limit int

	mu      sync.Mutex // protects the fields below; not held while writing
	queue   []chunk    // the last one is open for more if it is not shared
	bytes   int        // of chunks that are not shared and not written
	writing bool       // somebody writes, or waits for room: Flush leaves it to them
	err     error
}

// NewOutbox returns the outbox of a connection. When more than limit bytes wait for the peer, it is
// too slow, and the connection is closed.
func NewOutbox(p Pipe, limit int) *Outbox { return &Outbox{pipe: p, limit: limit} }

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
	if !o.writing && len(o.queue) > 0 {
		o.writing = true
		o.write()
	}
}

// resume goes on writing when there is room.
func (o *Outbox) resume() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.write(); !o.writing && o.Drained != nil {
		o.Drained()
	}
}

// write writes until the queue is empty or the pipe full. Called with mu and writing; it unlocks meanwhile.
func (o *Outbox) write() {
	for len(o.queue) > 0 && o.err == nil {
		queue := o.queue
		o.queue = nil
		o.mu.Unlock()
		rest, freed, err := o.writeAll(queue)
		o.mu.Lock()
		o.bytes -= freed
		if err != nil {
			o.fail(err)
			break
		}
		if len(rest) > 0 {
			o.queue = append(rest, o.queue...)
			o.pipe.Room(o.resume)
			return
		}
	}
	o.writing = false
}

// writeAll writes what the pipe takes of queue, and returns what it did not.
func (o *Outbox) writeAll(queue []chunk) (rest []chunk, freed int, err error) {
	for i := range queue {
		c := &queue[i]
		whole := c.b
		for len(c.b) > 0 {
			n, err := o.pipe.TryWrite(c.b)
			if err != nil {
				return nil, freed, err
			}
			if n == 0 {
				return queue[i:], freed, nil
			}
			c.b = c.b[n:]
			if !c.shared {
				freed += n
			}
		}
		if !c.shared && cap(whole) == room {
			buffers.Put((*[room]byte)(whole[:room]))
		}
	}
	return nil, freed, nil
}

// fail closes the connection: its reader notices. Called with mu.
func (o *Outbox) fail(err error) {
	if o.err == nil {
		o.err = err
		o.queue = nil
		_ = o.pipe.Close()
		if o.Drained != nil {
			o.Drained()
		}
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
