package core_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// TestHeldBytesAreBounded checks that beyond the limit of a session, or of all, a request that
// would wait is refused. A request that frees memory is not, and an applied request gets its
// answer.
func TestHeldBytesAreBounded(t *testing.T) {
	r := newRigWith(t, core.Limits{Held: 200 << 10, HeldOf: 100 << 10})
	m, ids := r.m, []uint64{r.session(), r.session(), r.session()}
	wait := func(session, id uint64) string {
		req := wire.Request{Op: wire.OpWait, ID: id, Keys: []string{strings.Repeat("k", 8<<10)}}
		why := m.Refuses(session, &req)
		if why == "" {
			r.waits(session, req)
		}
		return why
	}
	fill := func(session uint64) (n uint64, why string) {
		for n = 1; why == ""; n++ {
			why = wait(session, n)
		}
		return n - 2, why
	}
	popped := wire.Request{Op: wire.OpPop, ID: 900, Number: 1, Key: "q"}
	r.does(ids[0], popped)
	n, why := fill(ids[0])
	require.InDelta(t, 10, n, 1)
	require.Contains(t, why, "Limits.HeldOf")
	n, why = fill(ids[1])
	require.InDelta(t, 10, n, 1)
	require.Contains(t, why, "Limits.HeldOf")
	_, why = fill(ids[2])
	require.Contains(t, why, "all sessions hold")

	require.Empty(t, m.Refuses(ids[0], &wire.Request{Op: wire.OpWait, ID: 1, Keys: []string{strings.Repeat("k", 8<<10)}}), "it waits already")
	require.Empty(t, m.Refuses(ids[0], &popped), "it has been carried out")
	require.Empty(t, m.Refuses(ids[0], &wire.Request{Op: wire.OpSet, ID: 902, Key: "k"}))
	require.Empty(t, m.Refuses(core.Local, &wire.Request{Op: wire.OpWait, ID: 1, Keys: []string{"k"}}), "the process's own")

	for id := range uint64(20) {
		r.does(ids[0], wire.Request{Op: wire.OpCancel, ID: id + 1})
	}
	require.Empty(t, wait(ids[0], 901))
	for _, id := range ids {
		r.does(id, wire.Request{Op: wire.OpGoodbye})
	}
	kept, tally, agree := m.Account()
	require.Equal(t, tally, kept)
	require.True(t, agree)
	require.Less(t, kept, int64(2<<10), "nothing but the machine's own session")
}

// TestMembersFitOneAnswer checks the limit of a member's data: all members of a group go to each
// rank in one answer, so each may have its share of that answer.
func TestMembersFitOneAnswer(t *testing.T) {
	const size, most = 300, 64 << 20 / 300
	r := newRig(t)
	s := r.session()
	join := func(rank, n int) *wire.Reply {
		_, rep := r.call(s, wire.Request{Op: wire.OpJoin, Value: make([]byte, n), Group: wire.Contribution{Group: "g", Rank: rank, Size: size}})
		return rep
	}
	rep := join(0, most+1)
	isCode(t, rep, wire.CodeTooLarge)
	require.Contains(t, rep.Detail, "in a group of 300 the limit is 223696")
	require.Zero(t, r.m.Holdings().Forming)
	for rank := range size {
		rep = join(rank, most)
	}
	isCode(t, rep, wire.CodeOK)
	sum := 0
	members := r.does(s, wire.Request{Op: wire.OpMembers, Group: wire.Contribution{Generation: rep.Rev}}).Values
	for _, v := range members {
		sum += len(v)
	}
	require.Len(t, members, size)
	require.LessOrEqual(t, sum, 64<<20)
}
