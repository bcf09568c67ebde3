// Package transport moves the bytes of many connections in and out of a process: an Inbox, which keeps
// memory for incomplete messages only, an Outbox, whose callers never wait for the peer, and a Loop,
// which reads many sockets from one goroutine.
package transport

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// NoIOUring is the environment variable that, if it is not empty, keeps loops from using io_uring.
const NoIOUring = "MUSTER_NO_IO_URING"

// ErrSlow is the error of a connection whose peer does not read the replies to its requests.
var ErrSlow = errors.New("the peer does not read: too much is waiting for it")

// Pipe is the connection that an Outbox writes to.
type Pipe interface {
	// TryWrite writes as much of bufs, in order, as fits without waiting for the peer.
	TryWrite(bufs [][]byte) (n int, err error)
	// NotifyWritable calls resume once, after NotifyWritable has returned, when more can be written
	// or the connection has ended.
	NotifyWritable(resume func())
	// Close ends the connection. It is called with the outbox locked.
	Close() error
}

const (
	// ShareFrom is the size from which on a body for several connections is not copied for each.
	ShareFrom = 8 << 10
	// sharedLimit bounds the shared bytes that wait for one peer: other peers may have read theirs
	// long ago.
	sharedLimit = 1 << 30
	// maxBuffers is the number of buffers in one write.
	maxBuffers = 16
)

// Gate is the log of a durable store, as an Outbox sees it. Its methods are called with an outbox
// locked; it must not hold a lock of its own while it calls a method of an Outbox.
type Gate interface {
	// Committed returns the position up to which the log is committed. It never decreases.
	Committed() uint64
	// Await requests that pos is committed, and calls o.Flush from another goroutine after the next
	// commit, even if that is below pos. If pos is already committed, it only returns false.
	Await(o *Outbox, pos uint64) bool
	// AddHeld adds n, which may be negative, to the number of bytes that wait for the log.
	AddHeld(n int)
}

// mark is the position that frames wait for: those that end at the offset end, in the stream of all
// bytes that were ever held, or before it.
type mark struct{ end, pos uint64 }

// Outbox queues frames for one connection and writes them, several at once if they come fast. The
// caller of Flush writes as much as the pipe takes without waiting; the rest is written when the
// pipe is writable again. An Outbox owns no goroutine.
//
// With a Gate, a frame that shows the log up to a position is held until that position is
// committed, and so are all frames behind it. Frames keep their order, and no peer sees a state
// that a crash could undo.
type Outbox struct {
	// Drained, if not nil, is called once after Blocked has returned true, when all is written or
	// the connection has ended. It is set before the first Append, and called with the outbox
	// locked.
	Drained func()
	// SentCounter, if not nil, counts the bytes that the pipe has taken. It is set before the first
	// Append.
	SentCounter *atomic.Uint64
	// Budget, if not nil, bounds the bytes that wait in several outboxes together. A connection for
	// which more bytes wait than are left in the budget is closed (ErrSlow), so that something is
	// left for peers that read. It is set before the first Append.
	Budget *Budget
	// Gate, if not nil, decides which frames are held. It is set before the first Append.
	Gate Gate

	pipe Pipe

	mu            sync.Mutex // protects the fields below; not held while writing
	limit         int
	queue         chunks
	bytes         int    // unwritten bytes, held ones included, without shared ones
	shared        int    // unwritten shared bytes, held ones included
	writing       bool   // a goroutine writes, or waits until it can; Flush does not write then
	drainedWanted bool   // Drained must be called
	sent          uint64 // bytes that the pipe has taken
	err           error

	held                  chunks // frames that wait for the Gate; they follow those in queue
	marks                 []mark // of the frames in held; both fields increase
	heldBytes             int    // the part of bytes that is in held
	heldShared            int    // the part of shared that is in held
	heldTotal, movedTotal uint64 // total bytes ever appended to held, and moved from held to queue

	spare chunks // empty: an array for queue

	bufs  [maxBuffers][]byte // these two are owned by the goroutine that set writing
	taken chunks             // by take
}

// NewOutbox returns the outbox of a connection. If a frame is appended while more than limit bytes
// wait for the peer, the connection is closed (ErrSlow). Shared bytes have their own limit.
func NewOutbox(p Pipe, limit int) *Outbox {
	o := &Outbox{pipe: p, limit: limit}
	if s, ok := p.(*Sock); ok {
		s.outbox = o
	}
	return o
}

// Append appends a frame, which f appends to its argument, and returns how many bytes wait now. The
// frame shows nothing of a log: it is held only if a frame before it is.
func (o *Outbox) Append(f func(b []byte) []byte) (waiting int) { return o.AppendAt(0, f) }

// AppendAt is Append for a frame that shows the log up to the position pos.
func (o *Outbox) AppendAt(pos uint64, f func(b []byte) []byte) (waiting int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.admit() {
		o.grow(pos, f)
	}
	return o.bytes
}

// AppendUrgent is Append for a frame that overtakes all held frames.
func (o *Outbox) AppendUrgent(f func(b []byte) []byte) (waiting int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.admit() {
		n := o.queue.grow(f)
		o.bytes += n
		o.Budget.Take(n)
	}
	return o.bytes
}

