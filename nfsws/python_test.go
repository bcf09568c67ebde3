package nfsws_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
)

// TestPythonReadsAState runs the two lines of the package comment.
func TestPythonReadsAState(t *testing.T) {
	interpreter := testcluster.Python(t, "numpy", "safetensors")
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(doc)) {
		if strings.Contains(line, "json.load(") || strings.Contains(line, "deserialize(") {
			lines = append(lines, strings.TrimPrefix(strings.TrimSpace(line), "//\t"))
		}
	}
	require.Len(t, lines, 2)

	w := open(t, t.TempDir(), 3, &nfsws.Options{Generation: 7})
	for n := range int32(12) {
		_, err = w.Write(t.Context(), fmt.Appendf(nil, `{"layers": [%d, "é"]}`, n), map[string]*tensor.Tensor{
			"a/b": tensor.From([]int32{n, 2, 3, 4, 5, 6}, 2, 3), "half": tensor.New(tensor.F16, 0, 4), "one": tensor.From([]tensor.BFloat16{tensor.BFloat16From(1.5)}),
		})
		require.NoError(t, err)
	}
	script := "import glob, json, safetensors\n" + strings.Join(lines, "\n") + `
print(config, weights["a/b"]["shape"], weights["a/b"]["dtype"], list(weights["a/b"]["data"][:5]), weights["half"]["shape"], sorted(weights["one"].items()))
`
	cmd := exec.CommandContext(t.Context(), interpreter, "-c", script)
	cmd.Dir = w.Dir()
	cmd.Env = append(os.Environ(), "PYTHONIOENCODING=utf-8", "PYTHONUTF8=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "{'layers': [11, 'é']} [2, 3] I32 [11, 0, 0, 0, 2] [0, 4] [('data', bytearray(b'\\xc0?')), ('dtype', 'BF16'), ('shape', [1])]\n", string(out))
}

// TestStandardTools runs the commands in the package comment that verify checksums.
func TestStandardTools(t *testing.T) {
	if _, err := exec.LookPath("xxhsum"); err != nil {
		t.Skip("SKIPPED: no xxhsum here (apt-get install xxhash)")
	}
	w := open(t, t.TempDir(), 3, &nfsws.Options{Generation: 7})
	v, err := w.Write(t.Context(), []byte("{\n  \"a\": 1\n}"), weightsOf(1, elements))
	require.NoError(t, err)
	manifest := filepath.Join(w.Dir(), nfsws.ManifestName(7, 3, v))
	raw, err := os.ReadFile(manifest)
	require.NoError(t, err)
	for _, line := range []string{
		`head -n -1 "$0" | xxhsum -H3`,
		`dd if="${0%json}safetensors" bs=1M skip=1 count=1 2>/dev/null | xxhsum -H3`,
	} {
		out, err := exec.CommandContext(t.Context(), "bash", "-c", line, manifest).Output()
		require.NoError(t, err)
		sum := regexp.MustCompile(`\b[0-9a-f]{16}\b`).FindString(strings.ReplaceAll(string(out), "_", " "))
		require.NotEmpty(t, sum, "%s", out)
		require.Contains(t, string(raw), `"`+sum+`"`, line)
	}
}
