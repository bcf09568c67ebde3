package membership

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/muster-pg/muster/store"
)

// leader is the state of the worker that decides views. Each member has one; that of the live worker
// which registered first is active. Two may be active for a moment, when a worker was evicted and does
// not know it: the compare-and-swap in the store lets one of them create the next view.
type leader struct {
	*Member
	since   time.Time // when a change that requires a new view was first seen, with at least Min workers
	kept    uint64    // the generation whose retention was last renewed
	renewed time.Time
	// recorded is the generation up to which the history is written, as far as it could be; 0 if it is to be
	// written again.
	recorded uint64
}

// lead decides views while this member is the leader, until the member ends.
func (m *Member) lead() {
	const firstPause, mostPause = 20 * time.Millisecond, time.Second
	l := leader{Member: m}
	for pause := firstPause; m.life.Err() == nil; {
		wait, err := l.step(m.life)
		m.note(&m.undecided, err)
		if err != nil {
			m.sleep(pause)
			pause = min(2*pause, mostPause)
			continue
		}
		pause = firstPause
		select {
		case <-m.kick:
		case <-time.After(wait):
		case <-m.life.Done():
		}
	}
}

// step does what is due now. It returns after which time to call it again if nothing changes.
func (l *leader) step(ctx context.Context) (wait time.Duration, err error) {
	next, view, leads := l.plan()
	switch {
	case !leads:
		l.since, l.kept = time.Time{}, 0
		return retention, nil
	case next == nil:
		l.since = time.Time{}
		return retention / 3, l.tend(ctx, view)
	case len(next) < l.cfg.Min:
		l.since = time.Time{}
		l.record(ctx)
		return retention / 3, nil
	}
	if l.since.IsZero() {
		l.since = time.Now()
	}
	if left := time.Until(l.since.Add(l.cfg.Settle)); left > 0 && len(next) < l.cfg.Max {
		l.record(ctx)
		return left, nil
	}
	return retention / 3, l.decide(ctx)
}

// plan returns the workers of the next view, nil if they are those of the current view; the current
// view; and whether this member is the leader.
func (l *leader) plan() (next []*registration, view *record, leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, leads = l.elect(l.roster)
	if l.current != nil {
		view = &l.current.record
	}
	if !leads || view.holds(next) {
		next = nil
	}
	return next, view, leads
}

// elect reports whether this member is the first of the workers that agree with it, and if so returns
// those that a view of r has.
func (l *leader) elect(r *roster) (next []*registration, leads bool) {
	self := r.workers[l.self.key]
	if self == nil {
		return nil, false
	}
	for _, g := range r.workers { // all members do this at each change: sorting them would take far longer
		if g.rev < self.rev && g.agrees(self) {
			return nil, false
		}
	}
	live := r.inOrder(&l.self)
	return live[:min(len(live), l.cfg.Max)], true
}

// decide creates a view of the live workers. It reads the roster again, because the watch may be behind.
func (l *leader) decide(ctx context.Context) error {
	r, err := readRoster(ctx, l.store, &l.keys)
	if err != nil {
		return err
	}
	before := l.known()
	v := record{Run: rand.Text(), Generation: 1}
	var old []byte
	if r.view != nil {
		before, v.Run, old = r.view, r.view.Run, r.view.raw
	}
	if before != nil { // without r.view, the last worker to leave deleted it before this one joined: a new run begins
		v.Generation = before.Generation + 1
	}
	next, leads := l.elect(r)
	if !leads || len(next) < l.cfg.Min || before.holds(next) {
		return nil // the watch will bring the change that this read has seen
	}
	for _, g := range next {
		v.Slots = append(v.Slots, slot{g.Worker, g.key})
	}
	l.since = time.Time{}
	return l.create(ctx, &v, old)
}

// known returns the newest view that this member may take up: that of the roster with which it joined, until
// the watch has brought one. It is nil if there is none.
func (l *leader) known() *record {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		return l.roster.view
	}
	return &l.current.record
}

// create replaces the view old by v with a compare-and-swap. So a generation of a run is decided once,
// even by a leader that was evicted and does not know it. This member, too, takes v from the watch, which
// brings its own eviction first, if there was one.
func (l *leader) create(ctx context.Context, v *record, old []byte) error {
	ctx, cancel := lingering(ctx)
	defer cancel()
	return l.swap(ctx, v.Generation, old, v.encode(&l.keys))
}

// swap replaces old by view, which may be the same, and lets it expire after retention. If the view in
// the store is another one, it does nothing: another worker has decided.
func (l *leader) swap(ctx context.Context, generation uint64, old, view []byte) error {
	_, err := l.store.SwapFor(ctx, l.keys.view, old, view, retention)
	if err == nil {
		l.kept, l.renewed = generation, time.Now()
	}
	return ignore(err, store.ErrConflict)
}

// ignore returns nil if err is that, and otherwise err.
func ignore(err, that error) error {
	if errors.Is(err, that) {
		return nil
	}
	return err
}

// lingering returns a context that ends store.ResultGrace after ctx.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(store.ResultGrace, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

// tend renews the retention of the view, and writes the history.
func (l *leader) tend(ctx context.Context, view *record) error {
	if view == nil {
		return nil
	}
	if l.kept != view.Generation || time.Since(l.renewed) >= retention/3 {
		if err := l.swap(ctx, view.Generation, view.raw, view.raw); err != nil {
			return err
		}
		l.recorded = 0
	}
	l.record(ctx)
	return nil
}
