package core_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

func set(key, value string) wire.Request {
	return wire.Request{Op: wire.OpSet, Key: key, Value: []byte(value)}
}

func get(key string) wire.Request { return wire.Request{Op: wire.OpGet, Key: key} }

func waitFor(keys ...string) wire.Request { return wire.Request{Op: wire.OpWait, Keys: keys} }

func TestTimesThatNoClockReaches(t *testing.T) {
	r := newRig(t)
	r.pass(time.Hour)
	forever := set("key", "value")
	forever.TTL = math.MaxInt64
	r.does(core.Local, forever)
	patient := waitFor("other")
	patient.Timeout = math.MaxInt64
	ticket := r.waits(core.Local, patient)
	r.pass(1000 * time.Hour)
	isCode(t, r.does(core.Local, get("key")), wire.CodeOK)
	r.does(core.Local, set("other", "value"))
	isCode(t, r.answer(ticket), wire.CodeOK)
	forever.TTL = -1
	isCode(t, r.does(core.Local, forever), wire.CodeInvalid)
}

func list(prefix, after string, limit int64) wire.Request {
	req := wire.Request{Op: wire.OpList, Key: prefix, Limit: limit}
	if after != "" {
		req.Keys = []string{after}
	}
	return req
}

func TestListPages(t *testing.T) {
	r := newRig(t)
	const n = 2500
	for i := range n {
		r.does(core.Local, set(fmt.Sprintf("dir/%04d", i), "value"))
	}
	r.does(core.Local, set("dir", "beside"))
	r.does(core.Local, set("dis", "behind"))
	for name, c := range map[string]struct {
		limit int64
		pages int
	}{"default": {0, 3}, "700": {700, 4}, "more than there may be": {5000, 3}, "to the last": {1250, 3}} {
		t.Run(name, func(t *testing.T) {
			var keys []string
			pages, after := 0, ""
			for more := true; more; {
				rep := r.does(core.Local, list("dir/", after, c.limit))
				keys = append(keys, rep.Keys...)
				same(t, "revision", rep.Rev, uint64(n+3))
				same(t, "numbers", len(rep.Nums), 2*len(rep.Keys))
				after, more = keys[len(keys)-1], rep.N == 1
				pages++
			}
			same(t, "keys", len(keys), n)
			same(t, "sorted", slices.IsSorted(keys), true)
			same(t, "pages", pages, c.pages)
		})
	}
}

func TestListStopsAtBytes(t *testing.T) {
	r := newRig(t)
	value := string(make([]byte, 300<<10))
	for i := range 8 {
		r.does(core.Local, set(fmt.Sprint("key ", i), value))
	}
	rep := r.does(core.Local, list("", "", 0))
	same(t, "more", rep.N, 1)
	same(t, "keys", len(rep.Keys), 4) // the first that goes beyond 1 MiB is the last
	rep = r.does(core.Local, list("", "key 3", 0))
	same(t, "first", rep.Keys[0], "key 4")
	same(t, "more", rep.N, 0)
}

func changes(prefix string, rev uint64) wire.Request {
	return wire.Request{Op: wire.OpWatch, Key: prefix, After: rev}
}

func TestHistoryIsBoundedInBytes(t *testing.T) {
	r := newRig(t)
	value := string(make([]byte, 1<<20))
	for range 20 {
		r.does(core.Local, set("key", value))
	}
	isCode(t, r.does(core.Local, changes("", 2)), wire.CodeCompacted)
	isCode(t, r.does(core.Local, changes("", 20)), wire.CodeOK)
}