// AppendShared appends a frame that consists of head and body, and shows the log up to pos. The
// body may be shared by many connections, and must no longer be modified.
func (o *Outbox) AppendShared(pos uint64, head []byte, body *Body) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.admit():
	case len(body.Bytes) < ShareFrom:
		o.grow(pos, func(b []byte) []byte { return append(append(b, head...), body.Bytes...) })
	default:
		o.grow(pos, func(b []byte) []byte { return append(b, head...) })
		n := len(body.Bytes)
		if len(o.marks) > 0 {
			o.held = append(o.held, chunk{b: body.Bytes, shared: body})
			o.heldShared += n
			o.heldTotal += uint64(n)
			o.marks[len(o.marks)-1].end = o.heldTotal
		} else {
			o.queue = append(o.queue, chunk{b: body.Bytes, shared: body})
		}
		o.shared += n
		body.retain(o.Budget)
	}
}

// AppendUncopied appends a frame that consists of head and body, and shows the log up to pos. It does
// not copy a large body, unless it is held; the body must no longer be modified. It returns how
// many bytes wait now.
func (o *Outbox) AppendUncopied(pos uint64, head, body []byte) (waiting int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch n := len(body); {
	case !o.admit():
	case n >= ShareFrom && !o.holds(pos):
		o.grow(pos, func(b []byte) []byte { return append(b, head...) })
		o.queue = append(o.queue, chunk{b: body, uncopied: true})
		o.bytes += n
		o.Budget.Take(n)
	default:
		o.grow(pos, func(b []byte) []byte { return append(append(b, head...), body...) })
	}
	return o.bytes
}

// holds reports whether a frame that shows the log up to pos is to be held. The caller holds mu.
func (o *Outbox) holds(pos uint64) bool {
	return len(o.marks) > 0 || o.Gate != nil && pos > o.Gate.Committed()
}

// admit reports whether a frame may be appended. If too much waits for the peer already, it ends
// the connection; the size of the new frame does not count, so that one reply may be as large as
// necessary. Held bytes do not count either, because they wait for the log and not for the peer. Nor
// does a full budget before the first write, for maxUnflushed: the next Flush may make room.
func (o *Outbox) admit() bool {
	mine, shared := o.bytes-o.heldBytes, o.shared-o.heldShared
	if o.err == nil && (mine > o.limit || shared > sharedLimit || mine+shared > o.unflushed() && !o.Budget.Fits(mine+shared)) {
		o.fail(ErrSlow)
	}
	return o.err == nil
}

// maxUnflushed is how much may wait for a Flush although the budget is full: the answers to small requests
// that arrived together.
const maxUnflushed = 64 << 10

// unflushed returns how much may wait for the peer although the budget is full.
func (o *Outbox) unflushed() int {
	if o.writing {
		return 0
	}
	return maxUnflushed
}

// grow appends a frame to held if pos is not committed or held is not empty, and to queue
// otherwise.
func (o *Outbox) grow(pos uint64, f func(b []byte) []byte) {
	var n int
	if last := len(o.marks) - 1; o.holds(pos) {
		n = o.held.grow(f)
		o.heldTotal += uint64(n)
		o.heldBytes += n
		o.Gate.AddHeld(n)
		if last < 0 || pos > o.marks[last].pos {
			o.marks = append(o.marks, mark{pos: pos})
		}
		o.marks[len(o.marks)-1].end = o.heldTotal
	} else {
		n = o.queue.grow(f)
	}
	o.bytes += n
	o.Budget.Take(n)
}

// Held returns the offset, for Release, at which the last frame ends that was ever held; 0 if there
// was none.
func (o *Outbox) Held() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heldTotal
}

// Release moves the held frames up to the offset end to the queue, although they are not committed.
func (o *Outbox) Release(end uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil && end > o.movedTotal {
		o.move(end)
		for len(o.marks) > 0 && o.marks[0].end <= end {
			o.marks = append(o.marks[:0], o.marks[1:]...)
		}
	}
}

// moveCommitted moves the committed frames from held to queue. The caller holds mu.
func (o *Outbox) moveCommitted() {
	committed, n := o.Gate.Committed(), 0
	for n < len(o.marks) && o.marks[n].pos <= committed {
		n++
	}
	if n > 0 {
		o.move(o.marks[n-1].end)
		o.marks = append(o.marks[:0], o.marks[n:]...)
	}
}

// move moves the held bytes up to the offset end to queue. Offsets are ends of frames, so a shared
// chunk, which is the end of a frame, is moved whole. The caller holds mu.
func (o *Outbox) move(end uint64) {
	for o.movedTotal < end {
		c := &o.held[0]
		k := min(int(end-o.movedTotal), len(c.b))
		part := *c
		if k < len(c.b) { // the rest stays in the same buffer: part must not grow into it
			part.b = c.b[:k:k]
		}
		o.queue = append(o.queue, part)
		if c.shared != nil {
			o.heldShared -= k
		} else {
			o.heldBytes -= k
			o.Gate.AddHeld(-k)
		}
		o.movedTotal += uint64(k)
		if c.b = c.b[k:]; len(c.b) == 0 {
			*c = chunk{} // the array of o.held must not keep its bytes alive
			o.held = o.held[1:]
		}
	}
}

