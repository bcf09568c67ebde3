package testcluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// builtIn is the directory of the built command, which Leaks removes; "" is none.
var builtIn string

var buildCommand = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "muster-command")
	if err != nil {
		return "", err
	}
	builtIn = dir
	exe := filepath.Join(dir, "muster")
	// Without symbols, linking takes a third less time.
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", exe, "github.com/muster-pg/muster/cmd/muster").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("testcluster: build the command muster: %w: %s", err, out)
	}
	return exe, nil
})

// Shell skips the test unless there is a shell, and so the tools that its scripts call.
func Shell(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("SKIPPED: NO SHELL: sh and the tools of the system are not on the PATH")
	}
}

// Command returns the path of the command muster. It is built once for all tests of a package, whose
// TestMain calls Leaks.
func Command(t testing.TB) string {
	t.Helper()
	exe, err := buildCommand()
	require.NoError(t, err)
	return exe
}
