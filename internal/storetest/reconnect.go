package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
)

var reconnectChecks = []check{
	{"adds take effect once", breakAdds, []Feature{Add, Breaks, Sessions}},
	{"swaps take effect once, and are answered", breakSwaps, []Feature{Swap, Breaks, Sessions}},
	{"appends take effect once, in the order of their caller", breakAppends, []Feature{Append, Breaks, Sessions}},
	{"deletes take effect once, and count right", breakDeletes, []Feature{Delete, Breaks, Sessions}},
	{"counted reads lose nothing", breakTakes, []Feature{Reads, Wait, Breaks, Sessions}},
	{"messages arrive once, in order", breakStream, []Feature{Collect, Streams, Breaks, Sessions}},
	{"what was given up takes effect at most once, and never if its caller received a failure", breakGivenUp, []Feature{Add, Breaks, Sessions}},
	{"what was given up does not overtake what came later", breakOrder, []Feature{Breaks, Sessions}},
	{"a watch gives each change once", breakWatch, []Feature{Watch, Breaks, Sessions}},
	{"collects succeed, one after the other", breakCollects, []Feature{Collect, Breaks, Sessions}},
	{"a join is answered, and answered again", breakJoin, []Feature{Collect, Breaks, Sessions}},
}

// breaks is the number of breaks in a check.
const breaks = 40

// storm breaks the connections of engines, in turn, while callers make calls. It ends after that
// many breaks. After each break it waits until some calls have succeeded.
type storm struct {
	calls atomic.Int64 // number of successful calls
	over  atomic.Bool
}

// call calls do until the storm is over, or do fails.
func (s *storm) call(do func(n int) error) error {
	for n := 0; !s.over.Load(); n++ {
		if err := do(n); err != nil {
			return fmt.Errorf("call %d: %w", n, err)
		}
		s.calls.Add(1)
	}
	return nil
}

// weather starts a storm that breaks the connections of engines.
func (w *world) weather(engines ...store.Engine) *storm {
	s := new(storm)
	ended := later(w.t, func() ([][]byte, error) {
		defer s.over.Store(true)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := range breaks {
			before := s.calls.Load()
			w.Break(engines[i%len(engines)])
			for s.calls.Load() < before+int64(2*len(engines)) {
				select {
				case <-tick.C:
				case <-w.ctx.Done():
					return nil, fmt.Errorf("after break %d: %d calls in all, and no more", i, before)
				}
			}
		}
		return nil, nil
	})
	w.t.Cleanup(func() {
		if o := <-ended; o.err != nil {
			w.t.Error(o.err)
		}
	})
	return s
}

// callers runs do in several goroutines on each of two sessions until the storm is over.
func (w *world) callers(each int, do func(s *store.Store, caller, n int) error) (*store.Store, []outcome) {
	a, b := w.engine(), w.engine()
	weather := w.weather(a, b)
	stores := []*store.Store{store.New(a), store.New(b)}
	return stores[0], together(2*each, func(i int) ([][]byte, error) {
		return nil, weather.call(func(n int) error { return do(stores[i%2], i, n) })
	})
}

func breakAdds(t *testing.T, w *world) {
	var calls, sum atomic.Int64
	s, out := w.callers(8, func(s *store.Store, _, _ int) error {
		n, err := s.Add(w.ctx, "n", 1)
		calls.Add(1)
		sum.Add(n)
		return err
	})
	allGood(t, out)
	n, err := s.Add(w.ctx, "n", 0)
	good(t, err)
	same(t, "counter", n, calls.Load())
	same(t, "sum of all answers", sum.Load(), n*(n+1)/2)
}

func breakSwaps(t *testing.T, w *world) {
	var calls atomic.Int64
	s, out := w.callers(3, func(s *store.Store, _, _ int) error {
		old, err := s.Get(w.ctx, "n")
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		_, err = s.Swap(w.ctx, "n", old, append(old, 'x'))
		if errors.Is(err, store.ErrConflict) {
			return nil
		}
		calls.Add(1)
		return err
	})
	allGood(t, out)
	v, err := s.Get(w.ctx, "n")
	good(t, err)
	same(t, "swaps", int64(len(v)), calls.Load())
}

