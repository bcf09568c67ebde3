//go:build !linux

package shm_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/shm"
)

func TestUnsupported(t *testing.T) {
	_, err := shm.NewArena(nil)
	require.ErrorIs(t, err, shm.ErrUnsupported)
	var a shm.Arena
	_, ok := a.Find(make([]byte, 1))
	require.False(t, ok)
	c := shm.NewConn(new(net.UnixConn))
	<-c.Done()
	require.ErrorIs(t, c.Err(), shm.ErrUnsupported)
	require.ErrorIs(t, c.Share(t.Context(), &a, shm.Ref{}), shm.ErrUnsupported)
}
