package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/muster-pg/muster/wire"
)

// serveEngine serves c from any engine: each call has a goroutine, since it may wait.
func (c *conn) serveEngine(e Engine, buf []byte) error {
	ctx, cancel := context.WithCancel(context.Background())
	var rep wire.Reply
	if err := e.Do(ctx, &wire.Request{Op: wire.OpHello}, &rep); err != nil {
		cancel()
		return err
	}
	calls := &engineCalls{conn: c, engine: e, session: uint64(rep.N), cancels: map[uint64]context.CancelFunc{}}
	c.reply(wire.OpHello, c.id, &rep)
	c.out.Flush()
	how, err := calls.run(ctx, buf)
	// The session ends first, so that no call of it is cancelled: its ranks have left or are lost.
	_ = e.Do(context.Background(), &wire.Request{Op: how, Session: calls.session}, &rep)
	cancel()
	calls.running.Wait()
	return err
}

// engineCalls are the calls of one connection.
type engineCalls struct {
	conn    *conn
	engine  Engine
	session uint64
	running sync.WaitGroup

	mu      sync.Mutex // protects cancels
	cancels map[uint64]context.CancelFunc
}

// mostCalls bounds the calls of one connection that run at once, mostQuick those that need not wait: each
// has its answer in memory.
const (
	mostCalls = 4096
	mostQuick = 16
)

// run starts calls until the connection ends, and says how.
func (s *engineCalls) run(ctx context.Context, buf []byte) (how wire.Op, err error) {
	c := s.conn
	drained := make(chan struct{}, 1)
	c.out.Drained = func() {
		select {
		case drained <- struct{}{}:
		default:
		}
	}
	quick := make(chan struct{}, mostQuick)
	for {
		for c.out.Hold(unreadPause) {
			<-drained
		}
		if err := c.read(buf); err != nil {
			return wire.OpLost, err
		}
		switch c.req.Op {
		case wire.OpGoodbye:
			return wire.OpGoodbye, errDone
		case wire.OpHello:
			return wire.OpLost, wire.ErrUnknownOp
		case wire.OpCancel:
			s.cancel(c.req.ID)
			continue
		}
		call, ok := s.begin(ctx, c.req.ID)
		if !ok {
			c.reply(c.req.Op, c.req.ID, &wire.Reply{Code: wire.CodeTooLarge, Detail: fmt.Sprintf("the limit is %d calls at once", mostCalls)})
			c.out.Flush()
			continue
		}
		req := own(&c.req)
		req.Session = s.session
		waits := req.Op.Waits()
		if !waits {
			quick <- struct{}{}
		}
		s.running.Go(func() {
			s.do(call, req)
			if !waits {
				<-quick
			}
			if ctx.Err() == nil { // otherwise the session is over, and what the engine says of that is not for its peer
				c.out.Flush()
			}
		})
	}
}

// begin makes a call's context, unless there are too many.
func (s *engineCalls) begin(ctx context.Context, id uint64) (call context.Context, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cancels) >= mostCalls || s.cancels[id] != nil {
		return nil, false
	}
	call, s.cancels[id] = context.WithCancel(ctx)
	return call, true
}

func (s *engineCalls) cancel(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[id]; cancel != nil {
		cancel()
	}
}

func (s *engineCalls) do(ctx context.Context, req *wire.Request) {
	var rep wire.Reply
	if err := s.engine.Do(ctx, req, &rep); err != nil {
		rep = wire.Reply{Code: failureCode(err), Detail: err.Error()}
		if e, ok := errors.AsType[*Error](err); ok {
			rep = wire.Reply{Code: e.Code, Detail: e.Detail, Verdict: e.Verdict}
		}
	}
	s.mu.Lock()
	cancel := s.cancels[req.ID]
	delete(s.cancels, req.ID)
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	s.conn.reply(req.Op, req.ID, &rep)
}

// own is req in memory of its own: the buffer that it was parsed from is used again.
func own(req *wire.Request) *wire.Request {
	r := *req
	r.Key = strings.Clone(r.Key)
	r.Keys = slices.Clone(r.Keys)
	for i, k := range r.Keys {
		r.Keys[i] = strings.Clone(k)
	}
	r.Value, r.Old = bytes.Clone(r.Value), bytes.Clone(r.Old)
	c := &r.Group
	for _, s := range []*string{&c.Group, &c.Run, &c.Channel, &c.Verb, &c.Type, &c.Label, &c.Reason} {
		*s = strings.Clone(*s)
	}
	return &r
}
