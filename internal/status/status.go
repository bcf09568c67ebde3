// Package status shows which ranks wait, and for which other ranks: as a web page of a store, which
// the public package status serves, and as a [View] for other displays. All data comes from Store.Status,
// and from keys in which processes say more of themselves.
package status

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-pg/muster/store"
)

// Watch caches the status of a store for any number of viewers. It requests the status no more
// often than they need, not at all while there are none, and never for more than a hundredth of the
// time. The zero value is not ready; use NewWatch.
type Watch struct {
	store   *store.Store
	every   time.Duration
	options Options

	asking chan struct{} // a semaphore for one caller at a time; protects the fields below
	last   *store.Status // from which view was made
	view   *View
	err    error // the reason why there is no view
	at     time.Time
	good   time.Duration // how long view or err is valid, from at on
}

const (
	askTime = 5 * time.Second // for one answer
	// a view stays valid for at least share times the duration of the request
	share   = 100
	longest = 10 * time.Second // but no longer than this
)

// NewWatch returns a Watch of s. A view stays valid for the duration every, or longer if the
// request was slow.
func NewWatch(s *store.Store, every time.Duration, o Options) *Watch {
	return &Watch{store: s, every: every, options: o, asking: make(chan struct{}, 1)}
}

// Look returns a view that is no older than the cache allows, and the status from which it was made.
// All callers share them: do not change them. If there is no view, the status is undefined.
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
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	now, err := Fetch(asking, w.store, TorchOptions{})
	if err != nil && ctx.Err() != nil { // the caller has gone; this says nothing about the store
		return nil, nil, err
	}
	w.view, w.err, w.good = nil, err, w.every
	if err == nil {
		jobs := FetchElastic(asking, w.store, now)
		w.view, w.last = Of(now, w.options), now
		w.view.Elastic = jobs
		w.good = max(w.every, min(time.Since(began)*share, longest))
	}
	w.at = time.Now()
	return w.view, w.last, w.err
}
