package core_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

func set(key, value string) wire.Request {
	return wire.Request{Op: wire.OpSet, Key: key, Value: []byte(value)}
}

func get(key string) wire.Request { return wire.Request{Op: wire.OpGet, Key: key} }

func waitFor(keys ...string) wire.Request { return wire.Request{Op: wire.OpWait, Keys: keys} }

// TestListIsBounded checks that a page of a list has at most 1,000 entries, and ends with the one
// that takes it beyond 1 MiB. N is 1 if there are more.
func TestListIsBounded(t *testing.T) {
	r := newRig(t)
	const n = 1500
	for i := range n {
		r.does(core.Local, set(fmt.Sprintf("dir/%04d", i), "value"))
	}
	value := string(make([]byte, 300<<10))
	for i := range 8 {
		r.does(core.Local, set(fmt.Sprint("large/", i), value))
	}
	for name, c := range map[string]struct {
		prefix, after string
		limit         int64
		keys          int
		more          int64
	}{
		"default":                {"dir/", "", 0, 1000, 1},
		"fewer":                  {"dir/", "", 700, 700, 1},
		"more than there may be": {"dir/", "", 5000, 1000, 1},
		"the rest":               {"dir/", "dir/0999", 0, 500, 0},
		"all there are":          {"dir/", "dir/0999", 500, 500, 0},
		"bytes":                  {"large/", "", 0, 4, 1},
		"the rest of the bytes":  {"large/", "large/3", 0, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			req := wire.Request{Op: wire.OpList, Key: c.prefix, Limit: c.limit}
			if c.after != "" {
				req.Keys = []string{c.after}
			}
			rep := r.does(core.Local, req)
			require.Equal(t, []any{c.keys, 2 * c.keys, c.more}, []any{len(rep.Keys), len(rep.Nums), rep.N})
			require.True(t, slices.IsSorted(rep.Keys))
			require.Greater(t, rep.Keys[0], c.after)
		})
	}
}

func TestHistoryIsBoundedInBytes(t *testing.T) {
	r := newRig(t)
	value := string(make([]byte, 1<<20))
	for range 20 {
		r.does(core.Local, set("key", value))
	}
	isCode(t, r.does(core.Local, watch("", 2)), wire.CodeCompacted)
	isCode(t, r.does(core.Local, watch("", 20)), wire.CodeOK)
}
