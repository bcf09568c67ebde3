package store

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// client is an Engine over one session, which all calls share: a call that waits delays no other, and one that is
// given up leaves the rest as it is. The session has one connection at a time; see client_mend.go for what happens between two.
//
// Somebody reads for all: see client_read.go. It owns at most one goroutine, which reads or mends, and two timers; Close ends them.
type client struct {
	dialer *dialer
	logger *slog.Logger
	ended  chan struct{}      // closed when there will be no connection any more
	life   context.Context    // until Close
	stop   context.CancelFunc // ends life

	large   chan struct{} // holds a token while a large request waits for room
	drained chan struct{} // gets a token when there is room again
	heard   atomic.Bool   // something came since the silence was last looked at

	mu        sync.Mutex // protects the fields below
	line      *line      // nil while there is none
	session   session
	calls     map[uint64]*clientCall
	cancelled map[uint64]withdrawal // calls that the store was asked to give up, and why
	last      uint64                // id
	numbers   numbers
	closed    bool
	turn      turn
	mending   bool
	silence   silence
	fruitless int // connections in a row that have ended without an answer
}

// clientCall is a call that waits for its reply. done gets one value: calls are used again.
type clientCall struct {
	id     uint64
	number uint64 // 0 until it is sent, and for what changes nothing
	line   *line  // that it was sent on last; nil is none
	req    *wire.Request
	rep    *wire.Reply
	err    error
	done   chan struct{}
	tries  int // that the store had no room to answer
}

var clientCalls = sync.Pool{New: func() any { return &clientCall{done: make(chan struct{}, 1)} }}

func newClient(d *dialer, l *line) *client {
	c := &client{
		dialer: d, logger: logger(d.options.Logger), ended: make(chan struct{}),
		large: make(chan struct{}, 1), drained: make(chan struct{}, 1),
		calls: map[uint64]*clientCall{}, cancelled: map[uint64]withdrawal{},
	}
	c.life, c.stop = context.WithCancel(context.Background())
	c.numbers.room = make(chan struct{}, 1)
	c.mu.Lock() // the timers may be early
	defer c.mu.Unlock()
	c.turn.idle = time.AfterFunc(idleAfter, c.rested)
	c.turn.armed = true
	c.silence.timeout = livenessTimeout(d.options.LivenessTimeout)
	c.silence.timer = time.AfterFunc(time.Hour, c.listen)
	c.silence.timer.Stop()
	c.session = sessionOf(&l.welcome)
	c.use(l)
	return c
}

// use makes l the connection. Called with mu.
func (c *client) use(l *line) {
	c.line = l
	l.out.Drained = func() {
		select {
		case c.drained <- struct{}{}:
		default:
		}
	}
	if moved := c.dialer.options.WaitReplaced; moved != nil {
		c.turn.background.Go(l.watchMove(c.life, moved))
	}
}

// Do implements Engine.
func (c *client) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if sink := c.dialer.options.Trace; sink != nil {
		return c.traced(ctx, sink, req, rep)
	}
	return c.do(ctx, req, rep)
}

// traced is do, and tells sink of it.
func (c *client) traced(ctx context.Context, sink trace.Sink, req *wire.Request, rep *wire.Reply) error {
	e := trace.Event{Op: "store." + req.Op.String(), Rank: -1, Last: -1, Bytes: int64(len(req.Value)), Start: time.Now()}
	err := c.do(ctx, req, rep)
	e.End = time.Now()
	if e.Err = err; err == nil {
		e.Err = answer(req, rep)
	}
	if e.Bytes == 0 {
		e.Bytes = int64(len(rep.Value))
		for _, v := range rep.Values {
			e.Bytes += int64(len(v))
		}
	}
	if req.Op.Waits() {
		e.Waited = e.Duration()
	}
	sink.Record(ctx, e)
	return err
}

func (c *client) do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	call := clientCalls.Get().(*clientCall)
	call.req, call.rep, call.err = req, rep, nil
	call.number, call.line, call.tries = 0, nil, 0
	if err := c.submit(ctx, call); err != nil {
		return err
	}
	c.lead(ctx, call.id)
	err := await(ctx, req.Op, call.done, func(why withdrawal) { c.withdraw(req.Op, call.id, why) })
	if err != nil {
		if given, sent := c.abandon(call); given {
			return c.gaveUp(req.Op, sent, err) // call is not used again
		}
		<-call.done // the reader has it: the answer came just now
	}
	err = call.err
	call.req, call.rep = nil, nil
	clientCalls.Put(call)
	return err
}

