package shm_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/shm"
)

// golden are the bytes of the protocol.
var golden = map[string]string{
	"segment": "734d0101 01000000 0807060504030201 0a000000 00000000 0000000400000000",
	"return":  "734d0102 01000000 0807060504030201 0a000000 00000000 4000000000000000 0001000000000000",
	"drop":    "734d0103 01000000 0807060504030201 0a000000 00000000",
}

func bytesOf(t testing.TB, golden string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(golden, " ", ""))
	require.NoError(t, err)
	return b
}

func TestGolden(t *testing.T) {
	for name, g := range golden {
		b := bytesOf(t, g)
		again, n, err := shm.Parse(append(b, 1, 2, 3))
		require.NoError(t, err, name)
		require.Equal(t, len(b), n, name)
		require.Equal(t, b, again, name)
		for i := range b {
			_, n, err := shm.Parse(b[:i])
			require.NoError(t, err, name)
			require.Zero(t, n, "%s is not all there", name)
		}
	}
}

// FuzzFrame checks that the parser accepts only frames that are encoded as the same bytes.
func FuzzFrame(f *testing.F) {
	for _, g := range golden {
		f.Add(bytesOf(f, g))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again, n, err := shm.Parse(b)
		if err != nil || n == 0 {
			return
		}
		require.Equal(t, b[:n], again)
	})
}

// FuzzConn sends a Conn any bytes, after a valid segment, while a block is shared over it.
func FuzzConn(f *testing.F) {
	for _, g := range golden {
		f.Add(bytesOf(f, g))
	}
	a := newArena(f, &shm.Options{Segment: 1 << 12})
	f.Add(message(2, 1, 1, 1, 0, 64))
	f.Add(message(3, 1, 1, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, p := raw(t)
		p.segment(p.memfd(1<<12, sealedAll), 1<<12)
		mine, ref := shared(t, c, a, 64, 1)
		p.giveBack(ref)
		_, _ = p.sock.Write(b)
		require.NoError(t, p.sock.CloseWrite())
		<-c.Done()
		require.Error(t, c.Err())
		require.NoError(t, c.WaitReleased(t.Context(), ref))
		require.NoError(t, c.Close())
		a.Free(mine)
		require.Zero(t, a.Stats().InUse)
	})
}

func TestBits(t *testing.T) {
	const n = 200
	for from := 0; from < n; from += 7 {
		for to := from + 1; to <= n; to += 5 {
			set, before, after := shm.Bits(n, from, to)
			require.False(t, before)
			require.True(t, after)
			for i := range n {
				require.Equal(t, from <= i && i < to, set[i/64]>>(i%64)&1 == 1)
			}
		}
	}
}
