package hostmem

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClosed checks that a rank forgets no name that it has closed: when it cannot keep more, it has
// all.
func TestClosed(t *testing.T) {
	var c Closed
	require.False(t, c.Has("x"))
	c.Add("x")
	c.Add("x")
	require.True(t, c.Has("x"))
	require.False(t, c.Has("y"))
	for i := range maxClosed {
		c.Add(strconv.Itoa(i))
	}
	require.True(t, c.Has("x"))
	require.True(t, c.Has("y"))
	require.Len(t, c.names, maxClosed)
}
