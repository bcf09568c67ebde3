package wire_test

import (
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

func TestQueueKeys(t *testing.T) {
	require.Equal(t, "q\x00queue", wire.QueueKey("q"))
	require.Equal(t, "q\x00queue/00000000000000ff", wire.QueuedKey("q", 255))
	require.Less(t, wire.QueuedKey("q", 9), wire.QueuedKey("q", 16), "the order of keys is that of numbers")
	for _, n := range []uint64{0, 255, math.MaxUint64} {
		got, ok := wire.QueuedNumber("q", wire.QueuedKey("q", n))
		require.True(t, ok)
		require.Equal(t, n, got)
	}
	for _, key := range []string{
		"", "q", wire.QueueKey("q"), wire.QueuedKey("p", 1), wire.QueuedKey("q", 1) + "0", wire.QueuedKey("q", 1)[:23],
		"q\x00queue/00000000000000FF", "q\x00queue/+0000000000000ff", "q\x00queue-00000000000000ff",
	} {
		_, ok := wire.QueuedNumber("q", key)
		require.False(t, ok, "%q", key)
	}
}

func TestQueueHead(t *testing.T) {
	b := wire.AppendQueueHead(nil, wire.QueueHead{First: 1, Next: 258})
	require.Equal(t, "0100000000000000"+"0201000000000000", hex.EncodeToString(b))
	h, ok := wire.ParseQueueHead(b)
	require.True(t, ok)
	require.Equal(t, wire.QueueHead{First: 1, Next: 258}, h)
	require.EqualValues(t, 257, h.Len())
	for _, bad := range [][]byte{
		nil,
		{},
		b[:15], append(b, 0), make([]byte, 16), wire.AppendQueueHead(nil, wire.QueueHead{First: 2, Next: 1}),
		wire.AppendQueueHead(nil, wire.QueueHead{First: 2, Next: 1 << 63}),
	} {
		_, ok := wire.ParseQueueHead(bad)
		require.False(t, ok, "%x", bad)
	}
}