// submit registers a call, and sends it if there is a connection. A large one waits first while others wait for the store to read.
func (c *client) submit(ctx context.Context, call *clientCall) error {
	if len(call.req.Value) > largeRequest {
		select {
		case c.large <- struct{}{}:
			defer func() { <-c.large }()
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := c.roomForLarge(ctx); err != nil {
			return err
		}
	}
	l, err := c.register(ctx, call)
	if l != nil {
		l.out.Flush()
	}
	return err
}

func (c *client) roomForLarge(ctx context.Context) error {
	for {
		c.mu.Lock()
		l := c.line
		c.mu.Unlock()
		if l == nil || !l.out.Hold(largeQueue) {
			return nil
		}
		select {
		case <-c.drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// register gives a call its id, and queues it on the connection, which is returned; nil if there is none: it is sent when there is.
func (c *client) register(ctx context.Context, call *clientCall) (*line, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	numbered := call.req.Op.Numbered()
	if numbered {
		if err := c.roomForNumber(ctx); err != nil {
			return nil, err
		}
	}
	if c.closed {
		return nil, ErrClosed
	}
	if err := c.session.refuses(call.req); err != nil {
		return nil, err
	}
	c.last++
	call.id = c.last
	c.calls[call.id] = call
	c.turn.used = true
	c.silence.begin()
	if numbered {
		c.numbers.held++
	}
	if c.line == nil {
		c.startMending()
		return nil, nil
	}
	c.transmit(call)
	return c.line, nil
}

// roomForNumber waits while as many numbers are open as may be. Each that goes on wakes the next, whatever the reason. Called with
// mu; it unlocks meanwhile.
func (c *client) roomForNumber(ctx context.Context) error {
	waited := false
	for c.numbers.full() && !c.closed {
		switch {
		case c.line != nil || c.mending:
		case waited: // and in vain: whoever mended has given up
			c.numbers.wake()
			why := *c.silence.why
			return &why
		default:
			c.startMending()
		}
		waited = true
		c.mu.Unlock()
		err := c.numbers.wait(ctx)
		c.mu.Lock()
		if err != nil {
			return err
		}
	}
	if waited {
		c.numbers.wake()
	}
	return nil
}

// transmit queues a call on the connection. What is numbered gets its number here: the store wants them in order. Called with mu.
func (c *client) transmit(call *clientCall) {
	if call.number == 0 && call.req.Op.Numbered() {
		call.number = c.numbers.next(call)
	}
	call.line = c.line
	req := *call.req
	req.ID, req.Number, req.Acked = call.id, call.number, c.numbers.acked
	c.line.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &req) })
}

// again sends a call once more, after a pause, for whose answer the store had no room. It reports false if the call was given up.
func (c *client) again(l *line, id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	if call == nil {
		return false
	}
	call.tries++
	pause := min(firstPause<<min(call.tries-1, 10), mostAgain)
	time.AfterFunc(pause/2+rand.N(pause), func() {
		c.mu.Lock()
		call := c.calls[id]
		if call == nil || c.line != l { // it was given up, or goes with the others of a connection that has broken
			c.mu.Unlock()
			return
		}
		c.transmit(call)
		if why, ok := c.cancelled[id]; ok {
			l.cancel(id, why)
		}
		c.mu.Unlock()
		l.out.Flush()
	})
	return true
}

// withdraw tells the store that nobody waits for a call any more.
func (c *client) withdraw(op wire.Op, id uint64, why withdrawal) {
	if !op.Waits() {
		return
	}
	c.mu.Lock()
	if c.calls[id] == nil { // answered just now: no other answer would end the cancel
		c.mu.Unlock()
		return
	}
	c.cancelled[id] = why
	l := c.line
	if l != nil {
		l.cancel(id, why)
	}
	c.mu.Unlock()
	if l != nil {
		l.out.Flush()
	}
}

func (l *line) cancel(id uint64, why withdrawal) {
	l.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, why.request(id)) })
}

// abandon gives up a call; it is too late if a reader has taken it. What was sent may have been carried out.
func (c *client) abandon(call *clientCall) (given, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[call.id] != call {
		return false, false
	}
	delete(c.calls, call.id)
	c.numbers.abandon(call)
	return true, call.line != nil
}

// acknowledgeAtOnce is from how many bytes on an answer to a numbered request is acknowledged at once. The store keeps it until then, in what
// it may hold for all sessions, and the next numbered request, which acknowledges smaller ones, may be long in coming.
const acknowledgeAtOnce = 64 << 10

