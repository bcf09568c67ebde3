package collective

import (
	"bufio"
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/link"
)

// The kinds of connections. Each carries messages in one direction, from the rank that dialed it,
// in the order of the verbs: the next message is always the one that the receiver waits for, and is
// read into its slice.
const (
	forVerbs  byte = 'c'
	forPairs  byte = 'p' // Send and Recv
	forMemory byte = 'm' // a shm.Conn
)

// conns are the connections of one rank to others, made on demand.
type conns struct {
	core *core
	wg   sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	closed bool
	// closed when a connection arrives that a call waits for; nil: no call waits
	arrived chan struct{}
	out     map[connKey]*outbound
	in      map[connKey]*inbound

	memory []chan *link.Conn // by rank: holds the connection that is dialed while a Comm opens
}

type connKey struct {
	rank int
	kind byte
}

// inbound is a connection with a rank's messages. One goroutine uses it at a time.
type inbound struct {
	conn net.Conn
	r    *bufio.Reader
	head [headLen]byte
}

// outbound is a connection for messages to a rank. The sender writes what the socket takes at once.
// A goroutine of its own writes the queued rest, so that the sender can receive meanwhile: if all
// ranks only wrote, none would read. A small message is written under mu, and may wait there for its
// receiver: what ends the wait, as the end of the Comm does, closes the connection before it locks.
type outbound struct {
	conn net.Conn
	now  link.NowWriter // conn; nil: the goroutine writes all large messages

	mu      sync.Mutex // protects the fields below
	change  *sync.Cond // of any of these fields
	queue   []message
	writing bool // the goroutine is writing
	err     error
	small   []byte

	bufs, left net.Buffers // used by the goroutine while it is writing, and else under mu
}

// message is a queued message, of which sent bytes have been written.
type message struct {
	head [headLen]byte
	data vector
	sent int
}

// rest appends what is left to write.
func (m *message) rest(bufs net.Buffers) net.Buffers {
	if m.sent < headLen {
		bufs = append(bufs, m.head[m.sent:])
	}
	for _, x := range m.data.from(max(m.sent-headLen, 0)).slices() {
		bufs = append(bufs, x)
	}
	return bufs
}

func newConns(c *core) *conns {
	l := &conns{core: c, out: map[connKey]*outbound{}, in: map[connKey]*inbound{}, memory: make([]chan *link.Conn, c.size())}
	for i := range l.memory {
		l.memory[i] = make(chan *link.Conn, 1)
	}
	return l
}

// accept takes ownership of a connection that another rank has dialed.
func (l *conns) accept(c *link.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Kind == forMemory && !l.closed {
		select {
		case l.memory[c.Rank] <- c:
		default:
			_ = c.Close()
		}
		return
	}
	k := connKey{c.Rank, c.Kind}
	if l.closed || l.in[k] != nil || c.Kind != forVerbs && c.Kind != forPairs {
		_ = c.Close()
		return
	}
	l.in[k] = &inbound{conn: c.Conn, r: bufio.NewReaderSize(c.Conn, readBuffer)}
	if l.arrived != nil {
		close(l.arrived)
		l.arrived = nil
	}
}

const (
	readBuffer = 64 << 10
	// smallMessage is the maximum size of a message that its sender copies and writes directly if
	// the queue is empty: it fits into the buffers of sockets.
	smallMessage = 16 << 10
)

// from returns the connection for messages from a rank.
func (l *conns) from(ctx context.Context, k connKey) (*inbound, error) {
	for {
		l.mu.Lock()
		in := l.in[k]
		if in == nil && l.arrived == nil {
			l.arrived = make(chan struct{})
		}
		arrived := l.arrived
		l.mu.Unlock()
		if in != nil {
			return in, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-l.core.over.Done():
			return nil, net.ErrClosed
		}
	}
}

// to returns the connection to a rank. For each kind, one goroutine calls it at a time.
func (l *conns) to(ctx context.Context, k connKey) (*outbound, error) {
	l.mu.Lock()
	out := l.out[k]
	l.mu.Unlock()
	if out != nil {
		return out, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.core.over, cancel)()
	c, err := l.core.mesh.Dial(ctx, k.rank, link.Purpose{Kind: k.kind, ID: l.core.group.Generation()})
	if err != nil {
		return nil, err
	}
	out = &outbound{conn: c.Conn}
	out.now, _ = c.Conn.(link.NowWriter)
	out.change = sync.NewCond(&out.mu)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	l.out[k] = out
	l.wg.Go(out.write)
	return out, nil
}

