package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Lease is a set of entries (SetOptions.Lease) that are deleted when it ends. A goroutine that the
// Lease owns keeps it alive until Close. A lease ends when Close is called, here or of its Store,
// when the session of its Store ends, or when the store has received nothing of this process for
// the lease's time. A lease that has ended is never renewed.
//
// A process that was stopped may consider a lease alive that has ended. An operation under a lease
// is safe only if it carries ID as a fencing token: the resource must refuse an ID lower than one
// that it has seen.
type Lease struct {
	store  *Store
	id     uint64
	ttl    time.Duration
	cancel context.CancelFunc
	done   chan struct{} // closed when the lease has ended
	once   sync.Once
	err    error // why it has ended; set before done is closed
}

// Lease grants a lease that ends ttl after it was last kept alive, which happens three times in
// ttl. The time counts only while the store runs, so that ttl is a lower bound.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (*Lease, error) {
	var rep wire.Reply
	if err := s.Do(ctx, &wire.Request{Op: wire.OpGrant, TTL: min(ttl, maxTimeout)}, &rep); err != nil {
		return nil, err
	}
	l := &Lease{store: s, id: uint64(rep.N), ttl: ttl, done: make(chan struct{})}
	life, cancel := context.WithCancel(s.ctx)
	l.cancel = cancel
	go l.keepAlive(life)
	return l, nil
}

// foreign reports whether l belongs to another client or Memory than s: there its number means
// another lease.
func (l *Lease) foreign(s *Store) bool {
	a, known := sessionEngine(l.store.engine)
	b, too := sessionEngine(s.engine)
	return known && too && a != b
}

// sessionEngine returns the engine below prefixes, and whether it is one that has sessions.
func sessionEngine(e Engine) (_ Engine, ok bool) {
	for {
		switch p := e.(type) {
		case *prefixed:
			e = p.engine
		case *client, *Memory:
			return e, true
		default:
			return e, false
		}
	}
}

// ID returns the number of the lease, a fencing token: unique in the store, and higher than the IDs
// of earlier leases.
func (l *Lease) ID() uint64 { return l.id }

// Done returns a channel that is closed when the lease has ended, as far as this process knows. Err
// returns the reason.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err returns why the lease has ended: ErrClosed after Close. It returns nil before that.
func (l *Lease) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

// Close ends the lease. Its entries are deleted when it returns nil. It may be called twice.
func (l *Lease) Close(ctx context.Context) error {
	l.end(ErrClosed)
	err := l.store.Do(ctx, &wire.Request{Op: wire.OpRevoke, Lease: l.id}, new(wire.Reply))
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (l *Lease) end(err error) {
	l.once.Do(func() {
		l.err = err
		l.cancel()
		close(l.done)
	})
}

// keepAlive keeps the lease alive until it has ended.
func (l *Lease) keepAlive(life context.Context) {
	each := max(l.ttl/3, time.Millisecond)
	for answered := time.Now(); ; {
		select {
		case <-time.After(each):
		case <-life.Done():
			l.end(ErrClosed)
			return
		}
		ctx, cancel := context.WithTimeout(life, each)
		err := l.store.Do(ctx, &wire.Request{Op: wire.OpKeepAlive, Lease: l.id}, new(wire.Reply))
		cancel()
		switch {
		case err == nil:
			answered = time.Now()
		case life.Err() != nil:
			l.end(ErrClosed)
			return
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrClosed), errors.Is(err, ErrDenied), time.Since(answered) >= l.expiryLimit(err):
			l.end(err)
			return
		}
	}
}

// expiryLimit returns how long after the last successful keep-alive the lease counts as ended.
// While the store is only slow to answer, it may have been stopped, and the lease is alive.
func (l *Lease) expiryLimit(err error) time.Duration {
	if errors.Is(err, ErrUnavailable) {
		return l.ttl
	}
	return max(l.ttl, DefaultLivenessTimeout)
}
