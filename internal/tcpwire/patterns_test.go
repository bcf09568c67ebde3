package tcpwire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// TestAwait has a line of testdata/await.txt for what is known of each key.
func TestAwait(t *testing.T) {
	datadriven.RunTest(t, "testdata/await.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		for key := range strings.FieldsSeq(d.Input) {
			a, ok := tcpwire.Await(strings.Trim(key, `"`))
			if !ok {
				require.Zero(t, a)
				fmt.Fprintln(&out, "unknown")
				continue
			}
			fmt.Fprintf(&out, "%s of group %s: rank %d, arrivals %q, counter %q, world %v\n", a.What, a.Group, a.Rank, a.Arrivals, a.Counter, a.World)
		}
		return out.String()
	})
}

func TestArrive(t *testing.T) {
	group, rank, ok := tcpwire.Arrive("default_pg/0//1//cpu//0/2")
	require.True(t, ok)
	require.Equal(t, "default_pg/1", group)
	require.Equal(t, 2, rank)
	for _, key := range []string{"", "n", "n1", "default_pg/0//cuda//0", "torchelastic/assigned_ranks/1", "default_pg/0//cpu//0/x"} {
		_, _, ok := tcpwire.Arrive(key)
		require.False(t, ok, key) // others than the rank set these keys, or the key says nothing
	}
}
