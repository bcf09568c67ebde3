package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
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
func (l *leader) plan() (next []*registration, view *record, leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, leads = l.turn(l.roster)
	if l.epoch != nil {
		view = &l.epoch.record
	}
	if !leads || view.holds(next) {
		next = nil
	}
	return next, view, leads
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
	before := l.known()
	v := record{Run: rand.Text(), Generation: 1}
	var old []byte
	if r.view != nil {
		before, v.Run, old = r.view, r.view.Run, r.view.raw
	}
	if before != nil { // without r.view whoever left last took it away, since this worker was not there yet: another run begins
		v.Generation = before.Generation + 1
	}
	next, leads := l.turn(r)
	if !leads || len(next) < l.cfg.Min || before.holds(next) {
		return nil // the watch is about to tell
	}
	for _, g := range next {
		v.Seats = append(v.Seats, seat{g.Worker, g.key})
	}
	l.since = time.Time{}
	return l.create(ctx, &v, old)
}

// known is the newest view that the watch has told of, or nil.
func (l *leader) known() *record {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch == nil {
		return nil
	}
	return &l.epoch.record
}

// create makes v the view, in the place of the one that it follows, and of no other: so a generation of a run is decided once, however late a
// leader is who does not know that it is evicted. This member too hears of it from the watch, and of its eviction before, if there was one.
func (l *leader) create(ctx context.Context, v *record, old []byte) error {
	ctx, cancel := lingering(ctx)
	defer cancel()
	return l.swap(ctx, v.Generation, old, encode(v))
}

// swap makes a view, or the one that is there, live from now on for a while; if it is another one, somebody else has decided.
func (l *leader) swap(ctx context.Context, generation uint64, old, view []byte) error {
	_, err := l.store.SwapFor(ctx, l.keys.view, old, view, retention)
	if err == nil {
		l.kept, l.renewed = generation, time.Now()
	}
	return ignore(err, store.ErrConflict)
}

// ignore is err, if it is not that.
func ignore(err, that error) error {
	if errors.Is(err, that) {
		return nil
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

// tend keeps the view alive.
func (l *leader) tend(ctx context.Context, view *record) error {
	if view == nil || l.kept == view.Generation && time.Since(l.renewed) < retention/3 {
		return nil
	}
	return l.swap(ctx, view.Generation, view.raw, view.raw)
}
