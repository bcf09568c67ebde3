package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Lease holds entries (SetOptions.Lease): they go when it ends. It is kept alive until Close, by a goroutine
// that the Lease owns. It ends when Close is called, here or of its Store, when the session of its Store ends, when nothing was heard of this process
// for the lease's time, and never twice.
//
// A process that was stopped may believe in a lease that has ended. Whatever is done under a lease is
// safe only if it carries ID: whoever guards the thing refuses an ID that is lower than one it has seen.
type Lease struct {
	store  *Store
	id     uint64
	ttl    time.Duration
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	once   sync.Once
	err    error // why, after done
}

// Lease makes a lease that ends ttl after it was last kept alive, which happens three times as often. ttl is a lower bound, in time
// that the store is running.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (*Lease, error) {
	var rep wire.Reply
	if err := s.Do(ctx, &wire.Request{Op: wire.OpGrant, TTL: min(ttl, ages)}, &rep); err != nil {
		return nil, err
	}
	l := &Lease{store: s, id: uint64(rep.N), ttl: ttl, done: make(chan struct{})}
	life, cancel := context.WithCancel(s.life)
	l.cancel = cancel
	go l.keep(life)
	return l, nil
}

// foreign reports whether l is of another client, or of another Memory, than s: what has the same number there is another lease.
func (l *Lease) foreign(s *Store) bool {
	a, b := base(l.store.engine), base(s.engine)
	switch a.(type) {
	case *client, *Memory:
	default:
		return false
	}
	switch b.(type) {
	case *client, *Memory:
		return a != b
	}
	return false
}

// base is the engine below prefixes.
func base(e Engine) Engine {
	for {
		switch p := e.(type) {
		case *prefixed:
			e = p.engine
		case *owner:
			e = p.engine
		default:
			return e
		}
	}
}

// ID is a number that no other lease of the store has; later ones are higher: a fencing token.
func (l *Lease) ID() uint64 { return l.id }

// Done is closed when the lease has ended, as far as this side knows; Err says why.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err is why the lease has ended: ErrClosed after Close; nil while it has not.
func (l *Lease) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

// Close ends the lease: its entries are gone when it returns without an error. It may be called twice.
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

// keep keeps the lease alive until it has ended.
func (l *Lease) keep(life context.Context) {
	each := max(l.ttl/3, time.Millisecond)
	for heard := time.Now(); ; {
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
			heard = time.Now()
		case life.Err() != nil:
			l.end(ErrClosed)
			return
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrClosed), errors.Is(err, ErrDenied), time.Since(heard) >= l.patience(err):
			l.end(err)
			return
		}
	}
}

// patience is for how long the store need not be heard until the lease counts as ended. A store that only says nothing may have stood
// still, and then the lease lives.
func (l *Lease) patience(err error) time.Duration {
	if errors.Is(err, ErrUnavailable) {
		return l.ttl
	}
	return max(l.ttl, DefaultLivenessTimeout)
}
