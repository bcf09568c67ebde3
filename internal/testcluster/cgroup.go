package testcluster

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ControlGroup returns the directory of a control group with a limit of memory, which a process enters by
// writing its number to cgroup.procs there. It is the same in all processes of a test, and ends with the
// test in the process that has made it. It skips the test if there is no place for one.
func ControlGroup(t testing.TB, limit int64) (dir string) {
	t.Helper()
	parent := os.Getenv("MUSTER_TEST_CGROUP")
	if parent == "" {
		t.Skip("SKIPPED: MUSTER_TEST_CGROUP names no directory of control groups, with the memory controller, to make one in: as root, /sys/fs/cgroup/memory perhaps, or /sys/fs/cgroup")
	}
	dir = filepath.Join(parent, "muster-"+strings.ReplaceAll(t.Name(), "/", "-"))
	switch err := os.Mkdir(dir, 0o755); {
	case err == nil:
		t.Cleanup(func() { assert.NoError(t, os.Remove(dir)) })
	case errors.Is(err, os.ErrExist): // another process of the test has made it
	default:
		require.NoError(t, err)
	}
	text := []byte(strconv.FormatInt(limit, 10))
	if os.WriteFile(filepath.Join(dir, "memory.max"), text, 0) != nil {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), text, 0))
	}
	return dir
}
