package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/wire"
)

// engineSession is a session on an engine that is no Memory: each of its calls has a goroutine, since it may wait. It
// outlives its connections; the server ends it when it is lost.
type engineSession struct {
	engine  Engine
	id      uint64
	ctx     context.Context // until the session ends
	cancel  context.CancelFunc
	running sync.WaitGroup

	order sync.Mutex // held while a numbered request is carried out: they have an order

	mu      sync.Mutex // protects the fields below
	conn    *conn      // nil while it has none
	cancels map[uint64]context.CancelFunc
	lost    *time.Timer // runs while it has none
}

// mostCalls bounds the calls of one connection that run at once, mostQuick those that need not wait: each
// has its answer in memory.
const (
	mostCalls = 4096
	mostQuick = 16
)

// serveEngine serves c from any engine.
func (c *conn) serveEngine(e Engine, buf []byte) error {
	var welcome wire.Reply
	if err := e.Do(context.Background(), &c.hello, &welcome); err != nil {
		return err
	}
	if welcome.Code != wire.CodeOK {
		return CodeError(welcome.Code)
	}
	s := c.server.engineSession(e, uint64(welcome.N))
	if !s.take(c, &welcome) {
		return net.ErrClosed // it ended just now: the client comes again
	}
	c.out.Flush()
	err := s.stay(&welcome)
	if err == nil {
		err = s.run(c, buf)
	}
	c.server.letGo(s, c, err)
	return err
}

// engineSession finds a session that is taken up again, or makes it.
func (s *Server) engineSession(e Engine, id uint64) *engineSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	es := s.sessions[id]
	if es == nil {
		es = &engineSession{engine: e, id: id, cancels: map[uint64]context.CancelFunc{}}
		es.ctx, es.cancel = context.WithCancel(context.Background())
		s.sessions[id] = es
	}
	return es
}

// letGo ends a session whose connection is over, at once or when its time to come back has passed.
func (s *Server) letGo(es *engineSession, c *conn, err error) {
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.conn != c {
		return
	}
	es.conn = nil
	req := wire.Request{Op: wire.OpLost, Session: es.id, TTL: c.grace()}
	if errors.Is(err, errDone) {
		req = wire.Request{Op: wire.OpGoodbye, Session: es.id}
	}
	_ = es.engine.Do(context.Background(), &req, new(wire.Reply))
	if req.TTL == 0 {
		go s.forgetSession(es)
		return
	}
	es.lost = time.AfterFunc(req.TTL, func() { s.forgetSession(es) })
}

// forgetSession takes out a session that has ended. That its calls are cancelled after that is nothing the engine hears as a cancel.
func (s *Server) forgetSession(es *engineSession) {
	es.mu.Lock()
	back := es.conn != nil
	if !back {
		es.cancel()
	}
	es.mu.Unlock()
	if back {
		return
	}
	s.mu.Lock()
	if s.sessions[es.id] == es {
		delete(s.sessions, es.id)
	}
	s.mu.Unlock()
	es.running.Wait()
}

// lose tells the engine that the session is lost.
func (s *engineSession) lose() {
	_ = s.engine.Do(context.Background(), &wire.Request{Op: wire.OpLost, Session: s.id}, new(wire.Reply))
	s.mu.Lock()
	s.conn = nil
	s.mu.Unlock()
}

// take makes c the connection of s, unless s has ended. No request of the one before it is begun any more, and no answer
// comes before the welcome.
func (s *engineSession) take(c *conn, welcome *wire.Reply) bool {
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return false
	}
	before := s.conn
	s.conn = c
	c.session.Store(s.id)
	c.greet(welcome)
	if s.lost != nil {
		s.lost.Stop()
	}
	s.mu.Unlock()
	if before != nil {
		before.close()
	}
	return true
}

