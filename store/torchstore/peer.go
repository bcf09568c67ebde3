package torchstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// patience is how long the store may take for what need not wait, and half as long again if a context is used again.
const patience = 20 * time.Second

// peer is a connection of a client. What need not wait is carried out by who reads: one loop for many connections, or a goroutine of its
// own; see serve.go. What waits has a goroutine.
type peer struct {
	protocol *Protocol
	store    *store.Store
	addr     net.Addr
	out      outbox
	stall    stall
	life     context.Context // until the connection ends
	fail     context.CancelCauseFunc
	running  sync.WaitGroup
	kept     atomic.Int64 // bytes that watched keys hold

	// Of who reads, or does what takes long meanwhile:
	in         inbox
	quick      bool // others wait: what takes long is errLong
	generation tcpstore.Generation
	req        tcpstore.Request
	answered   tcpstore.Op
	rep        tcpstore.Reply
	encode     func(b []byte) []byte // appends the answer rep to answered
	soon       context.Context       // for what need not wait
	forget     context.CancelFunc
	began      time.Time    // of soon
	waiting    *waiting     // WAIT or BARRIER, the last that there was
	watched    int          // keys
	sent       int          // values of a MULTI_GET that is not finished
	ranks      map[int]bool // that the client has shown to be
	question   question
}

func newPeer(ctx context.Context, p *Protocol, v *store.ProtocolConn, limits tcpstore.Limits) *peer {
	peer := &peer{protocol: p, store: v.Store, addr: v.Conn.RemoteAddr(), in: inbox{limits: limits, buf: v.First, w: len(v.First)}}
	peer.life, peer.fail = context.WithCancelCause(ctx)
	peer.forget = func() {}
	peer.encode = func(b []byte) []byte { return tcpstore.AppendReply(b, peer.answered, &peer.rep) }
	return peer
}

// next is the next request that is whole.
func (p *peer) next() (message []byte, need int, err error) {
	if p.generation == 0 {
		if need := p.detect(); need > 0 {
			return nil, need, nil
		}
	}
	return p.in.next(p.generation.NextRequest)
}

// detect finds out which generation the client is of, or how many bytes that takes.
func (p *peer) detect() (need int) {
	first := p.in.buf[p.in.r:p.in.w]
	n := min(len(first), len(tcpstore.Preface))
	switch {
	case string(first[:n]) != tcpstore.Preface[:n]:
		p.generation = p.protocol.Older
	case n == len(tcpstore.Preface):
		p.generation = tcpstore.C
	default:
		return n + 1
	}
	return 0
}

// mostTurn is how long a client that asks one thing after the other, and waits for no answer, may keep others waiting.
const mostTurn = time.Millisecond

// carryOutAll carries out the requests that are whole; need is how many bytes it takes to go on. If others wait, it stops before what takes
// long, when many of them have, and when the client is to read first.
func (p *peer) carryOutAll() (need int, long bool, err error) {
	var began time.Time // of the second one: there is seldom any
	for n := 0; ; n++ {
		message, need, err := p.next()
		if err != nil || message == nil {
			return need, false, err
		}
		switch {
		case n == 1:
			began = time.Now()
		case n > 1 && p.quick && time.Since(began) > mostTurn:
			p.in.r -= len(message)
			return 0, true, nil
		}
		if err = p.carryOut(message); errors.Is(err, errLong) {
			p.in.r -= len(message)
			return 0, true, nil
		}
		if err == nil {
			err = p.roomy()
		}
		if errors.Is(err, errLong) {
			return 0, true, nil
		}
		if err != nil {
			return 0, false, err
		}
	}
}

// errLong is what a handler returns that would keep others waiting: it is called again, and goes on, when they need not wait.
var errLong = errors.New("this takes long")

// carryOut carries out one request.
func (p *peer) carryOut(message []byte) error {
	if err := p.req.Parse(p.generation, message); err != nil {
		return err
	}
	ctx := context.Background() // nothing waits
	if !p.quick {
		ctx = p.hasten()
	}
	if err := handlers[p.req.Op](p, ctx, &p.req); err != nil {
		return fmt.Errorf("%v: %w", p.req.Op, err)
	}
	if len(p.in.buf) > mostRoom { // which the request, and the room for the next one, would keep
		p.req, p.question = tcpstore.Request{}, question{}
	}
	return nil
}

// hasten is for what the store is to answer soon. One context serves many calls, since it costs more than they do.
func (p *peer) hasten() context.Context {
	if now := time.Now(); now.Sub(p.began) > patience/2 {
		p.forget()
		p.began = now
		p.soon, p.forget = context.WithTimeout(p.life, patience*3/2)
	}
	return p.soon
}

// answer queues the answer to a request, by who reads.
func (p *peer) answer(op tcpstore.Op, rep tcpstore.Reply) error {
	p.answered, p.rep = op, rep
	p.out.Append(p.encode)
	p.rep = tcpstore.Reply{} // it may have been a large one
	return nil
}

// tell queues something for the client, by anybody, and sends it.
func (p *peer) tell(op tcpstore.Op, rep *tcpstore.Reply) {
	p.out.Append(func(b []byte) []byte { return tcpstore.AppendReply(b, op, rep) })
	p.flush()
}

// waiting is a call that waits.
type waiting struct {
	cancel   context.CancelFunc
	answered atomic.Bool   // before the client can see it: it may ask the next thing at once
	done     chan struct{} // closed when the answer is queued, or there will be none
}

// over reports whether the client may wait for something else.
func (w *waiting) over() bool { return w == nil || w.answered.Load() }

var errWaits = errors.New("the one before still waits")

// later answers op with what wait returns, and meanwhile goes on reading. A wait that ends with its context is not answered.
func (p *peer) later(op tcpstore.Op, wait func(ctx context.Context) (answer int64, err error)) error {
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
		switch {
		case err == nil:
			w.answered.Store(true)
			p.tell(op, &tcpstore.Reply{N: answer})
		case ctx.Err() == nil:
			p.fail(fmt.Errorf("%v: %w", op, err))
		}
	})
	return nil
}

// cancelWait gives up what waits. Its answer may be on its way already: the client reads both.
func (p *peer) cancelWait(context.Context, *tcpstore.Request) error {
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
	return p.answer(tcpstore.OpCancelWait, tcpstore.Reply{N: tcpstore.WaitCanceled})
}
