package storetest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var keyChecks = []check{
	{"get gives what set gave, to every session", setGet, nil},
	{"get of a missing key is ErrNotFound at once", getMissing, nil},
	{"set replaces", overwrite, nil},
	{"an empty value is there, and is not nil", emptyValue, nil},
	{"keys and values are any bytes", binaryKeys, nil},
	{"the empty key is a key", emptyKey, nil},
	{"what was passed in may be changed afterwards", callerKeepsInput, nil},
	{"what was returned may be changed", callerOwnsOutput, nil},
	{"delete counts those that were there", deleteCounts, []Feature{Delete}},
	{"delete of nothing", deleteNothing, []Feature{Delete}},
	{"append makes, then appends, and returns the length", appends, []Feature{Append}},
	{"an append of nothing makes an empty entry, which is there", appendsNothing, []Feature{Append, Swap}},
	{"revision grows with every change, and with no read", revisionGrows, []Feature{Watch}},
}

func setGet(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	good(t, a.Set(w.ctx, "key", []byte("value"), nil))
	holds(t, w, a, "key", "value")
	holds(t, w, b, "key", "value")
}

func getMissing(t *testing.T, w *world) {
	_, err := w.store().Get(w.ctx, "no such key")
	is(t, err, store.ErrNotFound)
	names(t, err, "get", "no such key")
}

func overwrite(t *testing.T, w *world) {
	s := w.store()
	for _, v := range []string{"first", "second, which is longer", "", "4"} {
		good(t, s.Set(w.ctx, "key", []byte(v), nil))
		holds(t, w, s, "key", v)
	}
}

func emptyValue(t *testing.T, w *world) {
	s := w.store()
	good(t, s.Set(w.ctx, "nil", nil, nil))
	good(t, s.Set(w.ctx, "empty", []byte{}, nil))
	for _, k := range []string{"nil", "empty"} {
		v, err := s.Get(w.ctx, k)
		good(t, err)
		if v == nil || len(v) > 0 {
			t.Fatalf("value of %q: got %#v, want one that is empty and not nil", k, v)
		}
	}
}

func binaryKeys(t *testing.T, w *world) {
	s := w.store()
	keys := []string{"\x00", "\x00\x00", "\xff\xfe", "a\nb", "a/b", "a//b", "ключ", " "}
	w.set(s, keys...)
	for _, k := range keys {
		holds(t, w, s, k, k)
	}
}

func emptyKey(t *testing.T, w *world) {
	s := w.store()
	lacksKey(t, w, s, "")
	good(t, s.Set(w.ctx, "", []byte("value"), nil))
	holds(t, w, s, "", "value")
}

func callerKeepsInput(t *testing.T, w *world) {
	s := w.store()
	v := []byte("value")
	good(t, s.Set(w.ctx, "key", v, nil))
	copy(v, "XXXXX")
	holds(t, w, s, "key", "value")
}

func callerOwnsOutput(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "key")
	v, err := s.Get(w.ctx, "key")
	good(t, err)
	copy(v, "own")
	_ = append(v, "more"...)
	holds(t, w, s, "key", "key")
}

func deleteCounts(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "a", "b", "c")
	n, err := s.Delete(w.ctx, "a", "missing", "c", "a")
	good(t, err)
	same(t, "deleted", n, 2)
	lacksKey(t, w, s, "a")
	holds(t, w, s, "b", "b")
}

func deleteNothing(t *testing.T, w *world) {
	n, err := w.store().Delete(w.ctx)
	good(t, err)
	same(t, "deleted", n, 0)
}

func appends(t *testing.T, w *world) {
	s := w.store()
	for i, want := range []int{3, 3, 6} {
		n, err := s.Append(w.ctx, "key", []byte([]string{"abc", "", "def"}[i]))
		good(t, err)
		same(t, "length", n, want)
	}
	holds(t, w, s, "key", "abcdef")
}

// appendsNothing checks that appending no bytes makes an entry that exists: a nil value would mean
// that it does not, and a loop of Swaps would never end.
func appendsNothing(t *testing.T, w *world) {
	s := w.store()
	n, err := s.Append(w.ctx, "key", nil)
	good(t, err)
	same(t, "length", n, 0)
	holds(t, w, s, "key", "")
	now, err := s.Swap(w.ctx, "key", nil, []byte("value"))
	is(t, err, store.ErrConflict)
	if now == nil {
		t.Fatal("an empty entry is reported as absent")
	}
	now, err = s.Swap(w.ctx, "key", now, []byte("value"))
	good(t, err)
	same(t, "value", string(now), "value")
}

func revisionGrows(t *testing.T, w *world) {
	s := w.store()
	before := w.revision(s)
	for range 3 {
		w.set(s, "key")
		now := w.revision(s)
		if now <= before {
			t.Fatalf("revision %d after %d", now, before)
		}
		holds(t, w, s, "key", "key")
		same(t, "revision after a read", w.revision(s), now)
		before = now
	}
}

