package pickle_test

import (
	"encoding/hex"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/internal/testcluster"
)

// ask runs testdata/reference.py.
func ask(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testcluster.Python(t, "numpy"), append([]string{"testdata/reference.py"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	return string(out)
}

// TestPythonReadsIt checks that a real Python reads the output of Append as the same values that it
// has itself, with the same types, order and bits.
func TestPythonReadsIt(t *testing.T) {
	var lines strings.Builder
	for name, v := range values() {
		b, err := pickle.Append(nil, v)
		require.NoError(t, err)
		fmt.Fprintf(&lines, "%s %s\n", name, hex.EncodeToString(b))
	}
	versions := ask(t, "", "versions")
	absent := 0
	for line := range strings.Lines(ask(t, lines.String(), "check")) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), " ")
		if result == "absent" && strings.HasPrefix(name, "torch_") {
			absent++
			continue
		}
		require.Equal(t, "same", result, name)
	}
	t.Logf("compared with %s", strings.TrimSpace(versions))
	if absent > 0 {
		t.Logf("NOT COMPARED: %d values of torch, which this Python does not have", absent)
	}
}

// TestPythonWritesIt checks that the pickles of the installed Python can be read, whichever version
// made the golden files.
func TestPythonWritesIt(t *testing.T) {
	want := values()
	kinds := []string{"plain", "numpy"}
	if strings.Contains(ask(t, "", "versions"), "torch") {
		kinds = append(kinds, "torch")
	}
	for _, kind := range kinds {
		for _, g := range parseGoldens(t, ask(t, "", "golden", kind)) {
			got, err := pickle.Parse(g.b)
			require.NoError(t, err, "%s %d", g.name, g.protocol)
			requireSame(t, want[g.name], got, g.name)
		}
	}
}
