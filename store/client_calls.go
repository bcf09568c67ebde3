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

// client is an Engine over one session, which all calls share. A call that waits does not delay
// others, and abandoning one does not affect the connection. The session has one connection at a
// time; client_reconnect.go describes what happens between two.
//
// One goroutine reads for all calls: see client_read.go. A client owns at most one goroutine, which
// reads or reconnects, one that waits for DialOptions.WaitReplaced, and two timers; Close ends
// them.
type client struct {
	dialer *dialer
	logger *slog.Logger
	ended  chan struct{}      // closed when there will be no further connection
	ctx    context.Context    // until Close
	cancel context.CancelFunc // ends ctx

	idle     sync.Pool     // of *clientCall: its own, because a channel of a synctest bubble stays in it
	large    chan struct{} // holds a token while a large request waits to be sent
	drained  chan struct{} // gets a token when the outbox has drained
	received atomic.Bool   // something was received since the last health check

	mu           sync.Mutex  // protects the fields below
	conn         *clientConn // nil while there is none
	session      session
	calls        map[uint64]*clientCall
	cancelled    map[uint64]cancellation // calls that the store was asked to cancel, and why
	last         uint64                  // the last id
	numbers      numbers
	closed       bool
	readTurn     readTurn
	reconnecting bool
	health       connHealth
	failedConns  int // successive connections that have ended without a reply
}

// clientCall is a call that waits for its reply. done gets one value and is not closed, because
// calls are pooled.
type clientCall struct {
	id     uint64
	number uint64      // 0 until it is sent, and for operations that change nothing
	conn   *clientConn // connection that it was last sent on; nil: none
	req    *wire.Request
	rep    *wire.Reply
	err    error
	done   chan struct{}
	tries  int // replies with CodeAgain: the store had no space for the reply
}

func newClient(d *dialer, l *clientConn) *client {
	c := &client{
		dialer: d, logger: logger(d.options.Logger), ended: make(chan struct{}),
		large: make(chan struct{}, 1), drained: make(chan struct{}, 1),
		calls: map[uint64]*clientCall{}, cancelled: map[uint64]cancellation{},
	}
	c.idle.New = func() any { return &clientCall{done: make(chan struct{}, 1)} }
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.numbers.freed = make(chan struct{}, 1)
	c.mu.Lock() // a timer may fire at once
	defer c.mu.Unlock()
	c.readTurn.idle = time.AfterFunc(idleAfter, c.onIdle)
	c.readTurn.timerSet = true
	c.health.timeout = livenessTimeout(d.options.LivenessTimeout)
	c.health.timer = time.AfterFunc(time.Hour, c.checkHealth)
	c.health.timer.Stop()
	c.session = sessionOf(&l.welcome)
	c.use(l)
	return c
}

// use makes l the connection. The caller holds mu.
func (c *client) use(l *clientConn) {
	c.conn = l
	l.out.Drained = func() { signal(c.drained) }
	if moved := c.dialer.options.WaitReplaced; moved != nil {
		c.readTurn.wg.Go(l.watchReplaced(c.ctx, moved))
	}
}

// Do implements Engine.
func (c *client) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if sink := c.dialer.options.Trace; sink != nil {
		return c.traced(ctx, sink, req, rep)
	}
	return c.do(ctx, req, rep)
}

// traced is do with a trace event.
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
	call := c.idle.Get().(*clientCall)
	call.req, call.rep, call.err = req, rep, nil
	call.number, call.conn, call.tries = 0, nil, 0
	if err := c.submit(ctx, call); err != nil {
		return err
	}
	c.readUntil(ctx, call.id)
	err := await(ctx, req.Op, call.done, func(why cancellation) { c.sendCancel(req.Op, call.id, why) })
	if err != nil {
		if given, sent := c.abandon(call); given {
			if req.Op == wire.OpLeave && req.Group.No == wire.CodeOK {
				c.failRank(&req.Group)
			}
			return c.contextError(req.Op, sent, err) // call is not pooled
		}
		<-call.done // a reader has the reply already
	}
	err = call.err
	call.req, call.rep = nil, nil
	c.idle.Put(call)
	return err
}

