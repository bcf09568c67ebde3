// Package status shows who waits for whom: the page of a store, and what it says, for other ways to show it.
//
//	http.Handle("/muster/", http.StripPrefix("/muster", status.Handler(s)))
//
// All of it comes by Store.Status, so that it is of the store of this process or of one that was dialed, of all of it or of what is below a
// prefix, and shows what s has the right to read. Nothing is changed by it.
package status

import (
	"context"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
)

// Watch asks a store for its status again and again, for any number of viewers: no more often than they want it, not at all
// while there are none, and never for more than a hundredth of the time. The zero value is not ready; use NewWatch.
type Watch struct {
	store   *store.Store
	every   time.Duration
	options Options

	mu   sync.Mutex // protects the fields below; held while the store is asked, so that one asks for all
	last *store.Status
	view *View
	at   time.Time
	good time.Duration // that view is, from at on
}

const (
	askTime = 5 * time.Second // for one answer
	stale   = time.Minute
	share   = 100              // of what asking takes, a view is good for at least so many times that
	longest = 10 * time.Second // but not longer
)

// NewWatch returns a Watch of s. A view is good for as long as every says, or longer if it took long; 0 is not at all.
func NewWatch(s *store.Store, every time.Duration, o *Options) *Watch {
	w := &Watch{store: s, every: every}
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

// Look is View, and the status that the view is of.
func (w *Watch) Look(ctx context.Context) (*View, *store.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view != nil && time.Since(w.at) < w.good {
		return w.view, w.last, nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	now, err := w.store.Status(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	if time.Since(w.at) > stale { // a rate of so long ago says nothing
		w.last = nil
	}
	w.view, w.last, w.at = Of(now, w.last, &w.options), now, time.Now()
	w.good = w.every
	if w.every > 0 {
		w.good = max(w.every, min(time.Since(began)*share, longest))
	}
	return w.view, w.last, nil
}
