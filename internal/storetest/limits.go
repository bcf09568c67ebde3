package storetest

import (
	"fmt"
	"os"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var limitChecks = []check{
	{"the longest key and the largest value fit", largestFit, nil},
	{"a key that is too long is ErrTooLarge, and nothing is harmed", longKey, nil},
	{"a value that is too large is ErrTooLarge, and nothing is harmed", largeValue, nil},
	{"append beyond the limit is ErrTooLarge, and the value stays", largeAppend, []Feature{Append}},
	{"a wait for too many keys is ErrTooLarge", manyKeys, []Feature{Wait}},
}

func largestFit(t *testing.T, w *world) {
	s := w.store()
	key := string(big(w.Key))
	good(t, s.Set(w.ctx, key, big(w.Value), nil))
	v, err := s.Get(w.ctx, key)
	good(t, err)
	same(t, "whole", string(v) == string(big(w.Value)), true)
}

func longKey(t *testing.T, w *world) {
	s := w.store()
	key := string(big(w.Key + 1))
	is(t, s.Set(w.ctx, key, nil, nil), store.ErrTooLarge)
	_, err := s.Get(w.ctx, key)
	is(t, err, store.ErrTooLarge)
	if len(err.Error()) > 1000 {
		t.Fatalf("an error of %d bytes", len(err.Error()))
	}
	w.set(s, "still here")
	holds(t, w, s, "still here", "still here")
}

func largeValue(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "key")
	is(t, s.Set(w.ctx, "key", make([]byte, w.Value+1), nil), store.ErrTooLarge)
	holds(t, w, s, "key", "key")
}

func largeAppend(t *testing.T, w *world) {
	s := w.store()
	good(t, s.Set(w.ctx, "key", big(w.Value-1), nil))
	_, err := s.Append(w.ctx, "key", []byte("12"))
	is(t, err, store.ErrTooLarge)
	n, err := s.Append(w.ctx, "key", []byte("1"))
	good(t, err)
	same(t, "length", n, w.Value)
}

func manyKeys(t *testing.T, w *world) {
	s := w.store()
	_, err := s.Wait(w.ctx, make([]string, wire.MaxKeys+1)...)
	is(t, err, store.ErrTooLarge)
	w.set(s, "still here")
	holds(t, w, s, "still here", "still here")
}

var manyChecks = []check{
	{"16 callers add, set and get many times, and nothing is lost", manyCallers, []Feature{Add}},
	{"64 sessions that each wait for all 64 keys", manyWaiters, []Feature{Wait}},
}

func manyCallers(t *testing.T, w *world) {
	callers, rounds := 16, 200
	switch {
	case testing.Short() || w.lacks(Crowds):
		rounds = 100
	case os.Getenv("MUSTER_SOAK") != "":
		rounds = 1000
	}
	s := w.store()
	allGood(t, together(callers, func(i int) ([][]byte, error) {
		key := fmt.Sprint("own ", i)
		for n := range rounds {
			if err := addSetGet(w, s, key, fmt.Sprint(n)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}))
	n, err := s.Add(w.ctx, "shared", 0)
	good(t, err)
	same(t, "total", n, int64(callers*rounds))
}

func addSetGet(w *world, s *store.Store, key, value string) error {
	if _, err := s.Add(w.ctx, "shared", 1); err != nil {
		return err
	}
	if err := s.Set(w.ctx, key, []byte(value), nil); err != nil {
		return err
	}
	v, err := s.Get(w.ctx, key)
	if err == nil && string(v) != value {
		err = fmt.Errorf("%s is %q, want %q", key, v, value)
	}
	return err
}

func manyWaiters(t *testing.T, w *world) {
	const n = 64
	keys := make([]string, n)
	stores := make([]*store.Store, n)
	for i := range n {
		keys[i], stores[i] = fmt.Sprint("key ", i), w.store()
	}
	out := together(n, func(i int) ([][]byte, error) {
		if err := stores[i].Set(w.ctx, keys[i], []byte(keys[i]), nil); err != nil {
			return nil, err
		}
		return stores[i].Wait(w.ctx, keys...)
	})
	allGood(t, out)
	for _, o := range out {
		same(t, "values", texts(o.values), keys)
	}
}
