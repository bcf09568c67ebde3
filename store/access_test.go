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

func TestRights(t *testing.T) {
	accesses := []store.Access{
		{Secret: secretOf("a"), Prefix: "jobs/a/", Write: true},
		{Secret: secretOf("a"), Prefix: "cfg/"},
		{Secret: secretOf("b"), Prefix: "cfg/"},
		{Secret: secretOf("c")},
		{Secret: secretOf("d"), Write: true},
	}
	writer, reader, all, none := store.RightsOf(accesses, []int{0, 1}), store.RightsOf(accesses, []int{2}), store.RightsOf(accesses, []int{3}), store.RightsOf(accesses, nil)
	keys := func(op wire.Op, keys ...string) wire.Request { return wire.Request{Op: op, Keys: keys} }
	join := func(group string, generation uint64) wire.Request {
		return wire.Request{Op: wire.OpJoin, Group: wire.Contribution{Group: group, Generation: generation}}
	}
	for _, tc := range []struct {
		req                       wire.Request
		writer, reader, all, none bool // which of the peers may do it
	}{
		{wire.Request{Op: wire.OpGet, Key: "jobs/a/x"}, true, false, true, false},
		{wire.Request{Op: wire.OpGet, Key: "jobs/a/"}, true, false, true, false},
		{wire.Request{Op: wire.OpGet, Key: "jobs/a"}, false, false, true, false},
		{wire.Request{Op: wire.OpGet, Key: "cfg/x"}, true, true, true, false},
		{wire.Request{Op: wire.OpGet}, false, false, true, false},
		{keys(wire.OpWait, "jobs/a/x", "cfg/x"), true, false, true, false},
		{keys(wire.OpWait, "cfg/x", "cfg/y"), true, true, true, false},
		{keys(wire.OpWait, "cfg/x", "jobs/b/y"), false, false, true, false},
		{wire.Request{Op: wire.OpList, Key: "cfg/"}, true, true, true, false},
		{wire.Request{Op: wire.OpList, Key: "cfg/x", Keys: []string{"cfg/x1"}}, true, true, true, false},
		{wire.Request{Op: wire.OpList, Key: "cfg"}, false, false, true, false},
		{wire.Request{Op: wire.OpList}, false, false, true, false},
		{wire.Request{Op: wire.OpWatch, Key: "jobs/a/"}, true, false, true, false},
		{wire.Request{Op: wire.OpWatch, Key: "jobs/"}, false, false, true, false},
		{wire.Request{Op: wire.OpSet, Key: "jobs/a/x"}, true, false, false, false},
		{wire.Request{Op: wire.OpSet, Key: "cfg/x"}, false, false, false, false},
		{wire.Request{Op: wire.OpAdd, Key: "jobs/a/x"}, true, false, false, false},
		{wire.Request{Op: wire.OpSwap, Key: "jobs/a/x"}, true, false, false, false},
		{wire.Request{Op: wire.OpSwap, Key: "cfg/x"}, false, false, false, false},
		{wire.Request{Op: wire.OpAppend, Key: "jobs/b/x"}, false, false, false, false},
		{keys(wire.OpDelete, "jobs/a/x", "jobs/a/y"), true, false, false, false},
		{keys(wire.OpDelete, "jobs/a/x", "cfg/x"), false, false, false, false},
		{wire.Request{Op: wire.OpPush, Key: "jobs/a/q"}, true, false, false, false},
		{wire.Request{Op: wire.OpPush, Key: "cfg/q"}, false, false, false, false},
		{wire.Request{Op: wire.OpPop, Key: "jobs/a/q"}, true, false, false, false},
		{wire.Request{Op: wire.OpPop, Key: "cfg/q"}, false, false, false, false},
		{join("jobs/a/world", 0), true, false, false, false},
		{join("world", 0), false, false, false, false},
		{join("cfg/world", 0), false, false, false, false},
		{join("world", 7), true, true, true, true}, // a member of the group
		{wire.Request{Op: wire.OpGrant}, true, false, false, false},
		{wire.Request{Op: wire.OpKeepAlive}, true, false, false, false},
		{wire.Request{Op: wire.OpRevoke}, true, false, false, false},
		{wire.Request{Op: wire.OpBackup}, false, false, false, false},
		{wire.Request{Op: wire.OpStatus, Key: "jobs/a/"}, true, false, true, false},
		{wire.Request{Op: wire.OpStatus}, false, false, true, false},
		{wire.Request{Op: wire.OpLost}, false, false, false, false},
		{wire.Request{Op: 255}, false, false, false, false},
		{wire.Request{}, false, false, false, false},
		{wire.Request{Op: wire.OpPing}, true, true, true, true},
		{wire.Request{Op: wire.OpCollect, Key: "not its own"}, true, true, true, true},
	} {
		for who, may := range map[*store.Rights]bool{&writer: tc.writer, &reader: tc.reader, &all: tc.all, &none: tc.none, new(store.Rights): true} {
			why := store.Refuse(*who, &tc.req)
			require.Equal(t, may, why == "", "%s %q %q %q: %s: %s", tc.req.Op, tc.req.Key, tc.req.Keys, tc.req.Group.Group, *who, why)
		}
	}
	require.Nil(t, store.RightsOf(accesses, []int{0, 4}), "everything")
	require.NotNil(t, none)
	require.Equal(t, reader, store.RightsOf(accesses, []int{1, 2}), "the same twice")
}

// TestRightsTexts checks the texts that rights.txt does not show: of long names, of many rights, and of none.
func TestRightsTexts(t *testing.T) {
	long := strings.Repeat("x", 200)
	var many []store.Access
	for _, p := range []string{"a/", "b/", "c/", "d/", "e/", "f/"} {
		many = append(many, store.Access{Prefix: p})
	}
	for want, r := range map[string]store.Rights{
		`no right to read "` + long[:97] + `…": this peer may read below "a/", and read below "b/", and read below "c/", and read below "d/", and 2 more`: store.RightsOf(many, []int{0, 1, 2, 3, 4, 5}),
		`no right to read "` + long[:97] + `…": this peer may do nothing`:                                                                                 store.RightsOf(nil, nil),
	} {
		require.Equal(t, want, store.Refuse(r, &wire.Request{Op: wire.OpGet, Key: long}))
	}
	require.Equal(t, "read and write everything", store.Rights(nil).String())
}

func TestCheckAccess(t *testing.T) {
	require.NoError(t, store.CheckAccess(nil))
	require.NoError(t, store.CheckAccess([]store.Access{{Secret: secretOf("a")}, {Name: "n", Prefix: "p"}, {Secret: make([]byte, 4096), Write: true}}))
	for want, bad := range map[string]store.Access{
		`store: access "1": invalid request: neither a secret nor a name`: {Prefix: "x"},
		`a secret and a name`:                        {Secret: secretOf("a"), Name: "n"},
		`0 bytes are too few`:                        {Secret: []byte{}},
		`15 bytes are too few, it needs 16: "(umask`: {Secret: make([]byte, 15)},
		`more than 4096`:                             {Secret: make([]byte, 4097)},
	} {
		err := store.CheckAccess([]store.Access{{Name: "good"}, bad})
		require.ErrorIs(t, err, store.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
}