// acknowledge sends a numbered request that does nothing, but says which answers have come.
func (c *client) acknowledge() {
	c.mu.Lock()
	l := c.line
	if c.closed || l == nil || c.numbers.full() {
		c.mu.Unlock()
		return
	}
	c.last++
	skip := wire.Request{Op: wire.OpSkip, ID: c.last}
	skip.Number, skip.Acked = c.numbers.skip(skip.ID), c.numbers.acked
	l.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &skip) })
	c.mu.Unlock()
	l.out.Flush()
}

// take takes the call that a reply answers.
func (c *client) take(id uint64) *clientCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	delete(c.calls, id)
	delete(c.cancelled, id)
	c.numbers.answered(id, call)
	return call
}

// endAll ends all calls with err. Called with mu.
func (c *client) endAll(err error) {
	for id, call := range c.calls {
		delete(c.calls, id)
		c.numbers.abandon(call)
		call.end(c.outcome(call, err))
	}
	c.numbers.wake()
}

// outcome is what err means for call: if it changes something and was sent, nobody knows.
func (c *client) outcome(call *clientCall, err error) error {
	if call.line == nil || !call.req.Op.Numbered() {
		return err
	}
	return inDoubt(err)
}

func (call *clientCall) end(err error) {
	call.err = err
	call.done <- struct{}{} // from here on call is somebody else's
}

// Close says goodbye and waits, shortly, until the server has heard it: its ranks have left then, and are not
// lost. Calls in progress end at once: what the server still answers is nobody's.
func (c *client) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.endAll(ErrClosed)
	c.silence.timer.Stop()
	c.turn.idle.Stop()
	l := c.line
	c.mu.Unlock()
	if first {
		c.stop()
		if l == nil {
			close(c.ended)
		} else {
			l.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpGoodbye}) })
			l.out.Flush()
			c.readToEnd(l)
		}
	}
	<-c.ended
	c.turn.background.Wait()
	if l != nil {
		l.pipe.Done()
	}
	return nil
}

// numbers are those of the requests that change something: 1, 2, 3 … in the order in which they are sent.
type numbers struct {
	acked uint64     // the answers to all up to this one have come
	open  []numbered // from acked+1 on
	held  int        // requests that have a number, or will get one
	room  chan struct{}
	gone  map[uint64]uint64 // numbers of calls that were given up, by id
}

// numbered is one of them, until its answer has come.
type numbered struct {
	id       uint64
	call     *clientCall // nil if it was given up
	answered bool
}

// mostNumbered is how many may be open: the store keeps its answers for so many.
const mostNumbered = 1000

func (n *numbers) full() bool { return n.held >= mostNumbered }

// wait waits until there may be room.
func (n *numbers) wait(ctx context.Context) error {
	select {
	case <-n.room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *numbers) wake() {
	select {
	case n.room <- struct{}{}:
	default:
	}
}

func (n *numbers) next(call *clientCall) uint64 {
	n.open = append(n.open, numbered{id: call.id, call: call})
	return n.acked + uint64(len(n.open))
}

// abandon notes that nobody waits for call any more. If it was sent, its number stays open until it is answered.
func (n *numbers) abandon(call *clientCall) {
	switch {
	case call.number != 0:
		n.open[call.number-n.acked-1].call = nil
		if n.gone == nil {
			n.gone = map[uint64]uint64{}
		}
		n.gone[call.id] = call.number
	case call.req.Op.Numbered():
		n.held--
		n.wake()
	}
}

// skip gives the number of a request that does nothing, and for which nobody waits.
func (n *numbers) skip(id uint64) uint64 {
	n.open = append(n.open, numbered{id: id})
	n.held++
	number := n.acked + uint64(len(n.open))
	if n.gone == nil {
		n.gone = map[uint64]uint64{}
	}
	n.gone[id] = number
	return number
}

// answered notes that the reply to a call has come; call is nil if it was given up.
func (n *numbers) answered(id uint64, call *clientCall) {
	var number uint64
	if call != nil {
		number = call.number
	} else if number = n.gone[id]; number != 0 {
		delete(n.gone, id)
	}
	if number == 0 {
		return
	}
	n.open[number-n.acked-1] = numbered{answered: true}
	k := 0
	for k < len(n.open) && n.open[k].answered {
		k++
	}
	n.open = n.open[k:]
	n.acked += uint64(k)
	n.held -= k
	if k > 0 {
		n.wake()
	}
}
