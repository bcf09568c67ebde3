package core_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// sessions opens n sessions of m.
func sessions(m *core.Machine, n int) []uint64 {
	ids := make([]uint64, n)
	for i := range ids {
		var rep wire.Reply
		m.Apply(0, core.Local, &wire.Request{Op: wire.OpHello, ID: uint64(i + 1), Key: "peer"}, &rep)
		ids[i] = uint64(rep.N)
	}
	return ids
}

// TestHeldBytesAreBounded checks that beyond the limit of a session, or of all, a request that
// would wait is refused. A request that frees memory is not, and an applied request gets its
// answer.
func TestHeldBytesAreBounded(t *testing.T) {
	m := core.New(core.Limits{Held: 200 << 10, HeldOf: 100 << 10})
	ids := sessions(m, 3)
	wait := func(session, id uint64) string {
		req := &wire.Request{Op: wire.OpWait, ID: id, Keys: []string{strings.Repeat("k", 8<<10)}}
		if why := m.Refuses(session, req); why != "" {
			return why
		}
		require.False(t, m.Apply(0, session, req, new(wire.Reply)))
		return ""
	}
	fill := func(session uint64) (n uint64, why string) {
		for n = 1; why == ""; n++ {
			why = wait(session, n)
		}
		return n - 2, why
	}
	popped := &wire.Request{Op: wire.OpPop, ID: 900, Number: 1, Key: "q"}
	m.Apply(0, ids[0], popped, new(wire.Reply))
	n, why := fill(ids[0])
	require.InDelta(t, 10, n, 1)
	require.Contains(t, why, "Limits.HeldOf")
	n, why = fill(ids[1])
	require.InDelta(t, 10, n, 1)
	require.Contains(t, why, "Limits.HeldOf")
	_, why = fill(ids[2])
	require.Contains(t, why, "all sessions hold")

	require.Empty(t, m.Refuses(ids[0], &wire.Request{Op: wire.OpWait, ID: 1, Keys: []string{strings.Repeat("k", 8<<10)}}), "it waits already")
	require.Empty(t, m.Refuses(ids[0], popped), "it has been carried out")
	require.Empty(t, m.Refuses(ids[0], &wire.Request{Op: wire.OpSet, ID: 902, Key: "k"}))
	require.Empty(t, m.Refuses(core.Local, &wire.Request{Op: wire.OpWait, ID: 1, Keys: []string{"k"}}), "the process's own")

	for id := range uint64(20) {
		m.Apply(0, ids[0], &wire.Request{Op: wire.OpCancel, ID: id}, new(wire.Reply))
	}
	require.Empty(t, wait(ids[0], 1))
	for _, id := range ids {
		m.Apply(0, id, &wire.Request{Op: wire.OpGoodbye}, new(wire.Reply))
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
	m := core.New(core.Limits{})
	s := sessions(m, 1)[0]
	join := func(rank, n int) (answered bool, rep wire.Reply) {
		answered = m.Apply(0, s, &wire.Request{
			Op: wire.OpJoin, ID: uint64(rank + 1), Value: make([]byte, n), Group: wire.Contribution{Group: "g", Rank: rank, Size: size},
		}, &rep)
		return answered, rep
	}
	answered, rep := join(0, most+1)
	require.True(t, answered)
	require.Equal(t, wire.CodeTooLarge, rep.Code)
	require.Contains(t, rep.Detail, "in a group of 300 the limit is 223696")
	require.Zero(t, m.Holdings().Forming)
	for rank := range size {
		answered, rep = join(rank, most)
		require.False(t, answered, rep.Detail)
	}
	es := m.Effects()
	require.Len(t, es, size)
	sum := 0
	for _, v := range es[0].Reply.Values {
		sum += len(v)
	}
	require.LessOrEqual(t, sum, 64<<20)
}