var counterChecks = []check{
	{"a counter starts at 0", addStarts, []Feature{Add}},
	{"a counter is decimal text", addText, []Feature{Add}},
	{"a counter that would overflow is ErrInvalid and stays", addOverflow, []Feature{Add, Checked}},
	{"what is no number is ErrInvalid and stays", addNoNumber, []Feature{Add, Checked}},
}

func addStarts(t *testing.T, w *world) {
	s := w.store()
	var sum int64
	for _, d := range []int64{5, -7, 0, 1 << 40} {
		sum += d
		n, err := s.Add(w.ctx, "n", d)
		good(t, err)
		same(t, "counter", n, sum)
	}
}

func addText(t *testing.T, w *world) {
	s := w.store()
	good(t, s.Set(w.ctx, "n", []byte("-12"), nil))
	n, err := s.Add(w.ctx, "n", 2)
	good(t, err)
	same(t, "counter", n, -10)
	holds(t, w, s, "n", "-10")
}

func addOverflow(t *testing.T, w *world) {
	s := w.store()
	for key, n := range map[string]int64{"up": math.MaxInt64, "down": math.MinInt64} {
		_, err := s.Add(w.ctx, key, n)
		good(t, err)
		_, err = s.Add(w.ctx, key, n/math.MaxInt64) // one more
		is(t, err, store.ErrInvalid)
		holds(t, w, s, key, fmt.Sprint(n))
	}
}

func addNoNumber(t *testing.T, w *world) {
	s := w.store()
	for _, v := range []string{"abc", "1.5", "12x", "0x10", "99999999999999999999"} {
		good(t, s.Set(w.ctx, "n", []byte(v), nil))
		_, err := s.Add(w.ctx, "n", 1)
		is(t, err, store.ErrInvalid)
		holds(t, w, s, "n", v)
	}
}

var swapChecks = []check{
	{"by value, absent or not", swapTable, []Feature{Swap}},
	{"of eight at once one wins", swapRace, []Feature{Swap}},
}

// swapTable has all cases; nil is "absent".
func swapTable(t *testing.T, w *world) {
	a, b, empty := []byte("a"), []byte("b"), []byte{}
	for _, c := range []struct {
		there, old, new, now []byte
		err                  error
	}{
		{nil, nil, a, a, nil},
		{a, nil, b, a, store.ErrConflict},
		{empty, nil, b, empty, store.ErrConflict},
		{a, a, b, b, nil},
		{a, b, b, a, store.ErrConflict},
		{nil, a, b, nil, store.ErrConflict},
		{a, a, nil, nil, nil},
		{a, b, nil, a, store.ErrConflict},
		{nil, a, nil, nil, store.ErrConflict},
		{nil, nil, nil, nil, nil},
		{a, nil, nil, a, store.ErrConflict},
		{empty, empty, a, a, nil},
		{a, a, empty, empty, nil},
		{nil, empty, a, nil, store.ErrConflict},
		{a, empty, b, a, store.ErrConflict},
	} {
		if c.old != nil && c.new == nil && w.lacks(Remove) {
			continue
		}
		name := fmt.Sprintf("%s is there, from %s to %s", show(c.there), show(c.old), show(c.new))
		t.Run(name, func(t *testing.T) { swapCase(t, w.world(t), c.there, c.old, c.new, c.now, c.err) })
	}
}

func swapCase(t *testing.T, w *world, there, old, new, now []byte, want error) {
	s := w.store()
	if there != nil {
		good(t, s.Set(w.ctx, "key", there, nil))
	}
	got, err := s.Swap(w.ctx, "key", old, new)
	if want != nil {
		is(t, err, want)
	} else {
		good(t, err)
	}
	same(t, "what is there now, as returned", got, now)
	if now == nil {
		lacksKey(t, w, s, "key")
		return
	}
	holds(t, w, s, "key", string(now))
}

func show(v []byte) string {
	switch {
	case v == nil:
		return "nothing"
	case len(v) == 0:
		return "an empty value"
	}
	return string(v)
}

func swapRace(t *testing.T, w *world) {
	s := w.store()
	out := together(8, func(i int) ([][]byte, error) {
		now, err := s.Swap(w.ctx, "lock", nil, []byte{byte('0' + i)})
		return [][]byte{now}, err
	})
	winner := slices.IndexFunc(out, func(o outcome) bool { return o.err == nil })
	for i, o := range out {
		same(t, "what is there", texts(o.values), []string{fmt.Sprint(winner)})
		if i != winner {
			is(t, o.err, store.ErrConflict)
		}
	}
}