func breakAppends(t *testing.T, w *world) {
	wrote := make([]string, 8)
	s, out := w.callers(4, func(s *store.Store, caller, n int) error {
		word := fmt.Sprintf("%d:%d ", caller, n)
		wrote[caller] += word
		_, err := s.Append(w.ctx, "log", []byte(word))
		return err
	})
	allGood(t, out)
	v, err := s.Get(w.ctx, "log")
	good(t, err)
	read := make([]string, 8)
	for word := range bytes.FieldsSeq(v) {
		read[word[0]-'0'] += string(word) + " "
	}
	same(t, "words of each caller", read, wrote)
}

func breakDeletes(t *testing.T, w *world) {
	s, out := w.callers(4, func(s *store.Store, caller, n int) error {
		key := fmt.Sprint(caller, n)
		if err := s.Set(w.ctx, key, nil, nil); err != nil {
			return err
		}
		deleted, err := s.Delete(w.ctx, key)
		if err == nil && deleted != 1 {
			err = fmt.Errorf("%d deleted", deleted)
		}
		return err
	})
	allGood(t, out)
	if !w.lacks(List) {
		same(t, "left over", len(w.list(s, "")), 0)
	}
}

// breakTakes checks that of two callers that take each entry, exactly one gets it.
func breakTakes(t *testing.T, w *world) {
	s, out := w.callers(4, func(s *store.Store, caller, n int) error {
		one := fmt.Sprint("one ", caller, n)
		two := fmt.Sprint("two ", caller, n)
		for _, key := range []string{one, two} {
			if err := s.Set(w.ctx, key, []byte(key), &store.SetOptions{Reads: 1}); err != nil {
				return err
			}
		}
		v, err := s.Wait(w.ctx, one, two)
		if err != nil {
			return err
		}
		if string(v[0]) != one || string(v[1]) != two {
			return fmt.Errorf("%s and %s are %q", one, two, v)
		}
		if _, err := s.Get(w.ctx, one); !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("%s was read once, and then: %w", one, err)
		}
		return nil
	})
	allGood(t, out)
	if !w.lacks(List) {
		same(t, "left over", len(w.list(s, "")), 0)
	}
}

func breakStream(t *testing.T, w *world) {
	ranks := w.group(2)
	weather := w.weather(ranks[0].engine, ranks[1].engine)
	sent := later(t, func() ([][]byte, error) {
		n := 0
		err := weather.call(func(i int) error { n = i + 1; return ranks[0].send(w.ctx, "", fmt.Sprint(n)) })
		if err != nil {
			return nil, err
		}
		return nil, ranks[0].send(w.ctx, "", "end")
	})
	for pos := uint64(1); ; pos++ {
		o := ranks[1].recv(w.ctx, "", pos)
		good(t, o.err)
		if string(o.values[0]) == "end" {
			break
		}
		same(t, "message", string(o.values[0]), fmt.Sprint(pos))
	}
	good(t, (<-sent).err)
}

