package testcluster

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Python returns the Python that MUSTER_PYTHON names, or else the one that .ci/python has installed.
// It skips the test if that has not all of these modules.
func Python(t testing.TB, modules ...string) (exe string) {
	t.Helper()
	return interpreter(t, installed("MUSTER_PYTHON", "python"), "run .ci/python, or set MUSTER_PYTHON", modules)
}

// Torch is Python for MUSTER_TORCH and .ci/python torch, with torch.
func Torch(t testing.TB, modules ...string) (exe string) {
	t.Helper()
	return interpreter(t, installed("MUSTER_TORCH", "torch"), "run .ci/python torch, or set MUSTER_TORCH", append(modules, "torch"))
}

func installed(variable, kind string) string {
	cache, _ := os.UserCacheDir()
	return cmp.Or(os.Getenv(variable), filepath.Join(cache, "muster", kind, "bin", "python"))
}

func interpreter(t testing.TB, exe, from string, modules []string) string {
	t.Helper()
	script := fmt.Sprintf("import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in %q.split()))", strings.Join(modules, " "))
	if out, err := exec.CommandContext(t.Context(), exe, "-c", script).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no Python with %s at %s; %s: %v %s", strings.Join(modules, " and "), exe, from, err, out)
	}
	return exe
}

// A Peer is a process that answers each line of its input with a line.
type Peer struct {
	Cmd *exec.Cmd

	mu      sync.Mutex // held for a question and its answer
	in      io.Writer
	answers *bufio.Reader
}

// NewPeer starts cmd, which is killed when the test ends. What it writes to stderr is in the test's log.
func NewPeer(t testing.TB, cmd *exec.Cmd) *Peer {
	t.Helper()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &Peer{Cmd: cmd, in: in, answers: bufio.NewReader(out)}
}

// Line returns a line that p writes without being asked.
func (p *Peer) Line() (string, error) {
	line, err := p.answers.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// Ask writes a line, and returns the line that answers it.
func (p *Peer) Ask(question string) (answer string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := io.WriteString(p.in, question+"\n"); err != nil {
		return "", err
	}
	return p.Line()
}
