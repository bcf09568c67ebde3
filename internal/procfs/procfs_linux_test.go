package procfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/procfs"
)

func TestStat(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stat")
	for text, want := range map[string]procfs.Stat{
		"7 (a) R (b)) S 5 6 0 0 0 0 0 0 0 0 30 4 0 0 0 0 1 0 8899 0": {State: 'S', Parent: 5, Group: 6, Ticks: 34, Start: "8899"},
		"7 (a) Z 5 6": {},
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		got, ok := procfs.Read(file)
		require.Equal(t, want, got)
		require.Equal(t, want.Start != "", ok)
	}
	self, _ := procfs.Process(os.Getpid())
	require.Equal(t, os.Getppid(), self.Parent)
	require.False(t, self.Ended() || self.Stopped())
	_, ok := procfs.Process(1 << 30)
	require.False(t, ok)
}
