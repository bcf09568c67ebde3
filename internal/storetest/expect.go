package storetest

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// good fails the test if err is not nil.
func good(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// is fails the test unless errors.Is(err, target).
func is(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error is %v, want %v", err, target)
	}
}

// same fails the test unless got equals want.
func same[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// holds fails the test unless key has value.
func holds(t *testing.T, w *world, s *store.Store, key, value string) {
	t.Helper()
	v, err := s.Get(w.ctx, key)
	good(t, err)
	same(t, "value of "+key, string(v), value)
}

// lacksKey fails the test if key exists.
func lacksKey(t *testing.T, w *world, s *store.Store, key string) {
	t.Helper()
	_, err := s.Get(w.ctx, key)
	is(t, err, store.ErrNotFound)
}

// names fails the test unless err's text contains all words.
func names(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that names %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Fatalf("error %q does not name %q", err, word)
		}
	}
}

// failureOf returns the failure that err carries, the same on all ranks. It fails the test if err has
// none.
func failureOf(t *testing.T, err error) *wire.Failure {
	t.Helper()
	e, ok := errors.AsType[*store.Error](err)
	if !ok || e.Failure == nil {
		t.Fatalf("error %v has no failure", err)
	}
	return e.Failure
}

// texts returns values as strings, for readable comparisons.
func texts(values [][]byte) []string {
	ss := make([]string, len(values))
	for i, v := range values {
		ss[i] = string(v)
	}
	return ss
}

// outcome is what a call returned.
type outcome struct {
	values [][]byte
	err    error
}

// later runs f concurrently with the test. The test does not end before f has returned.
func later(t *testing.T, f func() ([][]byte, error)) <-chan outcome {
	ch := make(chan outcome, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		values, err := f()
		ch <- outcome{values, err}
	})
	t.Cleanup(wg.Wait)
	return ch
}

// laterErr is later for a call that returns only an error.
func laterErr(t *testing.T, f func() error) <-chan outcome {
	return later(t, func() ([][]byte, error) { return nil, f() })
}

// together runs f(0) … f(n-1) concurrently, and returns their outcomes.
func together(n int, f func(i int) ([][]byte, error)) []outcome {
	out := make([]outcome, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { out[i].values, out[i].err = f(i) })
	}
	wg.Wait()
	return out
}

// allGood fails the test if one of the outcomes is an error.
func allGood(t *testing.T, out []outcome) {
	t.Helper()
	for i, o := range out {
		if o.err != nil {
			t.Fatalf("%d: unexpected error: %v", i, o.err)
		}
	}
}

// until calls ask until it returns true, or ctx ends. It is for conditions that no event announces.
func until(t *testing.T, ctx context.Context, what string, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within the time of the test", what)
		}
	}
}

// next returns the next event of a watch. It fails the test if that is an error.
func next(t *testing.T, pull func() (store.Event, error, bool)) store.Event {
	t.Helper()
	e, err, ok := pull()
	if !ok {
		t.Fatal("the watch has ended")
	}
	good(t, err)
	return e
}

// watch follows prefix after a revision; it ends with the test.
func (w *world) watch(s *store.Store, prefix string, after store.Revision) func() (store.Event, error, bool) {
	pull, stop := iter.Pull2(s.Watch(w.ctx, prefix, after))
	w.t.Cleanup(stop)
	return pull
}

// revision returns the store's current revision.
func (w *world) revision(s *store.Store) store.Revision {
	w.t.Helper()
	rev, err := s.Revision(w.ctx)
	good(w.t, err)
	return rev
}

// set sets each key to its own name.
func (w *world) set(s *store.Store, keys ...string) {
	w.t.Helper()
	for _, k := range keys {
		good(w.t, s.Set(w.ctx, k, []byte(k), nil))
	}
}

// big returns n bytes that are not all the same.
func big(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n] }
