package store_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestEveryOperationNeedsSomething checks that an operation needs all rights only if it is one of these, or
// unknown.
func TestEveryOperationNeedsSomething(t *testing.T) {
	takeAll := []wire.Op{wire.OpLost, wire.OpBackup, wire.OpStacks, wire.OpStalled}
	for op := range wire.Op(255) {
		unknown := strings.HasPrefix(op.String(), "op(")
		require.Equal(t, unknown || slices.Contains(takeAll, op), op.Right() == wire.NeedAll, "%s: give it a right in package wire", op)
	}
}

// TestRights checks what rights.txt cannot show: rights that only a branch of a relay
// has, and requests that no session makes.
func TestRights(t *testing.T) {
	accesses := []store.Access{{Prefix: "jobs/", Write: true}, {Prefix: "cfg/"}, {Prefix: "cfg/"}, {Write: true}}
	writer, reader, none := store.RightsOf(accesses, []int{0, 1}), store.RightsOf(accesses, []int{1}), store.RightsOf(accesses, nil)
	for _, tc := range []struct {
		req                  wire.Request
		writer, reader, none bool // which of the peers may do it
	}{
		{wire.Request{Op: wire.OpGet, Key: "cfg/x"}, true, true, false},
		{wire.Request{Op: wire.OpKeepAlive}, true, false, false},
		{wire.Request{Op: wire.OpJoin, Group: wire.Contribution{Group: "world", Generation: 7}}, true, true, true}, // a member of the group
		{wire.Request{Op: wire.OpCollect, Key: "not its own"}, true, true, true},
		{wire.Request{Op: wire.OpPing}, true, true, true},
		{wire.Request{Op: wire.OpLost}, false, false, false},
		{wire.Request{Op: 255}, false, false, false},
		{wire.Request{}, false, false, false},
	} {
		for who, may := range map[*store.Rights]bool{&writer: tc.writer, &reader: tc.reader, &none: tc.none, new(store.Rights): true} {
			require.Equal(t, may, store.Refuse(*who, &tc.req) == "", "%s: %s", tc.req.Op, *who)
		}
	}
	require.Nil(t, store.RightsOf(accesses, []int{0, 3}), "everything")
	require.Equal(t, "read and write everything", store.Rights(nil).String())
	require.Equal(t, "do nothing", none.String())
	require.Equal(t, reader, store.RightsOf(accesses, []int{1, 2}), "the same twice")
}