// close ends all connections, and so all calls that wait for them.
func (l *conns) close() {
	l.mu.Lock()
	l.closed = true
	for _, in := range l.in {
		_ = in.conn.Close()
	}
	for _, m := range l.memory {
		select {
		case c := <-m: // not yet in use
			_ = c.Close()
		default:
		}
	}
	for _, out := range l.out {
		_ = out.conn.Close() // before stop, since a goroutine may be writing
		out.stop(net.ErrClosed)
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// announceLeave notifies ranks that may wait for this one that it has left, after all messages that
// it sent before.
func (l *conns) announceLeave() {
	l.mu.Lock()
	outs := slices.Collect(maps.Values(l.out))
	l.mu.Unlock()
	h := head{verb: announceLeave, generation: l.core.group.Generation()}
	end := time.Now().Add(goodbyeTime)
	for _, out := range outs { // before the first message, which may wait for the end
		_ = out.conn.SetWriteDeadline(end)
	}
	for _, out := range outs {
		out.send(&h, vector{})
	}
	for _, out := range outs {
		_ = out.flush()
	}
}

// goodbyeTime bounds how long Close waits for ranks that do not read.
const goodbyeTime = 100 * time.Millisecond

// send sends a message. data must not change until flush.
func (o *outbound) send(h *head, data vector) {
	h.length = uint32(data.n)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.err != nil: // the next receiver gets it
	case len(o.queue) == 0 && !o.writing && data.n <= smallMessage:
		o.small = slices.Grow(o.small[:0], headLen+smallMessage)[:headLen]
		h.put(o.small)
		for _, x := range data.slices() {
			o.small = append(o.small, x...)
		}
		_, o.err = o.conn.Write(o.small)
	default:
		o.queue = append(o.queue, message{data: data})
		m := &o.queue[len(o.queue)-1]
		h.put(m.head[:])
		if o.now != nil && len(o.queue) == 1 && !o.writing {
			o.bufs = m.rest(o.bufs[:0])
			m.sent, o.err = o.now.WriteNow(o.bufs)
			clear(o.bufs)
			if m.sent == headLen+data.n {
				clear(o.queue)
				o.queue = o.queue[:0]
				return // without a wake-up of the goroutine
			}
		}
		o.change.Broadcast()
	}
}

// write runs the goroutine of an outbound connection.
func (o *outbound) write() {
	var batch []message
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for len(o.queue) == 0 && o.err == nil {
			o.change.Wait()
		}
		if o.err != nil {
			return
		}
		o.queue, batch = batch[:0], o.queue
		o.writing = true
		o.mu.Unlock()
		err := o.writeAll(batch)
		clear(batch) // so that it holds no caller's memory
		o.mu.Lock()
		o.writing = false
		if o.err == nil {
			o.err = err
		}
		o.change.Broadcast()
	}
}

func (o *outbound) writeAll(batch []message) error {
	for i := range batch {
		for m := &batch[i]; m.sent < headLen+m.data.n; {
			o.bufs = m.rest(o.bufs[:0])
			n, err := o.writeSome()
			if m.sent += n; err != nil {
				return err
			}
		}
	}
	return nil
}

// writeSome waits until the socket takes some of bufs, and returns how many bytes it took.
func (o *outbound) writeSome() (n int, err error) {
	if o.now == nil {
		o.left = o.bufs
		n, err := o.left.WriteTo(o.conn)
		return int(n), err
	}
	if n, err = o.conn.Write(o.bufs[0]); err != nil || len(o.bufs) == 1 {
		return n, err
	}
	more, err := o.now.WriteNow(o.bufs[1:])
	return n + more, err
}

// stop ends the goroutine, and all calls that wait.
func (o *outbound) stop(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	o.change.Broadcast()
}

// flush returns when all messages have been written.
func (o *outbound) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (len(o.queue) > 0 || o.writing) && o.err == nil {
		o.change.Wait()
	}
	return o.err
}
