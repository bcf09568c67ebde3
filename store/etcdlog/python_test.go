package etcdlog_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// inPython returns the value of a key that Python reads at a URL, or the class of the exception. It
// skips the test if there is no Python with msgpack.
func inPython(t *testing.T, rawurl, key string) string {
	t.Helper()
	packages, err := filepath.Abs("../../clients/python")
	require.NoError(t, err)
	cmd := exec.CommandContext(bounded(t), testcluster.Python(t, "msgpack"), "-c", `
import muster_pg, sys
try:
    with muster_pg.Store.connect(sys.argv[1], timeout=5) as s:
        print(s.get(sys.argv[2]).decode(), end="")
except muster_pg.Error as e:
    print(*(k.__name__ for k in (muster_pg.Denied, muster_pg.Unavailable) if isinstance(e, k)), end="")
    print(e, file=sys.stderr)
`, rawurl, key)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	require.NoError(t, err)
	return string(out)
}
