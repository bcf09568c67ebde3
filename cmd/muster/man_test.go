package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
)

// TestManualPages checks that every command that users see has a page, and that its flags are in it.
func TestManualPages(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man")
	require.Equal(t, 0, muster.Execute([]string{"man", dir}))
	for _, c := range muster.NewRoot().Commands() {
		if c.Hidden || !c.Runnable() || c.Name() == "completion" || c.Name() == "help" {
			continue
		}
		page, err := os.ReadFile(filepath.Join(dir, "muster-"+c.Name()+".1"))
		require.NoError(t, err)
		require.Contains(t, string(page), c.Short, c.Name())
	}
	serve, err := os.ReadFile(filepath.Join(dir, "muster-serve.1"))
	require.NoError(t, err)
	require.Contains(t, strings.ReplaceAll(string(serve), `\-`, "-"), "--listen")
	hidden, err := filepath.Glob(filepath.Join(dir, "muster-*-rank.1"))
	require.NoError(t, err)
	require.Empty(t, hidden)
	if man, err := exec.LookPath("groff"); err == nil { // its warnings are errors in the page
		out, err := exec.CommandContext(t.Context(), man, "-man", "-Tutf8", "-ww", "-z", filepath.Join(dir, "muster-serve.1")).CombinedOutput()
		require.NoError(t, err)
		require.Empty(t, string(out))
	}
}
