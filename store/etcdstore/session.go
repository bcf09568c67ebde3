package etcdstore

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/wire"
)

// session is this process as etcd knows it: a lease, which a goroutine of the engine keeps alive. What is put under it goes with it, and
// nothing can be put under it once it has ended: that is what fences a process that was lost.
type session struct {
	e     *Engine
	lease clientv3.LeaseID
	ctx   context.Context // until it is lost, or the engine closed
	end   context.CancelCauseFunc

	slots chan struct{} // has one for each that is in use

	mu     sync.Mutex // protects the fields below
	free   []*slot
	made   int
	leases map[uint64]*lease
	seats  map[seatKey]*seat
}

// seatKey is a rank of a generation.
type seatKey struct {
	gen  uint64
	rank int
}

// mostSlots bounds the changes of a session that are under way at once.
const mostSlots = 64

// open is the session, which the first call that needs one opens.
func (e *Engine) open(ctx context.Context) (*session, error) {
	if s := e.current(); s != nil {
		return s, nil
	}
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if s := e.current(); s != nil {
		return s, nil
	}
	id, ttl, err := e.newLease(ctx, e.o.Session)
	if err != nil {
		return nil, err
	}
	s := &session{e: e, lease: id, slots: make(chan struct{}, mostSlots), leases: map[uint64]*lease{}, seats: map[seatKey]*seat{}}
	s.ctx, s.end = context.WithCancelCause(e.life)
	e.mu.Lock()
	e.session = s
	e.mu.Unlock()
	e.run(func() { e.keepAlive(s.ctx, id, ttl, s.lost) })
	return s, nil
}

func (e *Engine) current() *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.session
}

// newLease makes a lease of etcd's own, which lives for at least ttl.
func (e *Engine) newLease(ctx context.Context, ttl time.Duration) (id clientv3.LeaseID, granted time.Duration, err error) {
	err = e.again(ctx, func(ctx context.Context, t *term) error {
		resp, err := t.client.Grant(ctx, int64(seconds(ttl)/time.Second))
		if err == nil {
			id, granted = resp.ID, time.Duration(resp.TTL)*time.Second
		}
		return err
	})
	return id, granted, err
}

// keepAlive keeps a lease alive until ctx ends, and calls over if etcd says that it has ended. While etcd says nothing nobody knows.
func (e *Engine) keepAlive(ctx context.Context, id clientv3.LeaseID, ttl time.Duration, over func()) {
	for pause := ttl / 3; rest(ctx, pause) == nil; {
		err := e.renew(ctx, id)
		switch {
		case err == nil:
			pause = ttl / 3
		case is(err, rpctypes.ErrGRPCLeaseNotFound):
			over()
			return
		default:
			pause = ttl / 20
		}
	}
}

// renew begins the time of a lease anew.
func (e *Engine) renew(ctx context.Context, id clientv3.LeaseID) error {
	return e.once(ctx, func(ctx context.Context, t *term) error {
		_, err := t.client.KeepAliveOnce(ctx, id)
		return err
	})
}

// ended asks whether a lease has ended.
func (e *Engine) ended(ctx context.Context, id clientv3.LeaseID) (bool, error) {
	left, err := e.timeToLive(ctx, id)
	return left < 0, err
}

// timeToLive is what is left of a lease; below 0 if it has ended.
func (e *Engine) timeToLive(ctx context.Context, id clientv3.LeaseID) (left time.Duration, err error) {
	err = e.again(ctx, func(ctx context.Context, t *term) error {
		resp, err := t.client.TimeToLive(ctx, id)
		if err == nil {
			left = time.Duration(resp.TTL) * time.Second
		}
		return err
	})
	return left, err
}

// endLease ends a lease of etcd's own, with what is under it.
func (e *Engine) endLease(ctx context.Context, id clientv3.LeaseID) error {
	err := e.again(ctx, func(ctx context.Context, t *term) error {
		_, err := t.client.Revoke(ctx, id)
		return err
	})
	if is2(err, rpctypes.ErrGRPCLeaseNotFound) {
		return nil
	}
	return err
}

func isLeaseGone(err error) bool { return is2(err, rpctypes.ErrGRPCLeaseNotFound) }

func is2(err, target error) bool { return err != nil && is(err, target) }

// lost ends a session: its calls hear it, and the next one opens another.
func (s *session) lost() {
	s.e.o.Logger.Warn("etcd: this session is lost", "session", int64(s.lease))
	s.end(errSession)
	s.e.mu.Lock()
	if s.e.session == s {
		s.e.session = nil
	}
	s.e.mu.Unlock()
}

// within is ctx, until s is lost.
func (s *session) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// goodbye tells etcd that s has ended: its ranks have left.
func (s *session) goodbye(ctx context.Context) {
	for _, st := range s.held() {
		_ = st.leave(ctx)
	}
	s.mu.Lock()
	leases := slices.Collect(maps.Values(s.leases))
	s.mu.Unlock()
	for _, l := range leases {
		_ = l.revoke(ctx)
	}
	_ = s.e.endLease(ctx, s.lease)
}

// held are the seats that s holds.
func (s *session) held() (seats []*seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.seats {
		seats = append(seats, st)
	}
	return seats
}

// slot is a place in which a session makes one change after the other. Each puts its number there, and asks that the number before is
// still there: so it takes effect once, however often it is sent, and whenever it arrives.
type slot struct {
	key string
	rev int64 // of what was put there last; 0 is nothing
}

// takeSlot waits for a slot that is free.
func (s *session) takeSlot(ctx context.Context) (*slot, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		sl := s.free[n-1]
		s.free = s.free[:n-1]
		return sl, nil
	}
	s.made++
	return &slot{key: s.e.root.slot(s.lease, s.made)}, nil
}

// giveSlot gives back a slot whose last change has an outcome.
func (s *session) giveSlot(sl *slot) {
	s.mu.Lock()
	s.free = append(s.free, sl)
	s.mu.Unlock()
	<-s.slots
}

// lossOr is the error of a call whose etcd lease was not found: that of the session, if that is it.
func (s *session) lossOr(ctx context.Context, rep *wire.Reply, format string, args ...any) error {
	over, err := s.e.ended(ctx, s.lease)
	switch {
	case err != nil:
		return err
	case over:
		s.lost()
		return errSession
	}
	return refuse(rep, wire.CodeNotFound, format, args...)
}
