package core_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// TestKeysEndWithTheirGroup checks that the keys below a generation are deleted, in portions, when
// its last rank has left, also by a store that was restored meanwhile, and that others stay.
func TestKeysEndWithTheirGroup(t *testing.T) {
	r := newRig(t)
	at := wire.Contribution{Group: "g", Size: 1}
	rep := r.does(core.Local, wire.Request{Op: wire.OpJoin, Group: at})
	isCode(t, rep, wire.CodeOK)
	at.Generation = rep.Rev
	below := fmt.Sprintf("g/%d/", at.Generation)
	for i := range 100 {
		isCode(t, r.does(core.Local, set(below+fmt.Sprint(i), "")), wire.CodeOK)
	}
	others := []string{"g", fmt.Sprintf("g/%d", at.Generation), fmt.Sprintf("g/%d1/x", at.Generation), "g/x", "h/1/x"}
	for _, key := range others {
		isCode(t, r.does(core.Local, set(key, "")), wire.CodeOK)
	}
	isCode(t, r.does(core.Local, wire.Request{Op: wire.OpLeave, Group: at}), wire.CodeOK)
	r.m.Tick(r.now)
	require.Greater(t, r.m.Keys(), len(others), "a Tick takes no longer than a moment")
	shot := r.m.Snapshot()
	var entries []core.Entry
	for more := true; more; {
		var some []core.Entry
		some, more = shot.Next(1000, math.MaxInt)
		entries = append(entries, some...)
	}
	m, err := core.Restore(core.Limits{}, shot.State, func(yield func(core.Entry, error) bool) {
		for _, e := range entries {
			_ = yield(e, nil)
		}
	})
	require.NoError(t, err)
	for _, m := range []*core.Machine{r.m, m} {
		r.m = m
		r.pass(0)
		require.Equal(t, len(others), m.Keys())
		for _, key := range others {
			isCode(t, r.does(core.Local, get(key)), wire.CodeOK)
		}
	}
}
