package pgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

const (
	// leaveWait is how long Close and Abort wait for the store to hear of it.
	leaveWait = time.Second
	// drainWait is how long the last Close on the host waits for its peers to hang up.
	drainWait = 10 * time.Second
	// shutdownChannel is where Shutdown meets: it must not disturb the order of other verbs.
	shutdownChannel = "\x00shutdown"
)

// seat is one rank's place in one generation of a group. Its channels share it.
type seat struct {
	cfg        Config // with defaults; Name, Run, Rank and Size are those of the group first created
	name, run  string
	rank, size int
	generation uint64
	id         uint64   // of the trace, if there is one
	members    [][]byte // by rank, as appendMember made them; checked
	host       int      // the rank that hosts the store; -1 if none of the group does
	site       *site
	store      *store.Store

	closing chan struct{} // closed when Close begins
	closed  chan struct{} // closed when it has ended

	lock     sync.Mutex // protects the fields below; not held during I/O
	end      bool       // Close has begun
	parting  bool       // Shutdown has begun: that the host goes is as it should be
	over     *RankError // why the generation is over, as far as this rank has heard
	channels map[string]*Group
	uses     map[string]int // of each Sub, so that the same one again is another group
	prefixed *store.Store
	ctx      context.Context // what Context gives; nil until it is asked for
	cancel   context.CancelCauseFunc
	wg       sync.WaitGroup
}

// keys is the store below this generation's prefix.
func (s *seat) keys() *store.Store {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.prefixed == nil {
		s.prefixed = store.Prefix(s.store, fmt.Sprintf("%s/%d/", s.name, s.generation))
	}
	return s.prefixed
}

// request says which seat calls.
func (s *seat) request() wire.Contribution {
	return wire.Contribution{Generation: s.generation, Rank: s.rank}
}

// follow makes what Context gives: a goroutine waits until the store says that the generation is over.
func (s *seat) follow() context.Context {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.ctx != nil {
		return s.ctx
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if s.end {
		s.cancel(s.closedError(""))
		return s.ctx
	}
	ctx, cancel := s.ctx, s.cancel
	s.wg.Go(func() {
		err := s.fault("", "", 0, s.store.Follow(ctx, s.request()))
		s.lock.Lock()
		defer s.lock.Unlock()
		if !s.parting || !errors.Is(err, ErrLeft) { // Close says that it is over, then
			cancel(err)
		}
	})
	return ctx
}

// whyOver is the failure that ended the generation, if this rank has heard of one.
func (s *seat) whyOver() *RankError {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.over
}

// remember keeps the verdict that ends a generation for those verbs that the store does not decide.
func (s *seat) remember(re *RankError) {
	switch re.Code {
	case wire.CodeLost, wire.CodeMismatch, wire.CodeAborted, wire.CodeUnavailable:
	default:
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.over == nil {
		s.over = re
	}
}

func (s *seat) expire(ctx context.Context) (int, error) {
	if s.isClosed() {
		return 0, s.closedError("expire")
	}
	bounded, cancel := s.bound(ctx)
	defer cancel()
	start := trace.Now(s.cfg.sink)
	n, err := s.store.Expire(bounded, s.request())
	if err != nil {
		n, err = 0, s.fault("expire", "", 0, err)
	}
	if s.cfg.sink != nil {
		s.open("").tell(ctx, "expire", start, 0, err)
	}
	return n, err
}

func (s *seat) abort(cause error) {
	c := s.request()
	c.No, c.Reason = wire.CodeAborted, "no cause given"
	if cause != nil {
		c.Reason = clip(cause.Error(), wire.MaxKey)
	}
	start := trace.Now(s.cfg.sink)
	s.leave(c)
	if s.cfg.sink != nil {
		s.open("").tell(context.Background(), "abort", start, 0, cause)
	}
}

// leave tells the store. If that cannot be reached, it will notice.
func (s *seat) leave(c wire.Contribution) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	if err := s.store.Leave(ctx, c); err != nil {
		s.open("").log.Debug("the store did not hear that this rank leaves", "err", err)
	}
}

func (s *seat) shutdown(ctx context.Context) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	s.lock.Lock()
	s.parting = true
	s.lock.Unlock()
	cl := call{Group: s.open(shutdownChannel), c: wire.Contribution{Verb: "shutdown", Root: -1, Want: wire.WantNothing}}
	if err := cl.begin(); err != nil {
		return err
	}
	_, err := cl.cast(ctx, nil)
	cl.end()
	// Whoever is late still gets the answers that are under way.
	drain, stop := context.WithTimeout(context.WithoutCancel(ctx), store.Grace)
	defer stop()
	if ctx.Err() == nil {
		drain = ctx
	}
	return errors.Join(err, s.closeWithin(drain))
}

