package core_test

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
)

// TestCopyValue checks that a copy shares no memory, and that a large one is not at the start of a
// page, where a short head before it makes the kernel's copy slow.
func TestCopyValue(t *testing.T) {
	require.Nil(t, core.CopyValue(nil))
	require.Equal(t, []byte{}, core.CopyValue([]byte{}))
	for _, n := range []int{1, 100, 8<<10 - 1, 8 << 10, 16 << 10, 64 << 10, 1<<20 - 1, 16 << 20} {
		v := bytes.Repeat([]byte{7}, n)
		c := core.CopyValue(v)
		require.True(t, bytes.Equal(v, c))
		v[0], v[n-1] = 8, 8
		require.Equal(t, []byte{7, 7}, []byte{c[0], c[n-1]}, "%d bytes", n)
		require.Less(t, cap(c), n+n/4+64, "%d bytes", n)
		if n >= 8<<10 {
			require.GreaterOrEqual(t, uintptr(unsafe.Pointer(&c[0]))%4096, uintptr(16), "%d bytes", n)
		}
	}
}
