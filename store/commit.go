package store

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/wire"
)

// No answer of a durable store leaves before everything that it shows is on the disk: not those of reads either. Answers are put
// here, and are given out behind the next sync: whatever comes meanwhile shares the sync after that. Two do not wait for a
// disk that stalls: that to OpStatus, which says so, and after slowDisk a welcome, which a client needs before it can ask for a status.

// parcel is some answers that wait for the log.
type parcel struct {
	pos    uint64
	to     *conn // that staged is for
	staged []byte
	remote []letter
	local  []*call
	greet  *greeting
}

// slowDisk is how long a welcome waits for the disk. A session that the disk does not have when the server is killed is lost, and its
// changes that are under way end in ErrUnknown, as they do when a session is not resumed in time.
const slowDisk = 500 * time.Millisecond

// greeting is a welcome, which is given once: when it is on the disk, or when that takes too long.
type greeting struct {
	to    *conn
	bytes []byte
	once  sync.Once
	timer *time.Timer // of the owner of the parcel
}

func newGreeting(to *conn, bytes []byte) *greeting {
	g := &greeting{to: to, bytes: bytes}
	g.timer = time.AfterFunc(slowDisk, g.give)
	if to.commit.disk.Shared() { // by another process, which this one's peers are to find
		g.timer.Stop()
	}
	return g
}

func (g *greeting) give() {
	g.once.Do(func() {
		g.to.out.Append(func(b []byte) []byte { return append(b, g.bytes...) })
		g.to.greeted.Store(true)
		g.to.out.Flush()
	})
}

// committer gives parcels out. It owns two goroutines, until close: one waits for the disk, and begins to do so again while the other one
// gives out what is on it.
type committer struct {
	disk   *durable.Disk
	failed func(error)
	synced chan []parcel
	done   chan struct{} // closed when all is given out

	waiting atomic.Int32 // goroutines that wait for the disk

	mu      sync.Mutex // protects the fields below
	wake    sync.Cond  // there are parcels, or room, or the end
	parcels []parcel
	bytes   int
	under   int      // parcels that have been taken, and are not given out yet
	held    []func() // of connections that are held until there is room
	closed  bool
	err     error // of the disk: nothing is given out any more
}

// mostStaged is how many bytes of events and of answers wait for the disk before requests wait too, but for OpStatus.
const mostStaged = 64 << 20

func newCommitter(d *durable.Disk, failed func(error)) *committer {
	c := &committer{disk: d, failed: failed, synced: make(chan []parcel, 1), done: make(chan struct{})}
	c.wake.L = &c.mu
	go c.bring()
	go c.give()
	return c
}

// put takes a parcel, or gives it out at once if nothing is before it and all that it shows is durable.
func (c *committer) put(p parcel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		p.fail(c.err)
		return
	}
	if c.under+len(c.parcels) == 0 && c.disk.Settled(p.pos) && len(p.remote)+len(p.local) == 0 {
		p.give()
		return
	}
	c.parcels = append(c.parcels, p)
	c.bytes += len(p.staged)
	c.wake.Broadcast()
}

// crowded reports whether so much waits for the disk that requests have to.
func (c *committer) crowded() bool {
	unsynced := c.disk.Unsynced()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.full(unsynced)
}

func (c *committer) full(unsynced int64) bool {
	return int64(c.bytes)+unsynced > mostStaged && c.err == nil && !c.closed
}

// hold has resume called when the disk has done something, if it is crowded, and reports whether it is.
func (c *committer) hold(resume func()) bool {
	unsynced := c.disk.Unsynced()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.full(unsynced) {
		return false
	}
	c.held = append(c.held, resume)
	if c.under+len(c.parcels) == 0 { // no other call syncs
		c.parcels = append(c.parcels, parcel{pos: math.MaxUint64})
		c.wake.Broadcast()
	}
	return true
}

// resume lets go on who is held.
func (c *committer) resume() {
	c.mu.Lock()
	held := c.held
	c.held = nil
	c.mu.Unlock()
	for _, f := range held {
		f()
	}
}

// sync waits until what the log has up to pos is on the disk.
func (c *committer) sync(pos uint64) error {
	if c.disk.Settled(pos) {
		return nil
	}
	err := c.toDisk(pos)
	if err != nil {
		c.end()
	}
	return err
}

// end has the committer find out that the disk has failed, and end the store.
func (c *committer) end() { c.put(parcel{pos: math.MaxUint64}) }

func (c *committer) toDisk(pos uint64) error {
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	return c.disk.Sync(pos)
}

// bring brings to the disk what answers wait for.
func (c *committer) bring() {
	defer close(c.synced)
	for ps := c.take(); ps != nil; ps = c.take() {
		last := ps[0].pos
		for i := range ps {
			last = max(last, ps[i].pos)
		}
		if err := c.toDisk(last); err != nil {
			c.fail(err, ps)
			return
		}
		c.synced <- ps
		c.resume()
	}
}

// take waits for parcels, and takes all; nil is the end.
func (c *committer) take() (ps []parcel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.parcels) == 0 && !c.closed {
		c.wake.Wait()
	}
	ps, c.parcels, c.bytes = c.parcels, nil, 0
	c.under += len(ps)
	c.wake.Broadcast()
	return ps
}

// give gives out what is on the disk.
func (c *committer) give() {
	defer close(c.done)
	for ps := range c.synced {
		for i := range ps {
			if ps[i].give(); ps[i].to != nil {
				ps[i].to.out.Flush()
			}
		}
		c.mu.Lock()
		c.under -= len(ps)
		c.mu.Unlock()
	}
}

// fail is the end: nobody is told what may not be on the disk.
func (c *committer) fail(err error, ps []parcel) {
	c.mu.Lock()
	c.err = &Error{Op: "commit", Code: wire.CodeUnavailable, Err: ErrUnavailable, Detail: err.Error()}
	ps = append(ps, c.parcels...)
	c.parcels, c.bytes = nil, 0
	c.wake.Broadcast()
	c.mu.Unlock()
	for i := range ps {
		ps[i].fail(c.err)
	}
	c.resume()
	c.failed(c.err)
}

// fail ends the calls of this process; those of others end with their connections.
func (p *parcel) fail(err error) {
	if p.greet != nil {
		p.greet.timer.Stop()
	}
	for _, c := range p.local {
		c.err = err
		close(c.done)
	}
}

// close gives out what there is, and ends.
func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.wake.Broadcast()
	c.mu.Unlock()
	c.resume()
	<-c.done
}

// give gives the answers out: to those in this process last.
func (p *parcel) give() {
	if p.greet != nil {
		p.greet.timer.Stop()
		p.greet.give()
		p.to.parcels.Add(-1)
	}
	if len(p.staged) > 0 {
		p.to.out.Append(func(b []byte) []byte { return append(b, p.staged...) })
		p.to.parcels.Add(-1)
		staged := p.staged
		stages.Put(&staged)
	}
	if len(p.remote) > 0 {
		post(p.remote)
	}
	for _, c := range p.local {
		close(c.done)
	}
}

var stages = sync.Pool{New: func() any { return new([]byte) }}