// stay takes the session up once more: the end of its last connection may have come to the engine behind the hello, whose grace would
// run though there is a connection.
func (s *engineSession) stay(welcome *wire.Reply) error {
	again := wire.Request{Op: wire.OpHello, Resume: s.id, Rev: welcome.Rev, Value: welcome.Value}
	var rep wire.Reply
	if err := s.engine.Do(context.Background(), &again, &rep); err != nil {
		return err
	}
	if id := uint64(rep.N); id != s.id { // it was lost just now, and this is nobody's
		_ = s.engine.Do(context.Background(), &wire.Request{Op: wire.OpGoodbye, Session: id}, new(wire.Reply))
		return net.ErrClosed
	}
	return nil
}

// has reports whether c still is the connection of s.
func (s *engineSession) has(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn == c
}

// run starts calls until the connection ends.
func (s *engineSession) run(c *conn, buf []byte) error {
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
			return err
		}
		switch c.req.Op {
		case wire.OpGoodbye:
			return errDone
		case wire.OpCancel:
			s.withdraw(c.req.ID)
			continue
		case wire.OpProbe:
			continue
		}
		if err := s.start(c, quick); err != nil {
			return err
		}
	}
}

// start starts the call that c has read.
func (s *engineSession) start(c *conn, quick chan struct{}) error {
	denied := c.refusal()
	if c.req.Number != 0 || denied != "" {
		s.order.Lock()
		defer s.order.Unlock()
		if !s.has(c) {
			return net.ErrClosed
		}
		if denied != "" {
			return s.refuse(c, denied)
		}
		c.req.Session = s.id
		s.do(s.ctx, &c.req, func() {})
		return nil
	}
	call, ok := s.begin(c)
	if !ok {
		return nil
	}
	req := own(&c.req)
	req.Session = s.id
	waits := req.Op.Waits()
	if !waits {
		quick <- struct{}{}
	}
	s.running.Go(func() {
		s.do(call, req, func() { s.end(req.ID) })
		if !waits {
			<-quick
		}
	})
	return nil
}

// refuse answers a request that the peer has no right to.
func (s *engineSession) refuse(c *conn, why string) (err error) {
	c.refuse(wire.CodeDenied, why, s.id, func(req *wire.Request, rep *wire.Reply) { err = s.engine.Do(s.ctx, req, rep) })
	c.out.Flush()
	return err
}

// begin makes a call's context, unless it is under way, or there are too many.
func (s *engineSession) begin(c *conn) (call context.Context, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.req.ID
	switch {
	case s.conn != c || s.cancels[id] != nil: // after a reconnect a call that waits comes again
		return nil, false
	case len(s.cancels) >= mostCalls:
		c.reply(c.req.Op, id, &wire.Reply{Code: wire.CodeFull, Detail: fmt.Sprintf("the limit is %d calls at once", mostCalls)})
		c.out.Flush()
		return nil, false
	}
	call, s.cancels[id] = context.WithCancel(s.ctx)
	return call, true
}

// end takes out a call. Called with mu.
func (s *engineSession) end(id uint64) {
	s.cancels[id]()
	delete(s.cancels, id)
}

func (s *engineSession) withdraw(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[id]; cancel != nil {
		cancel()
	}
}

// do has the engine carry out a request, and answers it on the connection that the session has when it ends: whoever asks on a later one
// begins it again. If it has none, it will be asked again.
func (s *engineSession) do(ctx context.Context, req *wire.Request, end func()) {
	var rep wire.Reply
	if err := s.engine.Do(ctx, req, &rep); err != nil {
		rep = wire.Reply{Code: failureCode(err), Detail: err.Error()}
		if e, ok := errors.AsType[*Error](err); ok {
			rep = wire.Reply{Code: e.Code, Detail: e.Detail, Verdict: e.Verdict}
		}
	}
	s.mu.Lock()
	c := s.conn
	end()
	s.mu.Unlock()
	if c != nil && s.ctx.Err() == nil { // otherwise the session is over, and what the engine says of that is not for its peer
		c.reply(req.Op, req.ID, &rep)
		c.out.Flush()
	}
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
