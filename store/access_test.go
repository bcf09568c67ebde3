package store_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// operations returns all operations.
func operations() (ops []wire.Op) {
	for op := wire.Op(1); !strings.HasPrefix(op.String(), "op("); op++ {
		ops = append(ops, op)
	}
	return ops
}

func TestEveryOperationNeedsSomething(t *testing.T) {
	ops := operations()
	require.Contains(t, ops, wire.OpBackup)
	for _, op := range ops {
		switch op {
		case wire.OpLost, wire.OpBackup, wire.OpStacks:
			require.False(t, store.Known(uint8(op)), "%s takes all rights", op)
		default:
			require.True(t, store.Known(uint8(op)), "%s: give it a line in needs (access.go)", op)
		}
	}
	for op := len(ops) + 1; op < 256; op++ {
		require.False(t, store.Known(uint8(op)))
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
