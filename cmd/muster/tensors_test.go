package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

type tensors = map[string]*tensor.Tensor

// file writes a safetensors file into the desk, and returns its path.
func (d desk) file(t *testing.T, name string, ts tensors, metadata map[string]string) string {
	t.Helper()
	path := d.path(name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
	require.NoError(t, safetensors.WriteFile(path, ts, metadata))
	return path
}

func emptyDesk(t *testing.T) desk {
	t.Helper()
	return desk(t.TempDir())
}

// listed is the JSON form of a tensor in tensors --json.
type listed struct {
	File, Name, DType string
	Shape             []int
	Parameters, Bytes int64
}

func listJSON(t *testing.T, args ...string) (all []listed) {
	t.Helper()
	r := run(t, append([]string{"tensors", "--json"}, args...)...)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	for line := range strings.Lines(r.stdout) {
		var l listed
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(line, err)
		}
		all = append(all, l)
	}
	return all
}

func TestTensorsHostileNames(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	ts := tensors{"\x1b]0;title\a": tensor.New(tensor.U8), "two\nlines\r": tensor.New(tensor.U8), "\u202ereversed": tensor.New(tensor.U8), strings.Repeat("long", 1<<18): tensor.New(tensor.U8)}
	path := d.file(t, "\x1b[31mred.safetensors", ts, map[string]string{"\x1b[5m": "\x1b[2J", "k": strings.Repeat("\u009b", 100)})
	r := run(t, "tensors", path, path)
	if r.code != 0 || r.stderr != "" || strings.ContainsAny(r.stdout, "\x1b\a\r\u009b\u202e") || strings.Count(r.stdout, "\n") != 2*(1+1+4+1+2)+1 {
		t.Errorf("%d, %q, %.2000q", r.code, r.stderr, r.stdout)
	}
	assert.LessOrEqual(t, len(r.stdout), 5<<20)
	for _, l := range listJSON(t, path) {
		assert.NotNil(t, ts[l.Name], "no tensor %q", l.Name)
	}
}
