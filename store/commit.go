package store

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// Group commit. No reply of a durable store leaves before everything that it shows is durable; that
// holds for reads, too. Each reply carries the log position that it shows. Its Outbox holds it until
// the committer has committed that position, and calls in this process wait for theirs in the same
// way. All requests that arrive during one write of the log share the next one.
//
// Three replies do not wait for a disk that stalls: the reply to OpStatus, which reports the stall,
// that to a request about liveness, and, after slowDisk, the reply to a hello, which a client needs
// before it can send OpStatus.

// slowDisk is how long the reply to a hello waits for the disk. If the server is killed before the
// session is durable, the session cannot be resumed, and its changes in flight end in ErrUnknown.
const slowDisk = 500 * time.Millisecond

// maxUnsynced is how many events without a waiting reply may be in memory only.
const maxUnsynced = 4096

// maxUncommitted is how many bytes of events and replies may wait for the log. Above it, no request
// is read except OpStatus and those about liveness.
const maxUncommitted = 64 << 20

// committer writes the log of a durable store. It is the Gate of the outboxes of all its connections.
// It owns two goroutines, which close ends: one writes the log, the other flushes the outboxes that
// the last write has released, so that the next write can begin meanwhile.
//
// The position of a reply is that of the last log record that it shows. A log that another process
// may take over (durable.Disk.Shared) requires more: a reply may leave only after this process was
// confirmed as the leader by a write that began after the request arrived. Its position is the number
// of that write.
type committer struct {
	disk   *durable.Disk
	failed func(error)
	done   chan struct{} // closed when both goroutines have ended

	begun     atomic.Uint64 // number of writes that have begun, of a shared log
	committed atomic.Uint64 // position
	held      atomic.Int64  // bytes in all outboxes that wait for the log, without shared bodies

	releasing sync.Mutex // held during release, so that calls end after all outboxes are flushed

	mu       sync.Mutex                     // protects the fields below
	wake     sync.Cond                      // signals a change of wanted, paused or closed
	wanted   uint64                         // the highest position that a reply or a call waits for
	outboxes map[*transport.Outbox]struct{} // to be flushed after the next write
	calls    []*waiter
	released uint64   // the position up to which release has flushed all outboxes
	paused   []func() // resume reading from a connection, after the next write
	resumed  []func() // those whose write is done, for release
	closed   bool
	err      error // if not nil, nothing more is released
}

// waiter is a call in this process whose reply waits for a position.
type waiter struct {
	pos uint64
	end func(error)
}

func newCommitter(d *durable.Disk, failed func(error)) *committer {
	c := &committer{disk: d, failed: failed, done: make(chan struct{}), outboxes: map[*transport.Outbox]struct{}{}}
	c.wake.L = &c.mu
	if !d.Shared() {
		c.committed.Store(d.Durable())
		c.released = d.Durable()
	}
	progress := make(chan struct{}, 1)
	go func() {
		defer close(progress)
		c.write(progress)
	}()
	go func() {
		defer close(c.done)
		for range progress {
			c.release()
		}
		c.release()
	}()
	return c
}

// position returns the position of a reply that shows the log up to pos. The caller has appended all
// records up to pos.
func (c *committer) position(pos uint64) uint64 {
	if c.disk.Shared() {
		return c.begun.Load() + 1
	}
	return pos
}

// Committed implements transport.Gate.
func (c *committer) Committed() uint64 { return c.committed.Load() }

// AddHeld implements transport.Gate.
func (c *committer) AddHeld(n int) { c.held.Add(int64(n)) }

// Await implements transport.Gate.
func (c *committer) Await(o *transport.Outbox, pos uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pos <= c.Committed() { // committed after the caller looked: no later release would flush o
		return false
	}
	c.outboxes[o] = struct{}{}
	c.request(pos)
	return true
}

// request requests a write of the log up to pos. The caller holds mu.
func (c *committer) request(pos uint64) {
	if pos > c.wanted {
		c.wanted = pos
		c.wake.Broadcast()
	}
}

// onReleased calls w.end once: with nil after w.pos is committed and all outboxes were flushed up to
// it, or with the error that prevents that. It may call it before it returns.
func (c *committer) onReleased(w *waiter) {
	c.mu.Lock()
	if w.pos > c.released && c.err == nil {
		c.calls = append(c.calls, w)
		c.request(w.pos)
		c.mu.Unlock()
		return
	}
	err := c.err
	if w.pos <= c.Committed() {
		err = nil
	}
	c.mu.Unlock()
	w.end(err)
}

