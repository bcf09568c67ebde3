package pgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/hostmem"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

const (
	// leaveWait is how long Close and Abort of a group wait for the store's answer: without it, the
	// store finds the end of the session.
	leaveWait = time.Second
	// closeWait is how long Close of a channel waits for the store's answer. The group goes on, with a
	// store that is busy, or that a client reconnects to.
	closeWait = 10 * time.Second
	// drainWait is how long the last Close on the host waits for its clients to disconnect.
	drainWait = 10 * time.Second
	// shutdownChannel is the channel of Shutdown, which must not take a number of another channel.
	shutdownChannel = "\x00shutdown"
)

// membership is one rank's slot in one generation of a group. The handles of its channels share it.
type membership struct {
	cfg        Config // with defaults; Name, Run, Rank and Size are of the group that was created first
	name, run  string
	rank, size int
	generation uint64
	id         uint64       // of the generation in traces
	local      wire.RankSet // the ranks on this rank's node
	nodes      int
	host       int // the rank that hosts the store; -1: none of the group does
	shared     *sharedStore
	store      *store.Store
	prefixed   *store.Store // below the prefix of this generation
	closing    atomic.Bool  // Close has begun; set with lock held
	closeOnce  sync.Once
	reports    *reporter // which the groups that were made of this one share

	lock         sync.Mutex // protects the fields below; not held during I/O
	shuttingDown bool       // Shutdown has begun, so the end of the host is expected
	members      []Member   // by rank; nil until they are known
	revocation   *RankError // why the generation was revoked, as far as this rank knows
	channels     map[string]*Group
	closedNames  hostmem.Closed
	uses         map[string]int  // of each Sub, so that the same name and ranks make another group
	stopReports  func()          // nil until report
	ctx          context.Context // what Context returns; nil until its first call
	cancel       context.CancelCauseFunc
	wg           sync.WaitGroup
}

// request returns a Contribution in the name of this rank.
func (s *membership) request() wire.Contribution {
	return wire.Contribution{Generation: s.generation, Rank: s.rank}
}

// groupContext implements Group.Context. A goroutine waits until the store reports that the
// generation is revoked.
func (s *membership) groupContext() context.Context {
	g := s.handle("")
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.ctx != nil {
		return s.ctx
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if s.hasClosed() {
		s.cancel(g.closedError(""))
		return s.ctx
	}
	ctx, cancel := s.ctx, s.cancel
	s.wg.Go(func() {
		err := g.asRankError("", 0, s.store.Follow(ctx, s.request()))
		s.lock.Lock()
		defer s.lock.Unlock()
		if !s.shuttingDown || !errors.Is(err, ErrLeft) { // Close cancels with its own cause
			cancel(err)
		}
	})
	return ctx
}

// revokedBy returns the failure that revoked the generation, if this rank knows of one.
func (s *membership) revokedBy() *RankError {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.revocation
}

// noteRevocation keeps the failure that revoked the generation, for operations that the store does
// not decide.
func (s *membership) noteRevocation(re *RankError) {
	switch re.Code {
	case wire.CodeLost, wire.CodeMismatch, wire.CodeAborted, wire.CodeUnavailable:
	default:
		return
	}
	s.lock.Lock()
	first := s.revocation == nil
	if first {
		s.revocation = re
	}
	s.lock.Unlock()
	if first {
		s.leaveMemory()
	}
}

// leave notifies the store that this rank leaves. If the store cannot be reached, it detects the end
// of the session itself.
func (s *membership) leave(c wire.Contribution) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	if err := s.store.Leave(ctx, c); err != nil {
		s.handle("").log.Debug("the store did not receive that this rank leaves", "err", err)
	}
}

func (s *membership) shutdown(ctx context.Context) error {
	ctx, cancel := s.cfg.withDefaultTimeout(ctx, time.Now())
	defer cancel()
	s.lock.Lock()
	s.shuttingDown = true
	s.lock.Unlock()
	cl, err := s.handle(shutdownChannel).begin(&wire.Contribution{Verb: "shutdown", Root: -1, Want: wire.WantNothing})
	if err != nil {
		return err
	}
	_, err = cl.vote(ctx, nil)
	cl.end()
	// Late callers still get the answers that are in flight.
	drain, stop := context.WithTimeout(context.WithoutCancel(ctx), store.ResultGrace)
	defer stop()
	if ctx.Err() == nil {
		drain = ctx
	}
	return errors.Join(err, s.closeWithin(drain))
}

// closeWithin leaves the group and releases its store, once. The last handle drains a server until ctx
// ends.
func (s *membership) closeWithin(ctx context.Context) (err error) {
	s.closeOnce.Do(func() {
		s.lock.Lock()
		s.closing.Store(true)
		cancel, stopReports := s.cancel, s.stopReports
		s.lock.Unlock()
		if stopReports != nil {
			stopReports()
		}
		start := trace.Now(s.cfg.sink)
		s.leaveMemory()      // ranks that wait in it for this one go on at the store
		s.leave(s.request()) // this ends the pending calls of this rank too
		if cancel != nil {
			cancel(s.handle("").closedError(""))
		}
		s.wg.Wait()
		s.reports.leave(s)
		s.closeMemory()
		s.handle("").traceOp(context.Background(), "close", start, 0, nil)
		s.cfg.file.release(&s.cfg)
		err = s.shared.release(ctx)
	})
	return err
}

// hasClosed reports whether Close of the group has begun.
func (s *membership) hasClosed() bool { return s.closing.Load() }

func (s *membership) rankError(op string, v *wire.Failure, err error) *RankError {
	return &RankError{Op: op, Group: s.name, Rank: s.rank, Size: s.size, Failure: v, Err: err}
}

// failureOf returns the failure for a store's error that carries none, with the rank at fault if it
// is known.
func (s *membership) failureOf(e *store.Error) *wire.Failure {
	v := &wire.Failure{Code: code(e), By: -1, Reason: e.Detail}
	gone := isGone(v.Code) // the connection broke, or the server said goodbye
	failed := ""
	if e.Reason == wire.ReasonDisk {
		failed = ": " + e.Detail
	}
	switch {
	case errors.Is(e, store.ErrSessionLost): // the other ranks get this failure, too
		v.Code, v.Lost, v.Reason = wire.CodeLost, []int{s.rank}, "its session has expired: it was disconnected, or sent nothing, for too long"
	case gone && s.host >= 0 && v.Code == wire.CodeLeft:
		v.Left, v.Reason = []int{s.host}, "it hosted the store at "+s.shared.addr
	case gone && s.host >= 0:
		v.Code, v.Lost, v.Reason = wire.CodeLost, []int{s.host}, "it hosted the store at "+s.shared.addr+failed
	case gone:
		v.Code, v.Reason = wire.CodeUnavailable, s.shared.name()+" has ended"+failed
	case v.Code == wire.CodeTimeout || v.Code == wire.CodeCancelled:
		v.Reason = fmt.Sprintf("no answer from the store at %s: outcome unknown", s.shared.addr)
		if e.Detail != "" { // the state of the connection
			v.Reason += ": " + e.Detail
		}
	}
	return v
}

// clip shortens s to at most n bytes, at the end of a character.
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
