package pgroup_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// TestOneRankMakesNoMemory checks that a rank that may not make a memory, by a seccomp filter, opens
// that of another one.
func TestOneRankMakesNoMemory(t *testing.T) {
	pgrouptest.Job{N: 2}.Run(t, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 1 {
			testcluster.Refuse(t, unix.SYS_MEMFD_CREATE, unix.SECCOMP_FILTER_FLAG_TSYNC)
			_, err := unix.MemfdCreate("x", 0)
			require.ErrorIs(t, err, unix.EPERM)
		}
		untilInMemory(t, g)
		require.NoError(t, g.Shutdown(t.Context()))
	})
}
