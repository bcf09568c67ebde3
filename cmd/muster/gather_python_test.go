package main_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// TestGatheredFilesInPython checks that Python reads what gather has written, all of it as transformers does,
// and a part as docs/guides/checkpoints.md shows.
func TestGatheredFilesInPython(t *testing.T) {
	t.Parallel()
	python := testcluster.Python(t, "safetensors", "numpy")
	d := emptyDesk(t)
	const from = "../../tensor/checkpoint/testdata/torch-2.15/"
	require.Zero(t, run(t, "gather", "-o", d.path("out"), "--shard-size", "200", "--shards", "4", from+"hf").code)
	page, err := os.ReadFile("../../docs/guides/checkpoints.md")
	require.NoError(t, err)
	_, code, _ := strings.Cut(string(page), "```python\n")
	code, _, _ = strings.Cut(code, "```")
	require.Contains(t, code, `framework="pt"`)
	script := "import json, sys, safetensors\n" + strings.Replace(code, `"pt"`, `"np"`, 1) + `
whole, parts = {}, {}
for name, t in safetensors.deserialize(open(sys.argv[1] + "model.safetensors", "rb").read()):
    whole[name] = (t["dtype"], t["shape"], bytes(t["data"]))
for file in set(json.load(open(sys.argv[2] + "/model.safetensors.index.json"))["weight_map"].values()):
    for name, t in safetensors.deserialize(open(f"{sys.argv[2]}/{file}", "rb").read()):
        parts[name] = (t["dtype"], t["shape"], bytes(t["data"]))
assert whole == parts and len(whole) > 9
assert b"".join(rows(sys.argv[2], "o", rank, 2).tobytes() for rank in range(2)) == whole["o"][2]
`
	out, err := exec.CommandContext(t.Context(), python, "-c", script, from, d.path("out")).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
