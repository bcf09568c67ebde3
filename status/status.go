// Package status shows who waits for whom: the page of a store, and what it says, for other ways to show it.
//
//	http.Handle("/muster/", http.StripPrefix("/muster", status.Handler(s, nil)))
//
// All of it comes by Store.Status, so that it is of the store of this process or of one that was dialed, of all of it or of what is below a
// prefix, and shows what s has the right to read. Nothing is changed by it.
package status

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-pg/muster/store"
)

// Watch asks a store for its status again and again, for any number of viewers: no more often than they want it, not at all
// while there are none, and never for more than a hundredth of the time. The zero value is not ready; use NewWatch.
type Watch struct {
	store   *store.Store
	every   time.Duration
	options Options

	asking chan struct{} // has room for who asks, for all; protects the fields below
	last   *store.Status
	seen   time.Time // last
	view   *View
	err    error // why there is no view
	at     time.Time
	good   time.Duration // that view or err is, from at on
}

const (
	askTime = 5 * time.Second // for one answer
	stale   = time.Minute
	share   = 100              // of what asking takes, a view is good for at least so many times that
	longest = 10 * time.Second // but not longer
)

// NewWatch returns a Watch of s. A view is good for as long as every says, or longer if it took long; 0 is not at all.
func NewWatch(s *store.Store, every time.Duration, o *Options) *Watch {
	w := &Watch{store: s, every: every, asking: make(chan struct{}, 1)}
	if o != nil {
		w.options = *o
	}
	return w
}

// View returns what there is to see now, or was a short time ago. It is shared: do not change it.
func (w *Watch) View(ctx context.Context) (*View, error) {
	v, _, err := w.Look(ctx)
	return v, err
}

// Look is View, and the status that the view is of. Without a view, the status means nothing.
func (w *Watch) Look(ctx context.Context) (*View, *store.Status, error) {
	select {
	case w.asking <- struct{}{}:
		defer func() { <-w.asking }()
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("status: another viewer has asked the store, which has not answered yet: %w", ctx.Err())
	}
	if (w.view != nil || w.err != nil) && time.Since(w.at) < w.good {
		return w.view, w.last, w.err
	}
	began := time.Now()
	now, err := w.ask(ctx)
	switch {
	case err == nil:
		w.saw(now, time.Since(began))
	case ctx.Err() != nil: // it says nothing of the store: who has asked is gone
		return nil, nil, err
	default:
		w.view, w.err, w.at, w.good = nil, err, time.Now(), w.every
	}
	return w.view, w.last, w.err
}

// saw takes an answer, for which the store took so long.
func (w *Watch) saw(now *store.Status, took time.Duration) {
	before := w.last
	if time.Since(w.seen) > stale { // a rate of so long ago says nothing
		before = nil
	}
	began := time.Now()
	w.view, w.last, w.err = Of(now, before, &w.options), now, nil
	w.at = time.Now()
	w.seen, w.good = w.at, w.every
	if w.every > 0 {
		w.good = max(w.every, min((took+w.at.Sub(began))*share, longest))
	}
}

func (w *Watch) ask(ctx context.Context) (*store.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return w.store.Status(ctx, "")
}
