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

// peer is a connection of a client. One goroutine reads, and carries out what need not wait; what waits has one of its own.
type peer struct {
	protocol *Protocol
	store    *store.Store
	in       inbox
	out      outbox
	life     context.Context // until the connection ends
	fail     context.CancelCauseFunc
	running  sync.WaitGroup

	// Of the goroutine that reads:
	generation tcpstore.Generation
	req        tcpstore.Request
	soon       context.Context // for what need not wait; one serves many calls, since it costs more than they do
	forget     context.CancelFunc
	began      time.Time    // of soon
	waiting    *waiting     // WAIT or BARRIER, the last that there was
	watched    int          // keys
	ranks      map[int]bool // that the client has shown to be
	question   question
}

// serve serves the connection until it ends, or ctx.
func (p *peer) serve(ctx context.Context) error {
	p.life, p.fail = context.WithCancelCause(ctx)
	defer context.AfterFunc(p.life, func() { _ = p.in.conn.SetReadDeadline(time.Unix(1, 0)) })()
	err := p.run()
	p.fail(err)
	if p.forget != nil {
		p.forget()
	}
	p.running.Wait()
	p.disown()
	_ = p.out.flush() // what was answered before the end
	if ctx.Err() != nil {
		return net.ErrClosed
	}
	return context.Cause(p.life)
}

// run carries out what the client asks.
func (p *peer) run() error {
	if err := p.detect(); err != nil {
		return err
	}
	for {
		message, need, err := p.in.next(p.generation.NextRequest)
		if err == nil && message == nil {
			if err = p.out.flush(); err == nil {
				err = p.in.fill(need)
			}
		} else if err == nil {
			err = p.carryOut(message)
		}
		if err != nil {
			return err
		}
	}
}

// detect finds out which generation the client is of.
func (p *peer) detect() error {
	for {
		first := p.in.buf[p.in.r:p.in.w]
		n := min(len(first), len(tcpstore.Preface))
		switch {
		case string(first[:n]) != tcpstore.Preface[:n]:
			p.generation = p.protocol.Older
			return nil
		case n == len(tcpstore.Preface):
			p.generation = tcpstore.C
			return nil
		}
		if err := p.in.fill(n + 1); err != nil {
			return err
		}
	}
}

// carryOut carries out one request.
func (p *peer) carryOut(message []byte) error {
	if err := p.req.Parse(p.generation, message); err != nil {
		return err
	}
	if now := time.Now(); now.Sub(p.began) > patience/2 {
		if p.forget != nil {
			p.forget()
		}
		p.began = now
		p.soon, p.forget = context.WithTimeout(p.life, patience*3/2)
	}
	if err := handlers[p.req.Op](p, p.soon, &p.req); err != nil {
		return fmt.Errorf("%v: %w", p.req.Op, err)
	}
	if len(message) > mostRoom { // which the request, and the room for the next one, would keep
		p.req = tcpstore.Request{}
	}
	return nil
}

// answer queues the answer to a request.
func (p *peer) answer(op tcpstore.Op, rep tcpstore.Reply) error {
	return p.out.add(func(b []byte) []byte { return tcpstore.AppendReply(b, op, &rep) })
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
		if err == nil {
			w.answered.Store(true)
			if err = p.answer(op, tcpstore.Reply{N: answer}); err == nil {
				err = p.out.flush()
			}
		} else if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.fail(fmt.Errorf("%v: %w", op, err))
		}
	})
	return nil
}

// cancelWait gives up what waits. Its answer may be on its way already: the client reads both.
func (p *peer) cancelWait(context.Context, *tcpstore.Request) error {
	if w := p.waiting; w != nil {
		w.cancel()
		<-w.done
		p.waiting = nil
	}
	return p.answer(tcpstore.OpCancelWait, tcpstore.Reply{N: tcpstore.WaitCanceled})
}
