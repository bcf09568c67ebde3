package store

import (
	"sync"
	"sync/atomic"

	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/wire"
)

// No answer of a durable store leaves before everything that it shows is on the disk: not those of reads either. Answers are put
// here in the order of the log, and are given out behind the next sync: whatever comes meanwhile shares the sync after that.

// parcel is some answers that wait for the log.
type parcel struct {
	pos    uint64
	to     *conn // that staged is for
	staged []byte
	remote []letter
	local  []*call
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
	under   int // parcels that have been taken, and are not given out yet
	closed  bool
	err     error // of the disk: nothing is given out any more
}

// mostStaged is how many bytes of answers wait for the disk before no more requests are carried out.
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
	if c.under+len(c.parcels) == 0 && p.pos <= c.disk.Durable() && len(p.remote)+len(p.local) == 0 {
		p.give()
		return
	}
	c.parcels = append(c.parcels, p)
	c.bytes += len(p.staged)
	c.wake.Broadcast()
}

// room waits until fewer bytes wait for the disk.
func (c *committer) room() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.bytes > mostStaged && c.err == nil && !c.closed {
		c.wake.Wait()
	}
}

// sync waits until what the log has up to pos is on the disk.
func (c *committer) sync(pos uint64) error {
	if pos <= c.disk.Durable() {
		return nil
	}
	err := c.toDisk(pos)
	if err != nil {
		c.put(parcel{pos: pos}) // finds out too, and ends the store
	}
	return err
}

func (c *committer) toDisk(pos uint64) error {
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	return c.disk.Sync(pos)
}

// bring brings to the disk what answers wait for.
func (c *committer) bring() {
	defer close(c.synced)
	for ps := c.take(); ps != nil; ps = c.take() {
		if err := c.toDisk(ps[len(ps)-1].pos); err != nil {
			c.fail(err, ps)
			return
		}
		c.synced <- ps
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
	c.failed(c.err)
}

// fail ends the calls of this process; those of others end with their connections.
func (p *parcel) fail(err error) {
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
	<-c.done
}

// give gives the answers out: to those in this process last.
func (p *parcel) give() {
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