// breakGivenUp adds with contexts that end at any time. A call that returned ErrUnknown may count;
// a call that failed otherwise must not.
func breakGivenUp(t *testing.T, w *world) {
	var yes, unknown atomic.Int64
	s, out := w.callers(4, func(s *store.Store, caller, n int) error {
		ctx, cancel := context.WithTimeout(w.ctx, time.Duration((caller+n)%7)*100*time.Microsecond)
		defer cancel()
		switch _, err := s.Add(ctx, "n", 1); {
		case err == nil:
			yes.Add(1)
		case errors.Is(err, store.ErrUnknown):
			unknown.Add(1)
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		_, err := s.Get(w.ctx, "missing")
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	allGood(t, out)
	good(t, s.Set(w.ctx, "behind all of them", nil, nil))
	n, err := w.store().Add(w.ctx, "n", 0)
	good(t, err)
	if n < yes.Load() || n > yes.Load()+unknown.Load() {
		t.Fatalf("%d adds succeeded, of %d it is not known: the counter is %d", yes.Load(), unknown.Load(), n)
	}
}

// breakOrder has one writer for each key, so the writer knows the expected value.
func breakOrder(t *testing.T, w *world) {
	_, out := w.callers(4, func(s *store.Store, caller, n int) error {
		key := fmt.Sprint("own ", caller)
		ctx, cancel := context.WithTimeout(w.ctx, time.Duration((caller+n)%5)*100*time.Microsecond)
		defer cancel()
		_ = s.Set(ctx, key, []byte("given up, perhaps"), nil)
		return addSetGet(w, s, key, fmt.Sprint(n))
	})
	allGood(t, out)
}

// back returns when e has reconnected.
func (w *world) back(e store.Engine) {
	w.t.Helper()
	lacksKey(w.t, w, store.New(e), "no such key")
}

func breakWatch(t *testing.T, w *world) {
	e, other := w.engine(), w.engine()
	from := w.revision(store.New(e))
	weather := w.weather(e, other)
	wrote := later(t, func() ([][]byte, error) {
		n := 0
		err := weather.call(func(i int) error {
			n = i
			return store.New(other).Set(w.ctx, "w/key", fmt.Append(nil, i), nil)
		})
		if err != nil {
			return nil, err
		}
		return [][]byte{fmt.Append(nil, n)}, store.New(other).Set(w.ctx, "w/end", nil, nil)
	})
	last := -1
	for ev, err := range store.New(e).Watch(w.ctx, "w/", max(from, 1)) {
		good(t, err)
		if ev.Key == "w/end" {
			break
		}
		last++
		same(t, "change", string(ev.Value), fmt.Sprint(last))
	}
	o := <-wrote
	good(t, o.err)
	same(t, "last change", fmt.Sprint(last), string(o.values[0]))
}

func breakCollects(t *testing.T, w *world) {
	ranks := w.group(3)
	weather := w.weather(ranks[0].engine, ranks[1].engine, ranks[2].engine)
	allGood(t, together(3, func(i int) ([][]byte, error) {
		for seq := uint64(1); ; seq++ {
			mine := fmt.Sprint(seq, " from ", i)
			if i == 0 && weather.over.Load() {
				mine = "the last" // all end with the same value
			}
			o := ranks[i].collect(w.ctx, allGather(seq), []byte(mine)...)
			if o.err != nil {
				return nil, o.err
			}
			got := texts(o.values)
			if got[1] != fmt.Sprint(seq, " from 1") || got[2] != fmt.Sprint(seq, " from 2") {
				return nil, fmt.Errorf("round %d gave %q", seq, got)
			}
			if got[0] == "the last" {
				return nil, nil
			}
			weather.calls.Add(1)
		}
	}))
}

func breakJoin(t *testing.T, w *world) {
	ranks := w.group(2)
	for i := range 10 {
		name := fmt.Sprint("group ", i)
		for n, r := range ranks {
			good(t, r.Leave(w.ctx, r.asMember()))
			ranks[n] = &rank{Store: r.Store, engine: r.engine, w: w, n: n}
		}
		joining := later(t, func() ([][]byte, error) {
			membership, err := ranks[0].Join(w.ctx, applicant(name, 0, 2), nil)
			ranks[0].gen = membership.Generation
			return nil, err
		})
		if i%2 == 0 {
			w.back(ranks[0].engine)
		}
		breaking := laterErr(t, func() error { w.Break(ranks[0].engine); return nil })
		membership, err := ranks[1].Join(w.ctx, applicant(name, 1, 2), nil)
		good(t, err)
		<-breaking
		good(t, (<-joining).err)
		ranks[1].gen = membership.Generation
		same(t, "generation", ranks[0].gen, ranks[1].gen)
		goesOn(t, ranks, 1)
	}
}
