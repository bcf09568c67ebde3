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
	// fullQueue is how many bytes wait to be sent before Lend waits.
	fullQueue = 256 << 10

	// lastWords is how long Close waits for a peer that does not read.
	lastWords = 100 * time.Millisecond
)

// Conn passes segments to one peer over one unix socket, each descriptor once. Both sides may lend and map. It is safe for
// concurrent use.
//
// It owns the socket and two goroutines, one that reads and one that writes. They end with Close or with the peer.
type Conn struct {
	sock  *net.UnixConn
	done  chan struct{}
	quit  chan struct{} // closed by Close
	wake  chan struct{} // for the writer: there is something
	wrote chan struct{} // closed when the writer has ended
	once  sync.Once

	mu      sync.Mutex    // protects what follows
	changed chan struct{} // closed when what somebody waits for may have come; nil if nobody waits
	err     error         // why it has ended, before done is closed
	broken  error         // why the writer has ended
	closing bool

	// What is lent to the peer.
	sent   map[key]sent
	loans  map[uint64]loan // not returned, by their numbers
	out    map[Ref]int     // how many of them there are for each, until their arenas know that they are returned
	number uint64          // the next loan's
	queue  []message
	queued int // bytes of queue

	// What the peer has lent.
	maps     map[key]*mapping
	mappings int             // also those that only Blocks use any more
	mapped   int64           // bytes of them
	offers   map[Ref][]offer // loans of the peer that Map has not taken
	offered  uint64          // the number of the peer's next loan
	open     int             // loans of the peer that are not in a frame of returns
	returns  []uint64
}

// sent is a segment that the peer has.
type sent struct {
	arena *Arena
	seg   *segment
}

// offer is a loan of the peer.
type offer struct {
	number uint64
	m      *mapping
}

// message is something to send.
type message struct {
	b   []byte
	seg *segment // whose descriptor goes with it, held; or nil
}

// NewConn makes a Conn of c, a stream socket ("unix"), on which nothing else may be sent or read any more. Close, or the end of the peer,
// ends its goroutines. If c is something else, the Conn has ended, and Err says so.
func NewConn(c *net.UnixConn) *Conn {
	conn := &Conn{
		sock: c, done: make(chan struct{}), quit: make(chan struct{}), wake: make(chan struct{}, 1), wrote: make(chan struct{}),
		sent: map[key]sent{}, loans: map[uint64]loan{}, out: map[Ref]int{},
		maps: map[key]*mapping{}, offers: map[Ref][]offer{},
	}
	go conn.write()
	go conn.read()
	return conn
}

// Lend lets the peer map what refs name of a, each once: a ref that is lent twice can be mapped twice. It counts as lent until the peer
// has released it, and is not reused before, also if it is freed. Lend does not wait for the peer, unless the socket is full. It is all
// or nothing.
func (c *Conn) Lend(ctx context.Context, a *Arena, refs ...Ref) error {
	if len(refs) == 0 {
		return nil
	}
	loans, err := a.lend(c, refs)
	if err != nil {
		return err
	}
	var refused error
	err = c.await(ctx, func() bool {
		if c.queued >= fullQueue {
			return false
		}
		refused = c.enqueue(a, loans)
		return true
	})
	switch {
	case err != nil:
		err = fmt.Errorf("shm: lend %d refs: %w", len(refs), err)
	case refused != nil:
		err = refused
	default:
		for _, l := range loans { // the arena may have been closed since
			if !a.has(l.block.seg) {
				c.drop(a.id, l.block.seg.id)
			}
		}
		return nil
	}
	a.settle(loans)
	if c.Err() != nil {
		c.leave(a, loans)
	}
	return err
}

// leave ends that arena a tells c of segments: it has ended.
func (c *Conn) leave(a *Arena, loans []loan) {
	for _, l := range loans {
		a.forget(c, l.block.seg)
	}
}

// enqueue sends the loans, and before them the segments that the peer does not have. mu is held.
func (c *Conn) enqueue(a *Arena, loans []loan) error {
	if n := len(c.loans); n+len(loans) > mostLoans {
		return fmt.Errorf("shm: lend %d refs: %d are lent over this Conn and not returned, and %d is the most", len(loans), n, mostLoans)
	}
	if err := c.introduce(a, loans); err != nil {
		return err
	}
	for _, l := range loans {
		c.loans[c.number] = l
		c.number++
		c.out[l.ref]++
	}
	for part := range slices.Chunk(loans, mostRecords(kindLend)) {
		b := appendHeader(make([]byte, 0, header+len(part)*sizes[kindLend]), kindLend, len(part))
		for _, l := range part {
			b = appendRef(b, l.ref)
		}
		c.post(message{b: b})
	}
	return nil
}

