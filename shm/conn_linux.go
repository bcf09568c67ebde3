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
	// fullQueue is how many notices wait to be sent before Share adds no more. Each that has a
	// segment keeps a descriptor open.
	fullQueue = 256

	// closeTimeout is how long Close waits for a peer that does not read.
	closeTimeout = 100 * time.Millisecond
)

// Conn passes segments to one peer over one unix socket, each descriptor once. Both sides may share
// and map. It is safe for concurrent use.
//
// It owns the socket and two goroutines, one that reads and one that writes, which end with Close
// or with the peer; and a mapping of each segment that the peer has sent, until Close: a Conn that
// has ended must be closed too.
type Conn struct {
	sock  *net.UnixConn
	done  chan struct{}
	quit  chan struct{} // closed by Close
	wake  chan struct{} // for the writer: there is something to send
	wrote chan struct{} // closed when the writer has ended
	once  sync.Once

	mu      sync.Mutex    // protects the fields below; acquired before that of an arena
	changed chan struct{} // closed when what a goroutine waits for may have come; nil if none waits
	err     error         // why it has ended, before done is closed
	broken  error         // why the writer has ended
	closing bool

	// What is shared with the peer.
	sent   map[key]*sent
	shares map[Ref]share // after the end: what was never released
	out    int           // how many refs that is
	queue  []notice

	// What the peer has shared.
	maps     map[key]*mapping
	mappings int   // including those that only Blocks still use
	mapped   int64 // bytes of them
	open     int   // Blocks, and returns that are in no frame yet
	returns  []Ref
}

// NewConn makes a Conn of c, a stream socket ("unix"), on which nothing else may be sent or
// read from then on. The caller must call Close, even after the end of the peer. If c is something
// else, the Conn has ended, and Err says so.
func NewConn(c *net.UnixConn) *Conn {
	conn := &Conn{
		sock: c, done: make(chan struct{}), quit: make(chan struct{}), wake: make(chan struct{}, 1), wrote: make(chan struct{}),
		sent: map[key]*sent{}, shares: map[Ref]share{}, maps: map[key]*mapping{},
	}
	go conn.write()
	go conn.read()
	return conn
}

// Share allows the peer to map each of refs, which name memory of a, once: a ref that is shared
// twice can be mapped twice. The caller sends the peer the refs, once for each time that they are
// shared, after Share; Share itself sends only the segments that the peer does not have. These are
// in the socket when it returns: the peer can map every ref that it receives, even if this process
// is killed before. So Share blocks only while there are such segments and the socket is full. A
// ref is shared until the peer has released it, and is not reused before, even if it is freed.
// Share is all or nothing.
func (c *Conn) Share(ctx context.Context, a *Arena, refs ...Ref) error {
	if len(refs) == 0 {
		return nil
	}
	if err := c.await(ctx, func() (bool, error) { return c.share(a, refs) }); err != nil {
		return fmt.Errorf("shm: share %d refs: %w", len(refs), err)
	}
	return nil
}

// post queues a notice for the writer. mu is held.
func (c *Conn) post(n notice) {
	c.queue = append(c.queue, n)
	c.wakeWriter()
}

func (c *Conn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Map maps what the peer has shared, a Block for each ref, which the caller has received from the
// peer once for each Block. (Memory that was not shared may change while it is read, and its
// Release is an error that ends the Conn.) It waits until the segments of all refs have arrived. A
// ref that is not within its segment is an error at once.
//
// What has arrived can be mapped until Close, even after the end of the Conn or of the peer: the
// memory lives on in this process. If it cannot be read, which is an error, it is released.
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
		return nil, fmt.Errorf("shm: map %d refs%s: %w", len(refs), c.missingText(refs), err)
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
	case c.open+len(refs) > maxShares:
		return nil, fmt.Errorf("%d Blocks are not released, or the peer does not read that they are, and %d is the most", c.open, maxShares)
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

// missing is the index of the first of refs whose segment is not there; -1 if there is none. mu is
// held.
func (c *Conn) missing(refs []Ref) int {
	return slices.IndexFunc(refs, func(r Ref) bool { return c.maps[r.key()] == nil })
}

// missingText says which of refs Map has waited for.
func (c *Conn) missingText(refs []Ref) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.missing(refs); i >= 0 {
		return fmt.Sprintf(", of which the peer has not sent the segment of %+v", refs[i])
	}
	return ""
}

// WaitReleased waits until the peer has released all of refs that were shared over this Conn: then
// the memory can be reused, or written to. A ref counts as it was shared: one for half of it is
// another ref. It is an error if the Conn ends before.
func (c *Conn) WaitReleased(ctx context.Context, refs ...Ref) error {
	out := 0 // are not released
	err := c.await(ctx, func() (bool, error) {
		out = 0
		for _, r := range refs {
			if c.shares[r].n > 0 {
				out++
			}
		}
		return out == 0, nil
	})
	if err != nil {
		return fmt.Errorf("shm: the peer has not released %d of %d refs: %w", out, len(refs), err)
	}
	return nil
}

// await waits until try, which is called with mu held, is true or an error. It is an error if the
// Conn or ctx ends before.
func (c *Conn) await(ctx context.Context, try func() (bool, error)) error {
	for {
		c.mu.Lock()
		ok, err := try()
		if !ok && err == nil && (c.closing || c.err != nil) {
			err = c.reason()
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

// change wakes all waiting goroutines. mu is held.
func (c *Conn) change() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// reason is why the Conn has ended, or is about to. mu is held.
func (c *Conn) reason() error {
	if c.err != nil {
		return c.err
	}
	return ErrClosed
}

// Done is closed when the Conn has ended, and its memory is accounted for.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the Conn has ended: ErrClosed after Close, an io.EOF in it where the peer has ended;
// nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the Conn, waits for its goroutines, and ends its mappings. What was released before
// still reaches the peer, if it reads within a tenth of a second. Blocks stay valid until Release;
// what was shared and not released is retired in its arena. It may be called twice, and always
// returns nil.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.mu.Lock()
		c.closing = true
		c.change()
		c.mu.Unlock()
		_ = c.sock.SetWriteDeadline(time.Now().Add(closeTimeout))
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

// Block is memory of the peer, mapped read-only: writing to Data is a fault that ends the process.
// It stays readable until Release, even after the end of the Conn or of the peer. A Block that is
// never released keeps the segment of the peer in memory.
type Block struct {
	Data []byte

	conn *Conn
	m    *mapping // nil after Release
	ref  Ref
}

// Release returns the memory to the peer, which may overwrite it at once: what Data was must no
// longer be read, and Data is nil afterwards. Release does not wait: the Conn's writer sends it, and
// a peer that does not read delays no caller. It may be called twice, and after the Conn's end.
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
		c.wakeWriter()
	} else {
		c.open--
	}
	dead := c.unuse(m)
	c.mu.Unlock()
	unmap(dead)
}

// unuse ends one use of m, and gives it back if that was the last. mu is held, and is not when it
// is unmapped.
func (c *Conn) unuse(m *mapping) []*mapping {
	if m.uses--; m.uses > 0 {
		return nil
	}
	c.mappings--
	c.mapped -= int64(len(m.mem))
	return []*mapping{m}
}