func (s *seat) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainWait)
	defer cancel()
	return s.closeWithin(ctx)
}

// closeWithin leaves the group, and lets go of what it meets through; the last one to do so drains it until ctx ends.
func (s *seat) closeWithin(ctx context.Context) error {
	s.lock.Lock()
	if s.end {
		s.lock.Unlock()
		<-s.closed
		return nil
	}
	s.end = true
	close(s.closing)
	cancel := s.cancel
	s.lock.Unlock()

	defer close(s.closed)
	start := trace.Now(s.cfg.sink)
	s.leave(s.request()) // ends this rank's own calls too
	if cancel != nil {
		cancel(s.closedError(""))
	}
	s.wg.Wait()
	if s.cfg.sink != nil {
		s.open("").tell(context.Background(), "close", start, 0, nil)
	}
	s.cfg.file.release(&s.cfg)
	return s.site.release(ctx)
}

func (s *seat) isClosed() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// closedError is the answer to a verb of a closed handle.
func (s *seat) closedError(op string) *RankError {
	return s.rankError(op, &wire.Failure{Code: wire.CodeClosed, By: -1, Reason: "this rank has closed it"}, ErrClosed)
}

func (s *seat) rankError(op string, v *wire.Failure, err error) *RankError {
	return &RankError{Op: op, Group: s.name, Rank: s.rank, Size: s.size, Failure: v, Err: err}
}

// fault is what the store's error means to a rank.
func (s *seat) fault(op, channel string, seq uint64, err error) error {
	if s.isClosed() {
		return s.closedError(op)
	}
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		err = fmt.Errorf("pgroup: %s of group %q on rank %d: %w", op, s.name, s.rank, err)
		s.open(channel).warn(op, err)
		return err
	}
	re := s.rankError(op, e.Failure, err)
	if re.Failure == nil {
		re.Failure = s.verdictOf(e)
	}
	re.Channel, re.Seq = channel, seq
	if channel == shutdownChannel {
		re.Channel, re.Seq = "", 0
	}
	s.remember(re)
	s.open(channel).warn(op, re)
	return re
}

// verdictOf is what an error means that is no verdict of the store: who is to blame, if that is known.
func (s *seat) verdictOf(e *store.Error) *wire.Failure {
	v := &wire.Failure{Code: code(e), By: -1, Reason: e.Detail}
	gone := isGone(v.Code) // the connection broke, or the server said goodbye
	switch {
	case errors.Is(e, store.ErrSession): // the others have been told so
		v.Code, v.Lost, v.Reason = wire.CodeLost, []int{s.rank}, "it was away, or silent, for too long; the others went on without it"
	case gone && s.host >= 0 && v.Code == wire.CodeLeft:
		v.Left, v.Reason = []int{s.host}, "it hosted the store at "+s.site.addr
	case gone && s.host >= 0:
		v.Code, v.Lost, v.Reason = wire.CodeLost, []int{s.host}, "it hosted the store at "+s.site.addr
	case gone:
		v.Code, v.Reason = wire.CodeUnavailable, s.site.addr+" is gone"
	case v.Code == wire.CodeTimeout || v.Code == wire.CodeCancelled:
		v.Reason = fmt.Sprintf("no answer from the store at %s: outcome unknown", s.site.addr)
	}
	return v
}

// clip shortens s to n bytes, at the end of a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const more = "…"
	n -= len(more)
	for n > 0 && s[n]&0xc0 == 0x80 { // amid a character
		n--
	}
	return s[:n] + more
}