// submit registers a call, and sends it if there is a connection. A large request first waits while
// others wait for the server to read.
func (c *client) submit(ctx context.Context, call *clientCall) error {
	if len(call.req.Value) > largeRequest {
		select {
		case c.large <- struct{}{}:
			defer func() { <-c.large }()
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := c.waitToSendLarge(ctx); err != nil {
			return err
		}
	}
	l, err := c.register(ctx, call)
	if l != nil {
		l.out.Flush()
	}
	return err
}

func (c *client) waitToSendLarge(ctx context.Context) error {
	for {
		c.mu.Lock()
		l := c.conn
		c.mu.Unlock()
		if l == nil || !l.out.Blocked(largeQueue) {
			return nil
		}
		select {
		case <-c.drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// register gives a call its id and queues it on the connection, which it returns. Without a
// connection it returns nil: the call is sent after the reconnect.
func (c *client) register(ctx context.Context, call *clientCall) (*clientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	numbered := call.req.Op.Numbered()
	if numbered {
		if err := c.waitForNumber(ctx); err != nil {
			return nil, err
		}
	}
	if c.closed {
		return nil, ErrClosed
	}
	if err := c.session.check(call.req); err != nil {
		return nil, err
	}
	c.last++
	call.id = c.last
	c.calls[call.id] = call
	c.readTurn.called = true
	c.health.start()
	if numbered {
		c.numbers.count++
	}
	if c.conn == nil {
		c.startReconnecting()
		return nil, nil
	}
	c.transmit(call)
	return c.conn, nil
}

// waitForNumber waits while the maximum of numbered requests is in progress. Each goroutine that
// stops waiting wakes the next one, so that a wake-up is not lost. The caller holds mu, which is
// unlocked meanwhile.
func (c *client) waitForNumber(ctx context.Context) error {
	waited := false
	for c.numbers.full() && !c.closed {
		switch {
		case c.conn != nil || c.reconnecting:
		case waited: // in vain: the reconnect has failed
			c.numbers.wake()
			why := *c.health.downReason
			return &why
		default:
			c.startReconnecting()
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

// transmit queues a call on the connection. Numbers are assigned here, because the store requires
// them in order. The caller holds mu.
func (c *client) transmit(call *clientCall) {
	if call.number == 0 && call.req.Op.Numbered() {
		call.number = c.numbers.next(call.id, call)
	}
	call.conn = c.conn
	req := *call.req
	req.ID, req.Number, req.Acked = call.id, call.number, c.numbers.acked
	c.conn.send(&req)
}

// retryLater sends a call again after a pause, because the store had no space for its reply. It
// returns false if the call was abandoned.
func (c *client) retryLater(l *clientConn, id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	if call == nil {
		return false
	}
	call.tries++
	pause := min(firstPause<<min(call.tries-1, 10), maxRetryPause)
	time.AfterFunc(pause/2+rand.N(pause), func() {
		c.mu.Lock()
		call := c.calls[id]
		if call == nil || c.conn != l { // abandoned, or resent after a reconnect
			c.mu.Unlock()
			return
		}
		c.transmit(call)
		if why, ok := c.cancelled[id]; ok {
			l.send(why.request(id))
		}
		c.mu.Unlock()
		l.out.Flush()
	})
	return true
}

// sendCancel sends the store the cancel of a call that no longer has a caller.
func (c *client) sendCancel(op wire.Op, id uint64, why cancellation) {
	if !op.Waits() {
		return
	}
	c.mu.Lock()
	if c.calls[id] == nil { // just answered: no further reply would remove the entry
		c.mu.Unlock()
		return
	}
	c.cancelled[id] = why
	l := c.conn
	if l != nil {
		l.send(why.request(id))
	}
	c.mu.Unlock()
	if l != nil {
		l.out.Flush()
	}
}

// abandon gives up a call; it returns false if a reader has taken it already. A request that was
// sent may take effect.
func (c *client) abandon(call *clientCall) (given, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[call.id] != call {
		return false, false
	}
	delete(c.calls, call.id)
	c.numbers.abandon(call)
	return true, call.conn != nil
}

// ackAtOnceBytes is the reply size from which on the reply to a numbered request is acknowledged at
// once. The store keeps replies until then, within a limit for all sessions, and the next numbered
// request, which acknowledges smaller replies, may be far off.
const ackAtOnceBytes = 64 << 10

// acknowledge sends a numbered request without effect, which acknowledges the replies received so
// far.
func (c *client) acknowledge() {
	c.mu.Lock()
	l := c.conn
	if c.closed || l == nil || c.numbers.full() {
		c.mu.Unlock()
		return
	}
	c.last++
	c.numbers.count++
	l.send(&wire.Request{Op: wire.OpSkip, ID: c.last, Number: c.numbers.next(c.last, nil), Acked: c.numbers.acked})
	c.mu.Unlock()
	l.out.Flush()
}

// takeCall removes and returns the call that a reply answers.
func (c *client) takeCall(id uint64) *clientCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	delete(c.calls, id)
	delete(c.cancelled, id)
	c.numbers.answered(id, call)
	return call
}

// failAll ends all calls with err. The caller holds mu.
func (c *client) failAll(err error) { c.fail(err, func(*clientCall) bool { return true }) }

// fail ends the calls that are, with err. The caller holds mu.
func (c *client) fail(err error, is func(*clientCall) bool) {
	for id, call := range c.calls {
		if is(call) {
			delete(c.calls, id)
			c.numbers.abandon(call)
			call.end(c.outcome(call, err))
			if id == c.readTurn.leader {
				c.stopLeader() // no reply would end its read
			}
		}
	}
	c.numbers.wake()
}

// failRank ends the calls of a rank which has left, as the store does when it learns of that.
func (c *client) failRank(left *wire.Contribution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(ErrClosed, func(call *clientCall) bool {
		of := &call.req.Group
		return of.Generation == left.Generation && of.Rank == left.Rank
	})
}

// outcome is the error of call when the connection ended with err: unknown if call changes
// something and was sent.
func (c *client) outcome(call *clientCall, err error) error {
	if call.conn == nil || !call.req.Op.Numbered() {
		return err
	}
	return unknownOutcome(err)
}

func (call *clientCall) end(err error) {
	call.err = err
	call.done <- struct{}{} // the caller owns call from here on
}

// Close says goodbye and waits, for at most goodbyeTimeout, until the server has received it: its
// ranks have then left, and have not failed. Calls in progress end at once; later replies to them
// are dropped.
func (c *client) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.failAll(ErrClosed)
	c.health.timer.Stop()
	c.readTurn.idle.Stop()
	l := c.conn
	c.mu.Unlock()
	if first {
		c.cancel()
		if l == nil {
			close(c.ended)
		} else {
			l.send(&wire.Request{Op: wire.OpGoodbye})
			l.out.Flush()
			c.drain(l)
		}
	}
	<-c.ended
	c.readTurn.wg.Wait()
	if l != nil {
		l.pipe.Done()
	}
	return nil
}
