package tcpstore_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
)

// python returns the command that runs a script of testdata.
func python(ctx context.Context, t testing.TB, script string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, testcluster.Torch(t), append([]string{filepath.Join("testdata", script)}, args...)...)
	// PyTorch's server looks up the host name of each client in its only thread, which can take
	// five seconds without a name server.
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=1", "RES_OPTIONS=timeout:1 attempts:1")
	return cmd
}

// lines runs cmd, and calls each for every line of its output as it comes.
func lines(t *testing.T, cmd *exec.Cmd, each func(line string)) {
	t.Helper()
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for s := bufio.NewScanner(out); s.Scan(); {
		each(s.Text())
	}
	require.NoError(t, cmd.Wait(), "%s", &complaints)
}

// cases runs testdata/cases.py against the server at addr, each case as a subtest.
func cases(t *testing.T, addr string) {
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	ran := 0
	lines(t, python(t.Context(), t, "cases.py", host, port), func(line string) {
		what, why, _ := strings.Cut(line, ": ")
		if name, ok := strings.CutPrefix(what, "torch "); ok {
			t.Log("torch", name)
			return
		}
		name := what[strings.LastIndexByte(what, ' ')+1:]
		t.Run(name, func(t *testing.T) {
			switch {
			case strings.HasPrefix(what, "skip "):
				t.Skip("SKIPPED: ", why)
			case !strings.HasPrefix(what, "ok "):
				t.Error(strings.ReplaceAll(line, `\n`, "\n"))
			}
			ran++
		})
	})
	require.Greater(t, ran, 5)
}

// TestPythonClients runs the cases with Python's own client of our server.
func TestPythonClients(t *testing.T) {
	s := current(t)
	cases(t, s.addr)
	v, err := s.Get(s.ctx, tcpstore.InitKey)
	require.NoError(t, err)
	require.Equal(t, "3", string(v), "clients of the case with a world size")
}

// TestProcessGroup checks a process group of four Python ranks whose store is a Go process.
func TestProcessGroup(t *testing.T) {
	const size = 4
	s := current(t)
	host, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	ok := 0
	lines(t, python(t.Context(), t, "group.py", host, port, fmt.Sprint(size)), func(line string) {
		if strings.HasPrefix(line, "ok ") {
			ok++
		}
	})
	require.Equal(t, 2*size, ok, "each rank, twice")
}
