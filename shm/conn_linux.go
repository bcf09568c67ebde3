package shm

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// fullQueue is how many notices wait to be sent before Lend adds no more. Each that has a segment keeps a descriptor open.
	fullQueue = 256

	// lastWords is how long Close waits for a peer that does not read.
	lastWords = 100 * time.Millisecond
)

// Conn passes segments to one peer over one unix socket, each descriptor once. Both sides may lend and map. It is safe for
// concurrent use.
//
// It owns the socket and two goroutines, one that reads and one that writes, which end with Close or with the peer; and a mapping of
// each segment that the peer has sent, until Close: a Conn that has ended has to be closed too.
type Conn struct {
	sock  *net.UnixConn
	done  chan struct{}
	quit  chan struct{} // closed by Close
	wake  chan struct{} // for the writer: there is something
	wrote chan struct{} // closed when the writer has ended
	once  sync.Once

	mu      sync.Mutex    // protects what follows; before that of an arena
	changed chan struct{} // closed when what somebody waits for may have come; nil if nobody waits
	err     error         // why it has ended, before done is closed
	broken  error         // why the writer has ended
	closing bool

	// What is lent to the peer.
	sent  map[key]*sent
	loans map[Ref]loan // after the end: what was never returned
	out   int          // how many loans that is
	queue []notice

	// What the peer has lent.
	maps     map[key]*mapping
	mappings int   // also those that only Blocks use any more
	mapped   int64 // bytes of them
	open     int   // Blocks, and returns that are in no frame yet
	returns  []Ref
}

// NewConn makes a Conn of c, a stream socket ("unix"), on which nothing else may be sent or read any more. Close, or the end of the peer,
// ends its goroutines; Close is due in any case. If c is something else, the Conn has ended, and Err says so.
func NewConn(c *net.UnixConn) *Conn {
	conn := &Conn{
		sock: c, done: make(chan struct{}), quit: make(chan struct{}), wake: make(chan struct{}, 1), wrote: make(chan struct{}),
		sent: map[key]*sent{}, loans: map[Ref]loan{}, maps: map[key]*mapping{},
	}
	go conn.write()
	go conn.read()
	return conn
}

// Lend lets the peer map what refs name of a, each once: a ref that is lent twice can be mapped twice. It is the caller who tells the
// peer of the refs, once for each loan, after Lend; all that Lend sends is the segments that the peer does not have. These are in
// the socket when it returns: what the peer is told of it can map, also if this process is killed before. So Lend waits for
// nobody, unless there are such and the socket is full. A ref counts as lent until the peer has released it, and is not
// reused before, also if it is freed. Lend is all or nothing.
func (c *Conn) Lend(ctx context.Context, a *Arena, refs ...Ref) error {
	if len(refs) == 0 {
		return nil
	}
	if err := c.await(ctx, func() (bool, error) { return c.lend(a, refs) }); err != nil {
		return fmt.Errorf("shm: lend %d refs: %w", len(refs), err)
	}
	return nil
}

// post gives the writer something to send. mu is held.
func (c *Conn) post(n notice) {
	c.queue = append(c.queue, n)
	c.nudge()
}