// Flush writes the frames that are not held, without waiting for the peer.
func (o *Outbox) Flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.begin() {
		o.write()
	}
}

// begin sets writing and returns true if there is something to write, unless another goroutine
// writes. The caller holds mu.
func (o *Outbox) begin() bool {
	for len(o.marks) > 0 {
		if o.moveCommitted(); len(o.marks) > 0 && o.Gate.Await(o, o.marks[len(o.marks)-1].pos) {
			break
		}
	}
	if o.writing || len(o.queue) == 0 {
		return false
	}
	o.writing = true
	return true
}

// take is Flush for a caller that makes the write itself, of the bytes that take returns, and then
// calls took. It returns nil if there is nothing to write, or several pieces: Flush writes these.
func (o *Outbox) take() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) > 1 || !o.begin() {
		return nil
	}
	o.taken = o.takeQueue()
	return o.taken[0].b
}

// took ends a write of n of the bytes that take has returned, and writes the rest.
func (o *Outbox) took(n int, err error) {
	queue := o.taken
	o.taken = nil
	rest, freed := written(queue, n)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wrote(queue, rest, freed, n-freed, err)
	o.write()
}

// resume continues writing when the pipe is writable.
func (o *Outbox) resume() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.write()
}

// write writes until the queue is empty or the pipe takes no more. The caller holds mu, which write
// unlocks during I/O, and has set writing.
func (o *Outbox) write() {
	for len(o.queue) > 0 && o.err == nil {
		queue := o.takeQueue()
		o.mu.Unlock()
		rest, freed, shared, err := o.writeAll(queue)
		o.mu.Lock()
		if o.wrote(queue, rest, freed, shared, err); len(rest) > 0 && o.err == nil {
			o.pipe.NotifyWritable(o.resume)
			return
		}
	}
	o.writing = false
	if len(o.held) == 0 {
		o.notifyDrained()
	}
}

// takeQueue returns the queue, and leaves an empty one. The caller holds mu.
func (o *Outbox) takeQueue() (queue chunks) {
	queue, o.queue, o.spare = o.queue, o.spare, nil
	return queue
}

// wrote counts what was written of queue, and puts the rest back in front. The caller holds mu.
func (o *Outbox) wrote(queue, rest chunks, freed, shared int, err error) {
	if o.err == nil { // otherwise fail has reset the counts
		o.bytes -= freed
		o.shared -= shared
		o.Budget.Take(-freed)
	}
	o.sent += uint64(freed + shared)
	if o.SentCounter != nil {
		o.SentCounter.Add(uint64(freed + shared))
	}
	if err != nil {
		o.fail(err)
	}
	switch {
	case o.err != nil:
		releaseShared(rest)
	case len(rest) > 0:
		o.queue = append(rest, o.queue...)
	case cap(queue) <= maxBuffers: // the array is used again, and must not keep the bytes alive
		clear(queue)
		o.spare = queue[:0]
	}
}

// notifyDrained calls Drained if Blocked has returned true since the last call. The caller holds
// mu.
func (o *Outbox) notifyDrained() {
	if o.drainedWanted && o.Drained != nil {
		o.drainedWanted = false
		o.Drained()
	}
}

// writeAll writes what the pipe takes of queue, and returns the rest.
func (o *Outbox) writeAll(queue chunks) (rest chunks, freed, shared int, err error) {
	for len(queue) > 0 {
		bufs := o.bufs[:0]
		for _, c := range queue[:min(len(queue), maxBuffers)] {
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

// fail closes the connection, which its reader notices. The caller holds mu.
func (o *Outbox) fail(err error) {
	if o.err == nil {
		o.err = err
		releaseShared(o.queue)
		releaseShared(o.held)
		o.Budget.Take(-o.bytes)
		if o.heldBytes > 0 {
			o.Gate.AddHeld(-o.heldBytes)
		}
		o.queue, o.held, o.marks = nil, nil, nil
		o.bytes, o.shared, o.heldBytes, o.heldShared = 0, 0, 0, 0
		_ = o.pipe.Close()
		o.notifyDrained()
	}
}

// Discard drops what waits, after the connection has ended.
func (o *Outbox) Discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail(net.ErrClosed)
}

// Blocked reports whether more than n bytes wait for the peer or the log after a Flush. If so,
// Drained is called later.
func (o *Outbox) Blocked(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drainedWanted = o.drainedWanted || o.err == nil && o.bytes > n
	return o.err == nil && o.bytes > n
}

// Backlog returns how many bytes wait for the peer, without held ones, and how many have been sent
// so far.
func (o *Outbox) Backlog() (waiting int, taken uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes - o.heldBytes, o.sent
}

// Waiting returns how many bytes wait for the peer or the log.
func (o *Outbox) Waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// Err returns the error with which the outbox has closed the connection, or nil.
func (o *Outbox) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
