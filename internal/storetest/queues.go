package storetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var queueChecks = []check{
	{"each value is given once, to one of many", queueMany, []Feature{Queues, Wait}},
	{"an entry in the place of a queue is ErrInvalid", queueForeign, []Feature{Queues}},
	{"values that were deleted are passed over", queueDeleted, []Feature{Queues, Delete}},
	{"a name that leaves no room for a number is ErrTooLarge", queueLongName, []Feature{Queues}},
	{"what was passed in may be changed, and what was returned", queueOwns, []Feature{Queues}},
}

// popped fails the test unless the queue had n values and the first one is value.
func popped(t *testing.T, w *world, s *store.Store, queue, value string, n int) {
	t.Helper()
	v, got, err := s.TryPop(w.ctx, queue)
	good(t, err)
	same(t, "values that were there", got, n)
	same(t, "value", string(v), value)
}

func queueMany(t *testing.T, w *world) {
	const pushers, poppers, each = 3, 2, 20
	var waiting []<-chan outcome
	for i := range pushers {
		s := w.store()
		waiting = append(waiting, later(t, func() ([][]byte, error) {
			for k := range each {
				if err := s.Push(w.ctx, "q", fmt.Appendf(nil, "%d %d", i, k)); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}))
	}
	for range poppers {
		s := w.store()
		waiting = append(waiting, later(t, func() (values [][]byte, err error) {
			for range pushers * each / poppers {
				v, err := s.Pop(w.ctx, "q")
				if err != nil {
					return nil, err
				}
				values = append(values, v)
			}
			return values, nil
		}))
	}
	seen := map[string]bool{}
	for _, c := range waiting {
		o := <-c
		good(t, o.err)
		last := map[byte]int{} // for each pusher, since a popper gets its values in their order
		for _, v := range o.values {
			var who byte
			var k int
			_, err := fmt.Sscanf(string(v), "%c %d", &who, &k)
			good(t, err)
			if seen[string(v)] || k+1 <= last[who] {
				t.Fatalf("%q came twice, or late", v)
			}
			seen[string(v)], last[who] = true, k+1
		}
	}
	same(t, "values", len(seen), pushers*each)
}

func queueForeign(t *testing.T, w *world) {
	s := w.store()
	for _, v := range []string{"", "x", "123456789", strings.Repeat("\x00", 16), strings.Repeat("\xff", 16)} {
		good(t, s.Set(w.ctx, store.QueueKey("q"), []byte(v), nil))
		_, err := s.Pop(w.ctx, "q")
		is(t, err, store.ErrInvalid)
		is(t, s.Push(w.ctx, "q", []byte("v")), store.ErrInvalid)
		_, err = s.QueueLen(w.ctx, "q")
		is(t, err, store.ErrInvalid)
		names(t, err, `"q"`)
		holds(t, w, s, store.QueueKey("q"), v)
	}
}

func queueDeleted(t *testing.T, w *world) {
	s := w.store()
	for _, v := range []string{"0", "1", "2"} {
		good(t, s.Push(w.ctx, "q", []byte(v)))
	}
	_, err := s.Delete(w.ctx, wire.QueuedKey("q", 0))
	good(t, err)
	popped(t, w, s, "q", "1", 2)
	_, err = s.Delete(w.ctx, wire.QueuedKey("q", 2))
	good(t, err)
	popped(t, w, s, "q", "", 0)
	lacksKey(t, w, s, store.QueueKey("q"))
}

func queueLongName(t *testing.T, w *world) {
	s := w.store()
	longest := strings.Repeat("q", w.Key-len(wire.QueuedKey("", 0)))
	good(t, s.Push(w.ctx, longest, []byte("v")))
	popped(t, w, s, longest, "v", 1)
	is(t, s.Push(w.ctx, longest+"q", []byte("v")), store.ErrTooLarge)
	popped(t, w, s, longest, "", 0)
}

func queueOwns(t *testing.T, w *world) {
	s := w.store()
	v := []byte("value")
	good(t, s.Push(w.ctx, "q", v))
	good(t, s.Push(w.ctx, "q", v))
	copy(v, "XXXXX")
	got, _, err := s.TryPop(w.ctx, "q")
	good(t, err)
	same(t, "value", string(got), "value")
	copy(got, "YYYYY")
	popped(t, w, s, "q", "value", 1)
}
