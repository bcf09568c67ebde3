package tcpstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// requestTimeout is the time limit of the store for an operation that does not wait. It is up to half as
// long again if a context is used again.
const requestTimeout = 20 * time.Second

// peer is a connection of a client. Requests that do not wait are carried out by the reader: one
// loop for many connections, or a separate goroutine (see serve.go). A request that waits has a
// goroutine.
type peer struct {
	store.ProtocolConn
	protocol *Protocol
	pid      atomic.Uint32           // as the client says; 0: not yet
	process  atomic.Pointer[process] // nil: not yet known
	awaited  atomic.Pointer[keyWait] // nil: it has been answered
	out      outbox
	stall    stall
	life     context.Context // ends with the connection
	fail     context.CancelCauseFunc
	running  sync.WaitGroup

	// The fields below belong to the reader, or to the goroutine that carries out a long request in
	// its place.
	in       inbox
	quick    bool // other connections wait: a long request returns errLong
	req      tcpwire.Request
	answered tcpwire.Op
	rep      tcpwire.Reply
	encode   func(b []byte) []byte // appends the answer rep to answered
	soon     context.Context       // for operations that do not wait
	forget   context.CancelFunc
	began    time.Time    // when soon was made
	waiting  *waiting     // the most recent WAIT or BARRIER
	sent     int          // values sent of a MULTI_GET that is not finished
	ranks    map[int]bool // the ranks of the client, by the keys that it has changed
	lease    uint64       // of the keys that end with the client; 0: it has set none
	question question
}

// requestLimits bound a client's message. The store's own limits also apply.
var requestLimits = tcpwire.Limits{Value: wire.MaxValue}

func newPeer(ctx context.Context, p *Protocol, v *store.ProtocolConn) *peer {
	peer := &peer{ProtocolConn: *v, protocol: p, in: inbox{Inbox: transport.Inbox{First: largeMessage, Budget: v.Buffers}, limits: requestLimits}}
	peer.in.Advance(copy(peer.in.Room(v.First, 0), v.First))
	peer.Logger = cmp.Or(peer.Logger, slog.New(slog.DiscardHandler))
	peer.life, peer.fail = context.WithCancelCause(ctx)
	peer.forget = func() {}
	peer.encode = func(b []byte) []byte { return tcpwire.AppendReply(b, peer.answered, &peer.rep) }
	return peer
}

// mostTurn is how long a client that sends requests without waiting for answers may delay other
// connections.
const mostTurn = time.Millisecond

// carryOutAll carries out the complete requests; need is the number of bytes that the next one
// takes. If other connections wait, it stops before a long request, after mostTurn, and when the
// client must read first.
func (p *peer) carryOutAll() (need int, long bool, err error) {
	var began time.Time // when the second request began: there is seldom one
	for n := 0; ; n++ {
		message, need, err := p.in.next(tcpwire.NextRequest)
		if err != nil || message == nil {
			return need, false, err
		}
		switch {
		case n == 1:
			began = time.Now()
		case n > 1 && p.quick && time.Since(began) > mostTurn:
			return 0, true, nil
		}
		if err = p.carryOut(message); errors.Is(err, errLong) {
			return 0, true, nil
		}
		if p.in.Take(len(message)) { // the request would keep its memory
			p.req, p.question = tcpwire.Request{}, question{}
		}
		if waiting, _ := p.out.Backlog(); err == nil && waiting > piece {
			p.flush() // the socket often takes all: then this was not long
			err = p.waitForSpace()
		}
		if errors.Is(err, errLong) {
			return 0, true, nil
		}
		if err != nil {
			return 0, false, err
		}
	}
}

// errLong is returned by a handler that would delay other connections. The handler is called again
// on the connection's goroutine, and continues there.
var errLong = errors.New("this takes long")

// carryOut carries out one request.
func (p *peer) carryOut(message []byte) error {
	if err := p.req.Parse(message); err != nil {
		return err
	}
	ctx := context.Background() // the request does not block
	if !p.quick {
		ctx = p.soonCtx()
	}
	if err := handlers[p.req.Op](p, ctx, &p.req); err != nil {
		return fmt.Errorf("%v: %w", p.req.Op, err)
	}
	return nil
}

// soonCtx returns the context of an operation that the store must answer soon. One context serves
// many calls, since creating one costs more than a call.
func (p *peer) soonCtx() context.Context {
	if now := time.Now(); now.Sub(p.began) > requestTimeout/2 {
		p.forget()
		p.began = now
		p.soon, p.forget = context.WithTimeout(p.life, requestTimeout*3/2)
	}
	return p.soon
}

// answer queues the reply to a request. Only the reader calls it.
func (p *peer) answer(op tcpwire.Op, rep tcpwire.Reply) error {
	p.answered, p.rep = op, rep
	p.out.Append(p.encode)
	p.rep = tcpwire.Reply{} // it may have been large
	return nil
}

// send queues a message for the client and sends it. Any goroutine may call it.
func (p *peer) send(op tcpwire.Op, rep *tcpwire.Reply) {
	p.out.Append(func(b []byte) []byte { return tcpwire.AppendReply(b, op, rep) })
	p.flush()
}

// waiting is a request that waits.
type waiting struct {
	cancel context.CancelFunc
	// set before the client can see the answer, since it may send the next request at once
	answered atomic.Bool
	done     chan struct{} // closed when the answer is queued, or will not come
}

// over reports whether the client may start another wait.
func (w *waiting) over() bool { return w == nil || w.answered.Load() }

var errWaits = errors.New("the one before still waits")

// later answers op with the result of wait, and continues to read meanwhile. A wait that ends with
// its context is not answered.
func (p *peer) later(op tcpwire.Op, wait func(ctx context.Context) (answer int64, err error)) error {
	if !p.waiting.over() {
		return errWaits
	}
	ctx, cancel := context.WithCancel(p.life)
	w := &waiting{cancel: cancel, done: make(chan struct{})}
	p.waiting = w
	p.running.Go(func() {
		defer close(w.done)
		defer cancel()
		answer, err := wait(ctx)
		p.endWait(err == nil)
		switch {
		case err == nil:
			w.answered.Store(true)
			p.send(op, &tcpwire.Reply{N: answer})
		case ctx.Err() == nil:
			p.fail(fmt.Errorf("%v: %w", op, err))
		}
	})
	return nil
}

// cancelWait cancels the wait of the client. Its answer may already have been sent: the client
// reads both.
func (p *peer) cancelWait(context.Context, *tcpwire.Request) error {
	if w := p.waiting; w != nil {
		w.cancel()
		select {
		case <-w.done:
		default:
			if p.quick {
				return errLong
			}
			<-w.done
		}
		p.waiting = nil
	}
	return p.answer(tcpwire.OpCancelWait, tcpwire.Reply{N: tcpwire.WaitCanceled})
}
