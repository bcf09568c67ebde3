package etcdstore

import (
	"context"
	"errors"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// A change runs beside its caller, until its outcome is known: a caller whose time is over hears at once that it is unknown, and what is
// called after that begins when it is known. So nothing that was given up overtakes what came later.

// plan is one attempt at a change.
type plan struct {
	when   []cond // what it needs to be so
	then   []op
	orElse []op             // what to look at if it is not so
	how    string           // for the mark; "" leaves that alone
	left   *mvccpb.KeyValue // the entry that it leaves; nil if that is not to be known
	rep    wire.Reply       // the answer, once it is made; with neither when nor then it is the answer already
	// count completes the answer with what was made; nil if it is complete. Without a response the change was found made, at a revision.
	count func(ctx context.Context, rep *wire.Reply, resp *pb.TxnResponse, rev int64) error
}

// planner makes a plan, given what the last one's orElse has found; nil the first time.
type planner func(ctx context.Context, seen []*pb.ResponseOp) (*plan, error)

// outcome is how a change ended.
type outcome struct {
	rep wire.Reply
	err error
}

// change makes a change, once.
func (e *Engine) change(ctx context.Context, rep *wire.Reply, next planner) error {
	if err := e.settled(ctx); err != nil {
		return err
	}
	s, err := e.open(ctx)
	if err != nil {
		return err
	}
	sl, err := s.takeSlot(ctx)
	if err != nil {
		return err
	}
	done := make(chan outcome, 1)
	known := make(chan struct{})
	e.run(func() {
		defer close(known)
		o, over := s.carry(sl, next)
		if over {
			s.giveSlot(sl)
		}
		done <- o
	})
	overdue := time.NewTimer(e.o.Mend + e.o.Attempt)
	defer overdue.Stop()
	select {
	case o := <-done:
		*rep = o.rep
		return o.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-overdue.C:
		err = unavailable(errors.New("no answer"))
	}
	e.giveUp(known)
	return unknown(err)
}

// giveUp has what comes later wait until a change's outcome is known.
func (e *Engine) giveUp(known chan struct{}) {
	e.mu.Lock()
	e.givenUp[known] = struct{}{}
	e.mu.Unlock()
	e.run(func() {
		<-known
		e.mu.Lock()
		delete(e.givenUp, known)
		e.mu.Unlock()
	})
}

// settled waits until the outcome of all that was given up is known.
func (e *Engine) settled(ctx context.Context) error {
	e.mu.Lock()
	var waits []chan struct{}
	for known := range e.givenUp {
		waits = append(waits, known)
	}
	e.mu.Unlock()
	if len(waits) == 0 {
		return nil
	}
	overdue := time.NewTimer(e.o.Mend)
	defer overdue.Stop()
	for _, known := range waits {
		select {
		case <-known:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-overdue.C:
			return unavailable(errors.New("it does not tell what became of an earlier change"))
		}
	}
	return nil
}

// mostTries bounds how often a change is planned anew because somebody else was faster.
const mostTries = 500

// carry carries a change out in a slot. over is false if nobody knows its outcome: the session is lost, and the slot with it.
func (s *session) carry(sl *slot, next planner) (o outcome, over bool) {
	tried := map[string]*plan{}
	var seen []*pb.ResponseOp
	for try, pause := 0, 200*time.Microsecond; try < mostTries; try++ {
		p, err := next(s.ctx, seen)
		if err != nil {
			return outcome{err: err}, true
		}
		if len(p.then) == 0 {
			return outcome{rep: p.rep}, true
		}
		number := strconv.FormatUint(s.e.count.Add(1), 16)
		tried[number] = p
		resp, err := s.send(sl, number, p)
		switch {
		case is2(err, rpctypes.ErrGRPCLeaseNotFound):
			err := s.lossOr(s.ctx, &o.rep, "the lease has ended, or never was")
			return outcome{o.rep, err}, true
		case err != nil:
			var rep wire.Reply
			if err := answered(err, &rep); err != nil {
				return outcome{err: unknown(err)}, false
			}
			return outcome{rep: rep}, true
		case resp.Succeeded:
			sl.rev = resp.Header.Revision
			return p.made(s.ctx, resp, sl.rev), true
		}
		if kv := found(resp.Responses[0]); kv != nil {
			if sl.rev = kv.ModRevision; tried[string(kv.Value)] != nil {
				return tried[string(kv.Value)].made(s.ctx, nil, sl.rev), true
			}
		}
		if seen = resp.Responses[1:]; try > 2 {
			if err := rest(s.ctx, jitter(pause)); err != nil {
				return outcome{err: err}, true
			}
			pause = min(2*pause, 20*time.Millisecond)
		}
	}
	return outcome{rep: wire.Reply{Code: wire.CodeUnavailable, Detail: "too many others change it at the same time"}}, true
}

// send sends one attempt, again and again until it has an answer: only the first that arrives takes effect.
func (s *session) send(sl *slot, number string, p *plan) (resp *pb.TxnResponse, err error) {
	when := append([]cond{changedAt(sl.key, sl.rev)}, p.when...)
	then := []op{opPut(sl.key, number, s.lease)}
	if p.how != "" {
		then = append(then, opPut(s.e.root.mark(), p.how, 0))
	}
	then = append(then, p.then...)
	orElse := append([]op{opGet(sl.key)}, p.orElse...)
	for {
		resp, err = s.e.txn(s.ctx, when, then, orElse)
		if err == nil || !errors.Is(err, store.ErrUnavailable) || s.ctx.Err() != nil {
			return resp, err
		}
	}
}

// made is the outcome of a plan that was carried out.
func (p *plan) made(ctx context.Context, resp *pb.TxnResponse, rev int64) outcome {
	o := outcome{rep: p.rep}
	o.rep.Rev = uint64(rev)
	if p.count != nil {
		if resp != nil && p.how != "" {
			resp.Responses = resp.Responses[1:]
		}
		if resp != nil {
			resp.Responses = resp.Responses[1:]
		}
		o.err = p.count(ctx, &o.rep, resp, rev)
	}
	return o
}

// found is the one entry of a get within a transaction; nil if there was none.
func found(r *pb.ResponseOp) *mvccpb.KeyValue {
	if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

// keyLock is held by the one change of a key that is under way: those of one process do not compete.
type keyLock struct {
	turn  chan struct{}
	users int
	left  *mvccpb.KeyValue // the entry as the last one has left it; nil if nobody knows
}

// lock waits until no other change of key is under way. The lock is kept for the change, which may outlive its caller.
func (e *Engine) lock(ctx context.Context, key string) (*keyLock, error) {
	e.mu.Lock()
	l := e.locks[key]
	if l == nil {
		l = &keyLock{turn: make(chan struct{}, 1)}
		e.locks[key] = l
	}
	l.users++
	e.mu.Unlock()
	select {
	case l.turn <- struct{}{}:
		return l, nil
	case <-ctx.Done():
		e.unuse(key, l)
		return nil, context.Cause(ctx)
	}
}

func (e *Engine) unlock(key string, l *keyLock) {
	<-l.turn
	e.unuse(key, l)
}

func (e *Engine) unuse(key string, l *keyLock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(e.locks, key)
	}
}
