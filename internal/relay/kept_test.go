package relay

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// TestARelayBoundsWhatItKeeps checks that a store cannot fill the memory of its relays.
func TestARelayBoundsWhatItKeeps(t *testing.T) {
	body := make([]byte, 1<<20)
	keep := func(first func(number uint32) uint32) error {
		kept := bodies{}
		for number := uint32(1); number <= 100; number++ {
			outer, err := wire.ParseHeader(wire.AppendKeep(nil, wire.Keep{Number: number, First: first(number)}, len(body), wire.RelayCall{}), wire.MaxReply)
			require.NoError(t, err)
			if _, err := kept.use(outer, wire.Header{Len: uint32(len(body))}, body); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, keep(func(number uint32) uint32 { return max(number, 16) - 15 }))
	require.ErrorIs(t, keep(func(uint32) uint32 { return 1 }), errNoRoom)
}
