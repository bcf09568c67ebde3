package etcdlog_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
)

// python returns the command that runs a program with muster's Python package. It skips the test if
// there is no Python with msgpack.
func python(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	exe := testcluster.Python(t, "msgpack")
	packages, err := filepath.Abs("../../clients/python")
	require.NoError(t, err)
	cmd := exec.CommandContext(bounded(t), exe, append([]string{"-c", program}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = t.Output()
	return cmd
}

// inPython returns the value of a key that Python reads at a URL, or the class of the exception.
func inPython(t *testing.T, rawurl, key string) string {
	t.Helper()
	out, err := python(t, `
import muster_pg, sys
try:
    with muster_pg.Store.connect(sys.argv[1], timeout=5) as s:
        print(s.get(sys.argv[2]).decode(), end="")
except muster_pg.Error as e:
    print(*(k.__name__ for k in (muster_pg.Denied, muster_pg.Unavailable) if isinstance(e, k)), end="")
    print(e, file=sys.stderr)
`, rawurl, key).Output()
	require.NoError(t, err)
	return string(out)
}

// TestPythonGoesOnAfterTakeovers checks that Python ranks that wait in a barrier when the leader is
// killed complete it at the next leader, and that each of their adds takes effect exactly once.
func TestPythonGoesOnAfterTakeovers(t *testing.T) {
	t.Parallel()
	r, members := threeReplicas(t)
	url := "etcd://" + strings.Join(addresses(members), ",") + "/" + strings.TrimSuffix(r.options.Root, "/")
	const rounds = 3
	ended := make(chan error, 2)
	for rank := range 2 {
		cmd := python(t, `
import muster_pg, sys
rank, rounds, url = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with muster_pg.Store.connect(url, timeout=60) as s, muster_pg.Group.join(rank, 3, url, name="job", timeout=60) as g:
    for i in range(rounds):
        s.add("rounds")
        g.barrier()
        s.add("rounds")
    g.shutdown()
    print("done", flush=True)
`, fmt.Sprint(rank), fmt.Sprint(rounds), url)
		go func() {
			out, err := cmd.Output()
			if err == nil && string(out) != "done\n" {
				err = fmt.Errorf("rank %d says %q", rank, out)
			}
			ended <- err
		}()
	}
	g, err := pgroup.Create(bounded(t), pgroup.Config{Name: "job", Address: url, Schemes: schemes(), Rank: 2, Size: 3, Timeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	s := open(t, url)
	for range rounds {
		testcluster.Eventually(t, testTimeout, func() bool {
			all, err := s.Status(bounded(t), "")
			require.NoError(t, err)
			for _, group := range all.Groups {
				for _, record := range group.Records {
					if record.Arrived.Count == 2 {
						return true
					}
				}
			}
			return false
		}, "both ranks of Python wait in the barrier")
		leader := r.leader(t)
		require.NoError(t, r.procs[leader].Signal(syscall.SIGKILL))
		<-r.procs[leader].Done()
		r.start(t, leader)
		require.NoError(t, g.Barrier(bounded(t)))
	}
	require.NoError(t, g.Shutdown(bounded(t)))
	for range cap(ended) {
		require.NoError(t, <-ended)
	}
	n, err := s.Add(bounded(t), "rounds", 0)
	require.NoError(t, err)
	require.EqualValues(t, 4*rounds, n)
}