func (c *Conn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Map gives what the peer has lent, a Block for each ref, of which the peer must have told the caller: once for each Block. (Memory that
// was not lent may change while it is read, and its Release is a fault that ends the Conn.) It waits until the segments of all refs
// have arrived, and takes none before. A ref that is not within its segment is an error at once.
//
// What has arrived can be mapped until Close, also after the end of the Conn or of the peer: the memory lives on in this process. If it
// cannot be read, which is an error, it is returned to the peer.
func (c *Conn) Map(ctx context.Context, refs ...Ref) ([]*Block, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	var blocks []*Block
	var refused error
	err := c.await(ctx, func() (bool, error) {
		blocks, refused = c.accept(refs)
		return blocks != nil, refused
	})
	switch {
	case refused != nil:
		return nil, fmt.Errorf("shm: map %d refs: %w", len(refs), refused)
	case err != nil:
		return nil, fmt.Errorf("shm: map %d refs%s: %w", len(refs), c.wanting(refs), err)
	}
	for i, b := range blocks {
		if err := b.m.prefault(refs[i]); err != nil {
			for _, b := range blocks {
				b.Release()
			}
			return nil, fmt.Errorf("shm: map %+v: %w", refs[i], err)
		}
	}
	return blocks, nil
}

// accept makes Blocks of refs; nil if a segment is missing. mu is held.
func (c *Conn) accept(refs []Ref) ([]*Block, error) {
	switch {
	case c.closing:
		return nil, ErrClosed
	case c.open+len(refs) > mostLoans:
		return nil, fmt.Errorf("%d Blocks are not released, or the peer does not read that they are, and %d is the most", c.open, mostLoans)
	}
	for _, r := range refs {
		if err := c.maps[r.key()].check(r); err != nil {
			return nil, err
		}
	}
	if c.missing(refs) >= 0 {
		return nil, nil
	}
	made, blocks := make([]Block, len(refs)), make([]*Block, len(refs))
	for i, r := range refs {
		m := c.maps[r.key()]
		m.uses++
		made[i] = Block{Data: m.slice(r), conn: c, m: m, ref: r}
		blocks[i] = &made[i]
	}
	c.open += len(refs)
	return blocks, nil
}

// missing is the index of the first of refs whose segment is not there; -1 if there is none. mu is held.
func (c *Conn) missing(refs []Ref) int {
	return slices.IndexFunc(refs, func(r Ref) bool { return c.maps[r.key()] == nil })
}

// wanting says which of refs Map has waited for.
func (c *Conn) wanting(refs []Ref) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.missing(refs); i >= 0 {
		return fmt.Sprintf(", of which the peer has not sent the segment of %+v", refs[i])
	}
	return ""
}

// Returned waits until the peer has released all that was lent of refs over this Conn: then it can be reused, or written to. A ref counts
// as it was lent: one for half of it is another ref. It is an error if the Conn ends before.
func (c *Conn) Returned(ctx context.Context, refs ...Ref) error {
	out := 0 // are not returned
	err := c.await(ctx, func() (bool, error) {
		out = 0
		for _, r := range refs {
			if c.loans[r].n > 0 {
				out++
			}
		}
		return out == 0, nil
	})
	if err != nil {
		return fmt.Errorf("shm: the peer has not returned %d of %d refs: %w", out, len(refs), err)
	}
	return nil
}

// await waits until try, which is called with mu held, is true or an error. It is an error if the Conn or ctx ends before.
func (c *Conn) await(ctx context.Context, try func() (bool, error)) error {
	for {
		c.mu.Lock()
		ok, err := try()
		if !ok && err == nil && (c.closing || c.err != nil) {
			err = c.why()
		}
		if ok || err != nil {
			c.mu.Unlock()
			return err
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-c.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// change wakes those who wait. mu is held.
func (c *Conn) change() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// why is why the Conn has ended, or is about to. mu is held.
func (c *Conn) why() error {
	if c.err != nil {
		return c.err
	}
	return ErrClosed
}

// Done is closed when the Conn has ended, and all that was lent over it is settled.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the Conn has ended: ErrClosed after Close, an io.EOF in it where the peer has ended; nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the Conn, waits for its goroutines, and ends its mappings. What was released before still reaches the peer, if it reads
// within a tenth of a second. Blocks stay what they are until Release; what was lent and not returned is lost to its arena. It may be
// called twice, and always returns nil.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.mu.Lock()
		c.closing = true
		c.change()
		c.mu.Unlock()
		_ = c.sock.SetWriteDeadline(time.Now().Add(lastWords))
		close(c.quit)
	})
	<-c.wrote
	_ = c.sock.Close()
	<-c.done
	c.mu.Lock()
	var dead []*mapping
	for _, m := range c.maps {
		dead = append(dead, c.unuse(m)...)
	}
	c.maps = nil
	c.mu.Unlock()
	unmap(dead)
	return nil
}

// Block is memory of the peer, mapped read-only: writing to Data is a fault that ends the process. It stays readable until Release, also
// after the end of the Conn or of the peer. A Block that is never released keeps the segment of the peer in memory.
type Block struct {
	Data []byte

	conn *Conn
	m    *mapping // nil after Release
	ref  Ref
}

// Release gives the bytes back to the peer, who may overwrite them at once: nobody may read what Data was any more, and it is nil
// afterwards. Release does not wait: the Conn's writer tells the peer, and a peer that does not read keeps nobody waiting. It may be
// called twice, and after the Conn's end.
func (b *Block) Release() {
	if b == nil || b.conn == nil {
		return
	}
	c := b.conn
	c.mu.Lock()
	m := b.m
	if m == nil {
		c.mu.Unlock()
		return
	}
	b.m, b.Data = nil, nil
	if c.err == nil {
		c.returns = append(c.returns, b.ref)
		c.nudge()
	} else {
		c.open--
	}
	dead := c.unuse(m)
	c.mu.Unlock()
	unmap(dead)
}

// unuse ends one use of m, and gives it back if that was the last. mu is held, and is not when it is unmapped.
func (c *Conn) unuse(m *mapping) []*mapping {
	if m.uses--; m.uses > 0 {
		return nil
	}
	c.mappings--
	c.mapped -= int64(len(m.mem))
	return []*mapping{m}
}
