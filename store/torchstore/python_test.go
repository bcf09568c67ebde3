package torchstore_test

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
	"github.com/muster-pg/muster/store/torchstore"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// python is a Python that has torch.
type python struct {
	name string
	exe  func(t testing.TB, modules ...string) string
	g    tcpstore.Generation
}

// pythons returns Debian's Python, and the one that .ci/python installs.
func pythons() []python {
	return []python{{"Debian", testcluster.DebianTorch, tcpstore.A}, {"current", testcluster.Torch, tcpstore.C}}
}

// rarely skips a case with the older torch by default. It is for tests of which the protocol's part
// is covered with both by TestPythonClients and TestClientOfPythonsServer.
func (p python) rarely(t *testing.T) {
	t.Helper()
	if p.g == tcpstore.A {
		testcluster.SoakOnly(t, "the older torch takes seconds to load")
	}
}

// command returns the command that runs a script of testdata.
func (p python) command(ctx context.Context, t testing.TB, script string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, p.exe(t), append([]string{filepath.Join("testdata", script)}, args...)...)
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
func (p python) cases(t *testing.T, addr string) {
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	ran := 0
	lines(t, p.command(t.Context(), t, "cases.py", host, port), func(line string) {
		what, why, _ := strings.Cut(line, ": ")
		if name, ok := strings.CutPrefix(what, "torch "); ok {
			t.Log("torch", name)
			return
		}
		name := what[strings.LastIndexByte(what, ' ')+1:]
		t.Run(name, func(t *testing.T) {
			switch {
			case strings.HasPrefix(what, "skip "):
				t.Skip(why)
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
	for _, p := range pythons() {
		t.Run(p.name, func(t *testing.T) {
			s := serve(t, &torchstore.Protocol{Older: tcpstore.A}, nil)
			p.cases(t, s.addr)
			v, err := s.Get(s.ctx, torchstore.InitKey)
			require.NoError(t, err)
			require.Equal(t, "3", string(v), "clients of the case with a world size")
		})
	}
}

// TestProcessGroup checks a process group of four Python ranks whose store is a Go process.
func TestProcessGroup(t *testing.T) {
	const size = 4
	for _, p := range pythons() {
		t.Run(p.name, func(t *testing.T) {
			p.rarely(t)
			s := serve(t, &torchstore.Protocol{Older: tcpstore.A}, nil)
			host, port, err := net.SplitHostPort(s.addr)
			require.NoError(t, err)
			ok := 0
			lines(t, p.command(t.Context(), t, "group.py", host, port, fmt.Sprint(size)), func(line string) {
				if strings.HasPrefix(line, "ok ") {
					ok++
				}
			})
			require.Equal(t, 2*size, ok, "each rank, twice")
		})
	}
}
