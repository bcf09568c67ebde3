package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/muster-pg/muster/store"
)

// leader is what the one who decides views remembers; each member has one, and that of the worker which registered first is at work. Two may
// be for a moment, when one of them was evicted and does not know it: the store lets one of them create a view, and the other follows.
type leader struct {
	*Member
	since   time.Time // when a change that calls for a view was first seen, with Min workers there
	kept    uint64    // the generation whose time was last renewed
	renewed time.Time
}

// lead decides views as soon as it is this member's turn, until the member is over.
func (m *Member) lead() {
	const firstPause, mostPause = 20 * time.Millisecond, time.Second
	l := leader{Member: m}
	for pause := firstPause; m.life.Err() == nil; {
		wait, err := l.step(m.life)
		m.note(&m.undecided, err)
		if err != nil {
			m.rest(pause)
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

// step does what is to be done now, and says when to look again though nothing has changed.
func (l *leader) step(ctx context.Context) (wait time.Duration, err error) {
	next, view, stale, leads := l.plan()
	switch {
	case !leads:
		l.since, l.kept = time.Time{}, 0
		return retention, nil
	case next == nil:
		l.since = time.Time{}
		return retention / 3, l.tend(ctx, view, stale)
	case len(next) < l.cfg.Min:
		l.since = time.Time{}
		return retention / 3, nil
	}
	if l.since.IsZero() {
		l.since = time.Now()
	}
	if left := time.Until(l.since.Add(l.cfg.Settle)); left > 0 && len(next) < l.cfg.Max {
		return left, nil
	}
	return retention / 3, l.decide(ctx)
}

// plan is who ought to be in the next view, nil if that is as it is; and whether this member is the one to see to it.
func (l *leader) plan() (next []*registration, view *record, stale []string, leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, leads = l.turn(l.roster)
	if l.epoch != nil {
		view = &l.epoch.record
	}
	if !leads || view.holds(next) {
		next = nil
	}
	return next, view, slices.Sorted(maps.Keys(l.roster.stale)), leads
}

// turn is who ought to be in a view, by r, and whether this member is the first of them.
func (l *leader) turn(r *roster) (next []*registration, leads bool) {
	live := r.inOrder(&l.self)
	return live[:min(len(live), l.cfg.Max)], len(live) > 0 && live[0].key == l.self.key
}

// decide makes a view of who is there. What the watch has told may be old: only what is read now counts.
func (l *leader) decide(ctx context.Context) error {
	r, err := readRoster(ctx, l.store, &l.keys)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if known := l.epoch; known != nil && (r.view == nil || r.view.Generation < known.Generation) {
		r.view = &known.record // whoever left last took it away, since this worker was not there yet
	}
	l.mu.Unlock()
	next, leads := l.turn(r)
	if !leads || len(next) < l.cfg.Min || r.view.holds(next) {
		return nil // the watch is about to tell
	}
	v := record{Run: rand.Text(), Generation: 1}
	if r.view != nil {
		v.Generation = r.view.Generation + 1
		// A view of which nobody lives may be one that a leader made too late, after all had left: that run has gone further already.
		if slices.ContainsFunc(r.view.Seats, func(s seat) bool { return r.workers[s.Key] != nil }) {
			v.Run = r.view.Run
		}
	}
	for _, g := range next {
		v.Seats = append(v.Seats, seat{g.Worker, g.key})
	}
	l.since = time.Time{}
	return l.create(ctx, &v)
}

// create makes v the view, if no other is. This member too hears of it from the watch: if it is evicted, and does not know it, it hears that
// first.
func (l *leader) create(ctx context.Context, v *record) error {
	ctx, cancel := lingering(ctx)
	defer cancel()
	return l.swap(ctx, v, nil)
}

// swap makes v the view of its generation if that is old, for a while; if not, another one has decided.
func (l *leader) swap(ctx context.Context, v *record, old []byte) error {
	_, err := l.store.SwapFor(ctx, l.keys.view(v.Generation), old, encode(v), retention)
	switch {
	case errors.Is(err, store.ErrConflict):
		return nil
	case err == nil:
		l.kept, l.renewed = v.Generation, time.Now()
	}
	return err
}

// lingering is ctx, and ends a while later.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(store.Grace):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// tend keeps the newest view alive, and takes away the others.
func (l *leader) tend(ctx context.Context, view *record, stale []string) error {
	if len(stale) > 0 {
		if _, err := l.store.Delete(ctx, stale...); err != nil {
			return err
		}
	}
	if view == nil || l.kept == view.Generation && time.Since(l.renewed) < retention/3 {
		return nil
	}
	return l.renew(ctx, view)
}

// renew gives a view its time to live anew, if it is still there: a leader who is late, and does not know that it is evicted, must not bring a view
// back that a later one has taken away. The generation after that would be decided twice.
func (l *leader) renew(ctx context.Context, view *record) error {
	return l.swap(ctx, view, encode(view))
}
