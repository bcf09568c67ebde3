package storetest

import (
	"fmt"
	"testing"
)

var waitChecks = []check{
	{"delays no other call", waitDelaysNoCall, []Feature{Wait}},
	{"gives values that are the caller's", waitOwnsOutput, []Feature{Wait}},
}

func waitDelaysNoCall(t *testing.T, w *world) {
	s := w.store()
	var waiting []<-chan outcome
	for i := range 100 {
		waiting = append(waiting, later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "go", fmt.Sprint(i%10)) }))
	}
	for i := range 200 {
		k := fmt.Sprint(i % 10)
		w.set(s, k)
		holds(t, w, s, k, k)
	}
	w.set(s, "go")
	for _, ch := range waiting {
		good(t, (<-ch).err)
	}
}

func waitOwnsOutput(t *testing.T, w *world) {
	s := w.store()
	a := later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "key", "key") })
	b := later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "key") })
	w.set(s, "key")
	o := <-a
	good(t, o.err)
	copy(o.values[0], "own")
	same(t, "the other value", texts(o.values), []string{"own", "key"})
	same(t, "the other caller's value", texts((<-b).values), []string{"key"})
	holds(t, w, s, "key", "key")
}