var listChecks = []check{
	{"in the order of the keys' bytes", listOrder, []Feature{List}},
	{"only what has the prefix", listPrefix, []Feature{List}},
	{"of nothing", listNothing, []Feature{List}},
	{"more than a page", listPages, []Feature{List}},
	{"large values", listLarge, []Feature{List}},
	{"returns the TTL that is left", listTTL, []Feature{List, TTL}},
	{"returns the revision of the last change", listRevision, []Feature{List, Watch}},
	{"has the empty key too", listEmptyKey, []Feature{List}},
	{"may be left early", listBreak, []Feature{List}},
	{"of keys alone has all of them", keysAlone, []Feature{List}},
}

func (w *world) list(s *store.Store, prefix string) (entries []store.Entry) {
	w.t.Helper()
	for e, err := range s.List(w.ctx, prefix) {
		good(w.t, err)
		entries = append(entries, e)
	}
	return entries
}

func keysOf(entries []store.Entry) (keys []string) {
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	return keys
}

func listOrder(t *testing.T, w *world) {
	s := w.store()
	keys := []string{"b", "\xff", "a", "aa", "a\x00", "\x00", "ä", "B"}
	w.set(s, keys...)
	entries := w.list(s, "")
	slices.Sort(keys)
	same(t, "keys", keysOf(entries), keys)
	for _, e := range entries {
		same(t, "value of "+e.Key, string(e.Value), e.Key)
	}
}

func listPrefix(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "a", "a/", "a/b", "a/c", "a0", "b", "A/b", "\xff\xff", "\xff\xffx", "\xff")
	same(t, "below a/", keysOf(w.list(s, "a/")), []string{"a/", "a/b", "a/c"})
	same(t, "below the last bytes", keysOf(w.list(s, "\xff\xff")), []string{"\xff\xff", "\xff\xffx"})
}

func listNothing(t *testing.T, w *world) {
	s := w.store()
	same(t, "of an empty store", len(w.list(s, "")), 0)
	w.set(s, "a")
	same(t, "below what is not there", len(w.list(s, "b")), 0)
}

func listPages(t *testing.T, w *world) {
	s := w.store()
	const n = 2500
	want := make([]string, n)
	for i := range want {
		want[i] = fmt.Sprintf("many/%04d", i)
	}
	allGood(t, together(10, func(k int) ([][]byte, error) {
		for i := k; i < n; i += 10 {
			if err := s.Set(w.ctx, want[i], []byte(want[i]), nil); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}))
	w.set(s, "many", "many0", "more")
	same(t, "keys", keysOf(w.list(s, "many/")), want)
}

func listLarge(t *testing.T, w *world) {
	s := w.store()
	for i := range 5 {
		good(t, s.Set(w.ctx, fmt.Sprint(i), big(600<<10+i), nil))
	}
	entries := w.list(s, "")
	same(t, "keys", keysOf(entries), []string{"0", "1", "2", "3", "4"})
	for i, e := range entries {
		same(t, "length", len(e.Value), 600<<10+i)
	}
}

func keysAlone(t *testing.T, w *world) {
	s := w.store()
	var want []string
	for i := range 1500 {
		want = append(want, fmt.Sprintf("many/%04d", i))
	}
	w.set(s, want...)
	w.set(s, "other")
	var got []string
	for k, err := range s.Keys(w.ctx, "many/") {
		good(t, err)
		got = append(got, k)
	}
	same(t, "keys", got, want)
	var rep wire.Reply
	good(t, s.Do(w.ctx, &wire.Request{Op: wire.OpList, Key: "many/", Delta: -3}, &rep))
	same(t, "keys", rep.Keys, want[:3])
	same(t, "values", len(rep.Values), 0)
	same(t, "more", rep.N, 1)
}

func listTTL(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "for ever")
	ttl := 100 * w.TTL
	good(t, s.Set(w.ctx, "for a while", nil, &store.SetOptions{TTL: ttl}))
	entries := w.list(s, "for ")
	same(t, "keys", keysOf(entries), []string{"for a while", "for ever"})
	if left := entries[0].TTL; left <= 0 || left > ttl {
		t.Fatalf("TTL left is %v of %v", left, ttl)
	}
	same(t, "TTL of what stays", entries[1].TTL, 0)
}

func listRevision(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "old", "new", "old")
	now := w.revision(s)
	entries := w.list(s, "")
	same(t, "keys", keysOf(entries), []string{"new", "old"})
	same(t, "revision of the last change", entries[1].Rev, now)
	if entries[0].Rev >= now || entries[0].Rev == 0 {
		t.Fatalf("revision of the change before it is %d, the last is %d", entries[0].Rev, now)
	}
}

func listEmptyKey(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "", "a")
	same(t, "keys", keysOf(w.list(s, "")), []string{"", "a"})
}

func listBreak(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "a", "b")
	for e, err := range s.List(w.ctx, "") {
		good(t, err)
		same(t, "first", e.Key, "a")
		break
	}
	holds(t, w, s, "b", "b")
}
