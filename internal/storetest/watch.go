package storetest

import (
	"fmt"
	"testing"
)

var watchChecks = []check{
	{"each change once, in order", watchOrder, []Feature{Watch}},
	{"a list and a watch from its revision miss nothing", watchAfterList, []Feature{Watch, List}},
}

func watchOrder(t *testing.T, w *world) {
	s := w.store()
	const n = 2500
	rev := w.revision(s)
	for i := range n {
		good(t, s.Set(w.ctx, fmt.Sprint(i%7), fmt.Append(nil, i), nil))
	}
	events := w.watch(s, "", rev)
	for i := range n {
		e := next(t, events)
		same(t, "change", []string{e.Key, string(e.Value)}, []string{fmt.Sprint(i % 7), fmt.Sprint(i)})
		if e.Rev <= rev {
			t.Fatalf("revision %d after %d", e.Rev, rev)
		}
		rev = e.Rev
	}
	same(t, "last revision", rev, w.revision(s))
}

func watchAfterList(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	const n = 300
	setting := laterErr(t, func() error {
		for i := range n {
			if err := b.Set(w.ctx, fmt.Sprint(i), nil, nil); err != nil {
				return err
			}
		}
		return nil
	})
	rev := w.revision(a)
	have := map[string]bool{}
	for _, k := range keysOf(w.list(a, "")) {
		have[k] = true
	}
	events := w.watch(a, "", rev)
	for len(have) < n {
		have[next(t, events).Key] = true
	}
	good(t, (<-setting).err)
}
