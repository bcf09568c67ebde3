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

// What a connection is for. Each brings messages one way, from who dialled it: in the order of the verbs, so that the next one is always what
// the receiver waits for, and goes straight into its slice.
const (
	forVerbs  byte = 'c'
	forPairs  byte = 'p' // Send and Recv
	forMemory byte = 'm' // a shm.Conn
)

// lanes are the connections of one rank to others, made when they are first needed.
type lanes struct {
	core *core
	wg   sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	closed bool
	came   chan struct{} // closed when a connection has come that somebody waits for; nil: nobody does
	out    map[laneKey]*outLane
	in     map[laneKey]*inLane

	memory []chan *link.Conn // by rank: has room for the one that is dialled as a Comm opens
}

type laneKey struct {
	rank int
	kind byte
}

// inLane is where a rank's messages arrive. One goroutine uses it at a time.
type inLane struct {
	conn net.Conn
	r    *bufio.Reader
	head [headLen]byte
}

// outLane is where messages to a rank go. What is queued is written by a goroutine of its own, so that who sends can receive meanwhile: if all
// ranks only wrote, nobody would read.
type outLane struct {
	conn net.Conn

	mu      sync.Mutex // protects the fields below
	change  *sync.Cond // of any of them
	queue   []message
	writing bool // the goroutine has some in its hands
	err     error
	small   []byte

	bufs, left net.Buffers // of the goroutine
}

type message struct {
	head [headLen]byte
	data vector
}

func newLanes(c *core) *lanes {
	l := &lanes{core: c, out: map[laneKey]*outLane{}, in: map[laneKey]*inLane{}, memory: make([]chan *link.Conn, c.size())}
	for i := range l.memory {
		l.memory[i] = make(chan *link.Conn, 1)
	}
	return l
}

// accept takes over what another rank has dialled.
func (l *lanes) accept(c *link.Conn) {
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
	k := laneKey{c.Rank, c.Kind}
	if l.closed || l.in[k] != nil || c.Kind != forVerbs && c.Kind != forPairs {
		_ = c.Close()
		return
	}
	l.in[k] = &inLane{conn: c.Conn, r: bufio.NewReaderSize(c.Conn, readBuffer)}
	if l.came != nil {
		close(l.came)
		l.came = nil
	}
}

const (
	readBuffer = 64 << 10
	// smallMessage is copied and written at once by who sends it, if nothing is queued: sockets have room for it.
	smallMessage = 16 << 10
)

// from is the connection that a rank's messages come over.
func (l *lanes) from(ctx context.Context, k laneKey) (*inLane, error) {
	for {
		l.mu.Lock()
		in := l.in[k]
		if in == nil && l.came == nil {
			l.came = make(chan struct{})
		}
		came := l.came
		l.mu.Unlock()
		if in != nil {
			return in, nil
		}
		select {
		case <-came:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-l.core.over.Done():
			return nil, net.ErrClosed
		}
	}
}

// to is the connection to a rank. Of a kind, one goroutine at a time asks for it.
func (l *lanes) to(ctx context.Context, k laneKey) (*outLane, error) {
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
	out = &outLane{conn: c.Conn}
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

// close ends all connections, and so whatever waits for them.
func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	for _, in := range l.in {
		_ = in.conn.Close()
	}
	for _, m := range l.memory {
		select {
		case c := <-m: // nobody has taken it
			_ = c.Close()
		default:
		}
	}
	for _, out := range l.out {
		_ = out.conn.Close() // before stop: somebody may be writing
		out.stop(net.ErrClosed)
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// goodbye tells ranks that may wait for this one that it has left, behind what it has sent before.
func (l *lanes) goodbye() {
	l.mu.Lock()
	outs := slices.Collect(maps.Values(l.out))
	l.mu.Unlock()
	h := head{verb: goodbye, generation: l.core.group.Generation()}
	for _, out := range outs {
		_ = out.conn.SetWriteDeadline(time.Now().Add(goodbyeTime))
		out.send(&h, vector{})
	}
	for _, out := range outs {
		_ = out.flush()
	}
}

// goodbyeTime bounds how long Close waits for ranks that do not read.
const goodbyeTime = 100 * time.Millisecond

// send sends a message. data has to stay as it is until flush.
func (o *outLane) send(h *head, data vector) {
	h.length = uint32(data.n)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.err != nil: // who receives next hears of it
	case len(o.queue) == 0 && !o.writing && data.n <= smallMessage:
		o.small = slices.Grow(o.small[:0], headLen+smallMessage)[:headLen]
		h.put(o.small)
		for _, x := range data.slices() {
			o.small = append(o.small, x...)
		}
		_, o.err = o.conn.Write(o.small)
	default:
		m := message{data: data}
		h.put(m.head[:])
		o.queue = append(o.queue, m)
		o.change.Broadcast()
	}
}

// write is the goroutine of a lane.
func (o *outLane) write() {
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
		clear(batch) // nobody's memory is held
		o.mu.Lock()
		o.writing = false
		if o.err == nil {
			o.err = err
		}
		o.change.Broadcast()
	}
}

func (o *outLane) writeAll(batch []message) error {
	for i := range batch {
		m := &batch[i]
		o.bufs = append(o.bufs[:0], m.head[:])
		for _, x := range m.data.slices() {
			o.bufs = append(o.bufs, x)
		}
		o.left = o.bufs
		if _, err := o.left.WriteTo(o.conn); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the goroutine, and all who wait.
func (o *outLane) stop(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	o.change.Broadcast()
}

// flush returns when all that was sent is written.
func (o *outLane) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (len(o.queue) > 0 || o.writing) && o.err == nil {
		o.change.Wait()
	}
	return o.err
}
