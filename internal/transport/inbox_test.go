package transport_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/transport"
)

// TestInboxAndBudget checks what an Inbox takes from a budget: nothing for the first part of a small
// message, however full the budget is, and nothing for memory that it no longer has.
func TestInboxAndBudget(t *testing.T) {
	budget := transport.NewBudget(100_000)
	receive := func(in *transport.Inbox, borrowed []byte, need, n int) {
		room := in.Room(borrowed, need)
		require.GreaterOrEqual(t, len(room), n)
		in.Advance(n)
	}
	borrowed := make([]byte, 4096)

	large := &transport.Inbox{First: 100_000, Budget: budget}
	receive(large, borrowed, 100_000, 100_000)
	small := &transport.Inbox{First: 4096, Budget: budget}
	receive(small, borrowed, 30, 5)
	small.Compact()
	rest, err := small.Unread()
	require.NoError(t, err)
	require.Len(t, rest, 5)

	require.True(t, large.Take(80_000))
	require.False(t, large.Take(20_000))
	receive(large, borrowed, 30, 5)
	require.True(t, budget.Reserve(100_000), "all was returned")
}