// introduce sends the segments of loans that the peer does not have. mu is held.
func (c *Conn) introduce(a *Arena, loans []loan) error {
	for _, l := range loans {
		s, k := l.block.seg, l.ref.key()
		if _, ok := c.sent[k]; ok {
			continue
		}
		if len(c.sent) >= mostSegments {
			return fmt.Errorf("shm: lend: the peer has %d segments, the most there may be: Trim, or set Options.Segment to more than %s",
				len(c.sent), amount(a.segment))
		}
		if !s.hold() {
			return ErrClosed
		}
		c.sent[k] = sent{a, s}
		c.post(message{b: appendSegment(appendHeader(nil, kindSegment, 1), k, s.size), seg: s})
	}
	return nil
}

// post gives the writer a message. mu is held.
func (c *Conn) post(m message) {
	c.queue = append(c.queue, m)
	c.queued += len(m.b)
	c.nudge()
}

func (c *Conn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// drop tells the peer that a segment has gone, if it has it.
func (c *Conn) drop(arena uint64, segment uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := key{arena, segment}
	if _, ok := c.sent[k]; ok && c.err == nil {
		delete(c.sent, k)
		c.post(message{b: appendKey(appendHeader(nil, kindDrop, 1), k)})
	}
}

// Map gives what the peer has lent, a Block for each ref. It waits until the peer has lent all of them, and takes none before. What the peer
// has lent once can be mapped once. If the memory cannot be read, which is an error, it is returned to the peer.
func (c *Conn) Map(ctx context.Context, refs ...Ref) ([]*Block, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	var blocks []*Block
	err := c.await(ctx, func() bool {
		blocks = c.accept(refs)
		return blocks != nil
	})
	if err != nil {
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

// accept takes offers for all refs; nil if some are missing. mu is held.
func (c *Conn) accept(refs []Ref) []*Block {
	if c.missing(refs) >= 0 {
		return nil
	}
	blocks := make([]*Block, len(refs))
	for i, r := range refs {
		o := c.offers[r][0]
		if c.offers[r] = c.offers[r][1:]; len(c.offers[r]) == 0 {
			delete(c.offers, r)
		}
		blocks[i] = &Block{Data: o.m.slice(r), conn: c, m: o.m, number: o.number}
	}
	return blocks
}

// missing is the index of the first of refs for which there is no offer left by those before; -1 if there is none. mu is held.
func (c *Conn) missing(refs []Ref) int {
	if len(refs) == 1 && len(c.offers[refs[0]]) > 0 {
		return -1
	}
	wanted := make(map[Ref]int, len(refs))
	for i, r := range refs {
		wanted[r]++
		if wanted[r] > len(c.offers[r]) {
			return i
		}
	}
	return -1
}

// wanting says which of refs Map has waited for.
func (c *Conn) wanting(refs []Ref) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.missing(refs); i >= 0 && c.err == nil {
		return fmt.Sprintf(", of which the peer has not lent %+v", refs[i])
	}
	return ""
}

// Returned waits until the peer has released all that was lent of refs over this Conn: then it can be reused, or written to. A ref counts
// as it was lent: one for half of it is another ref. It is an error if the Conn ends before.
func (c *Conn) Returned(ctx context.Context, refs ...Ref) error {
	back := func() bool {
		return !slices.ContainsFunc(refs, func(r Ref) bool { return c.out[r] > 0 })
	}
	err := c.await(ctx, back)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || back() {
		return nil
	}
	out := refs[slices.IndexFunc(refs, func(r Ref) bool { return c.out[r] > 0 })]
	return fmt.Errorf("shm: wait for %d refs to be returned, of which the peer has %+v: %w", len(refs), out, err)
}

// await waits until try, which is called with mu held, is true. It is an error if the Conn or ctx ends before.
func (c *Conn) await(ctx context.Context, try func() bool) error {
	for {
		c.mu.Lock()
		if c.closing || c.err != nil {
			err := c.why()
			c.mu.Unlock()
			return err
		}
		if try() {
			c.mu.Unlock()
			return nil
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

// Close ends the Conn and waits for its goroutines. What was released before still reaches the peer, if it reads within a tenth of a
// second. Blocks stay what they are until Release; what was lent and not returned is lost to its arena. It may be called
// twice, and always returns nil.
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
	return nil
}

// Block is memory of the peer, mapped read-only: writing to Data is a fault that ends the process. It stays readable until Release, also
// after the end of the Conn or of the peer. A Block that is never released keeps the segment of the peer in memory.
type Block struct {
	Data []byte

	conn   *Conn
	m      *mapping // nil after Release
	number uint64
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
		c.returns = append(c.returns, b.number)
		c.nudge()
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