// await waits until pos is committed, or ctx ends.
func (c *committer) await(ctx context.Context, pos uint64) error {
	if pos <= c.Committed() {
		return nil
	}
	ended := make(chan error, 1)
	w := &waiter{pos, func(err error) { ended <- err }}
	c.onReleased(w)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		c.calls = slices.DeleteFunc(c.calls, func(other *waiter) bool { return other == w })
		return ctx.Err()
	}
}

// requestWrite requests a write of the log up to pos that no reply waits for.
func (c *committer) requestWrite(pos uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.request(pos)
}

// overloaded reports whether so much waits for the log that no more requests are to be read. A nil c,
// of a store without a log, never is.
func (c *committer) overloaded() bool {
	return c != nil && c.held.Load()+c.disk.Unsynced() > maxUncommitted
}

// resumeLater calls resume after the next write of the log, if c is overloaded, and reports whether
// it is.
func (c *committer) resumeLater(resume func()) bool {
	if !c.overloaded() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.closed {
		return false
	}
	c.paused = append(c.paused, resume)
	c.wake.Broadcast()
	return true
}

// write writes the log whenever a reply or a connection waits for it, until close.
func (c *committer) write(progress chan<- struct{}) {
	for {
		c.mu.Lock()
		for c.wanted <= c.Committed() && len(c.paused) == 0 && !c.closed {
			c.wake.Wait()
		}
		wanted, end := c.wanted, c.wanted <= c.Committed() && len(c.paused) == 0
		switch {
		case end:
			c.err = ErrClosed
		case len(c.paused) > 0:
			wanted = math.MaxUint64
		}
		c.mu.Unlock()
		if end {
			return
		}
		if err := c.writeOnce(wanted); err != nil {
			c.fail(err)
			return
		}
		if c.wrote() {
			c.release()
			continue
		}
		signal(progress) // if there is a token, the release before has not begun, and includes this one
	}
}

// wrote records that the log was written, and reports whether no other write was requested.
func (c *committer) wrote() (idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resumed = append(c.resumed, c.paused...)
	c.paused = nil
	return c.wanted <= c.Committed()
}

// writeOnce writes the log once.
func (c *committer) writeOnce(wanted uint64) error {
	if c.disk.Shared() {
		n := c.begun.Add(1)
		err := c.disk.Sync(0) // all that has been appended
		if err == nil {
			c.committed.Store(n)
		}
		return err
	}
	err := c.disk.Sync(wanted)
	if err == nil {
		c.committed.Store(c.disk.Durable())
	}
	return err
}

// release flushes the outboxes that wait for the log: one that holds more calls Await again. Then it
// ends the calls in this process whose position is committed, and resumes reading from connections.
// Calls end last, because the process may exit when its own call returns.
func (c *committer) release() {
	c.releasing.Lock()
	defer c.releasing.Unlock()
	c.mu.Lock()
	outboxes, committed := slices.Collect(maps.Keys(c.outboxes)), c.Committed()
	clear(c.outboxes)
	c.mu.Unlock()
	transport.InParallel(len(outboxes), func(from, to int) {
		for _, o := range outboxes[from:to] {
			o.Flush()
		}
	})
	c.mu.Lock()
	c.released = committed
	var ended []*waiter
	c.calls = slices.DeleteFunc(c.calls, func(w *waiter) bool {
		if w.pos <= committed {
			ended = append(ended, w)
		}
		return w.pos <= committed
	})
	resumed := c.resumed
	c.resumed = nil
	c.mu.Unlock()
	for _, w := range ended {
		w.end(nil)
	}
	for _, resume := range resumed {
		resume()
	}
}

// fail ends the committer after a failed write: no reply that the log may not contain is released.
// failed closes the connections.
func (c *committer) fail(err error) {
	c.release() // what was committed before
	c.mu.Lock()
	c.err = &Error{Op: "commit", Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", ErrUnavailable, err), Reason: wire.ReasonDisk}
	calls, paused := c.calls, c.paused
	c.calls, c.paused = nil, nil
	c.mu.Unlock()
	c.failed(c.err)
	for _, w := range calls {
		w.end(c.err)
	}
	for _, resume := range paused {
		resume()
	}
}

// checkFailure requests a write that fails if the log has failed, which ends the store.
func (c *committer) checkFailure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = append(c.paused, func() {})
	c.wake.Broadcast()
}

// close writes and releases what was requested, and ends both goroutines.
func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.wake.Broadcast()
	c.mu.Unlock()
	<-c.done
}
