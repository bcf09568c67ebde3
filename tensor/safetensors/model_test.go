package safetensors_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

const indexName = "model.safetensors.index.json"

// sharded writes the tensors of abc with these names into a directory, a file for each group of names, and an
// index of them.
func sharded(t testing.TB, shards ...[]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	files := map[string]string{}
	for i, names := range shards {
		file, part := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards)), map[string]*tensor.Tensor{}
		for _, name := range names {
			files[name], part[name] = file, abc.tensors[name]
		}
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, file), part, abc.metadata))
	}
	index := must(json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 40}, "weight_map": files}))
	require.NoError(t, os.WriteFile(filepath.Join(dir, indexName), index, 0o600))
	return dir
}

// abc is a model of three tensors with 8, 24 and 8 bytes.
var abc = contents{tensors: map[string]*tensor.Tensor{
	"a": filled(tensor.F32, 2), "b": filled(tensor.F32, 2, 3), "c": filled(tensor.I64, 1),
}, metadata: map[string]string{"format": "pt"}}

// TestSharded reads models of several shards in each way.
func TestSharded(t *testing.T) {
	for _, shards := range [][][]string{{{"a"}, {"b"}, {"c"}}, {{"a", "b"}, {"c"}}, {{"a", "b", "c"}}} {
		dir := sharded(t, shards...)
		for _, path := range []string{dir, filepath.Join(dir, indexName)} {
			m := must(safetensors.OpenModel(path))
			requireSame(t, abc, contents{maps.Collect(m.All()), abc.metadata})
			for range m.All() {
				break
			}
			assert.Equal(t, 3, m.Len())
			assert.Equal(t, []string{"a", "b", "c"}, slices.Sorted(slices.Values(m.Names())))
			b := must(m.Tensor("b"))
			assert.Equal(t, abc.tensors["b"].Data, b.Data)
			_, err := m.Tensor("d")
			require.ErrorIs(t, err, safetensors.ErrNoTensor)
			require.ErrorContains(t, err, `tensor "d"`)
			files := 0
			for name, f := range m.Files() {
				files++
				assert.Equal(t, fmt.Sprintf("model-%05d-of-%05d.safetensors", files, len(shards)), name)
				assert.Equal(t, abc.metadata, f.Metadata)
			}
			for range m.Files() {
				break
			}
			assert.Len(t, shards, files)
			require.NoError(t, m.Close())
			require.NoError(t, m.Close(), "again")
			_, err = m.Tensor("b")
			require.ErrorIs(t, err, fs.ErrClosed)
		}
	}
}

// TestIndexRefused has each rule for an index broken once.
func TestIndexRefused(t *testing.T) {
	for _, c := range lines("testdata/index_refused.txt") {
		t.Run(c[0], func(t *testing.T) {
			dir := sharded(t, []string{"a", "b", "c"})
			index := filepath.Join(dir, indexName)
			require.NoError(t, os.WriteFile(index, []byte(c[1]), 0o600))
			_, err := safetensors.OpenModel(index)
			var bad *safetensors.FormatError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, c[2], bad.Tensor)
			assert.ErrorContains(t, err, c[3])
			assert.ErrorContains(t, err, index)
		})
	}
}

// TestShardMissing wants the tensor and the file named.
func TestShardMissing(t *testing.T) {
	dir := sharded(t, []string{"a", "b"}, []string{"c"})
	gone := "model-00002-of-00002.safetensors"
	require.NoError(t, os.Remove(filepath.Join(dir, gone)))
	_, err := safetensors.OpenModel(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, `tensor "c" is said to be in "`+gone+`"`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, gone), []byte("x"), 0o600))
	_, err = safetensors.OpenModel(dir)
	require.ErrorIs(t, err, safetensors.ErrFormat)
	require.ErrorContains(t, err, gone)
}

// TestIndexOfOthers reads indexes as they are found: with any metadata, and with directories.
func TestIndexOfOthers(t *testing.T) {
	for _, metadata := range []string{`{}`, `null`, `{"total_size":40,"total_parameters":{"x":[]}}`, `{"total_size":"40 GB"}`} {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub", "sub"), 0o700))
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "sub", "sub", "x"), abc.tensors, nil))
		index := filepath.Join(dir, "any.json")
		text := fmt.Sprintf(`{"x":[],"weight_map":{"a":"sub/sub/x","b":"sub\/sub\/x","c":"sub/sub/x"},"metadata":%s}`, metadata)
		require.NoError(t, os.WriteFile(index, []byte(text), 0o600))
		m := must(safetensors.OpenModel(index))
		assert.Equal(t, 3, m.Len())
		require.NoError(t, m.Close())
	}
}

// TestCacheOfLinks is the layout of Hugging Face's cache, whose files are links out of the directory.
func TestCacheOfLinks(t *testing.T) {
	root := t.TempDir()
	blobs, snapshot := filepath.Join(root, "blobs"), filepath.Join(root, "snapshots", "1")
	require.NoError(t, os.MkdirAll(snapshot, 0o700))
	require.NoError(t, os.Rename(sharded(t, []string{"a"}, []string{"b"}, []string{"c"}), blobs))
	entries := must(os.ReadDir(blobs))
	for i, e := range entries {
		blob := fmt.Sprintf("blob%d", i)
		require.NoError(t, os.Rename(filepath.Join(blobs, e.Name()), filepath.Join(blobs, blob)))
		require.NoError(t, os.Symlink(filepath.Join("..", "..", "blobs", blob), filepath.Join(snapshot, e.Name())))
	}
	m := must(safetensors.OpenModel(snapshot))
	assert.Equal(t, 3, m.Len())
	require.NoError(t, m.Close())
}

// TestOpenModel finds what a directory has.
func TestOpenModel(t *testing.T) {
	for name, tc := range map[string]struct {
		files []string // in the directory; one that ends in .json is an index of nothing
		open  string   // what is found
		err   string
	}{
		"a model":              {files: []string{"model.safetensors", "x.safetensors", "config.json", ".y.safetensors"}, open: "model.safetensors"},
		"another name":         {files: []string{"adapter.safetensors", "config.json"}, open: "adapter.safetensors"},
		"an index":             {files: []string{indexName, "consolidated.safetensors"}},
		"index, another name":  {files: []string{"diffusion.safetensors.index.json", "diffusion-00001-of-00001.safetensors"}},
		"both":                 {files: []string{"model.safetensors", indexName}, err: "has model.safetensors and model.safetensors.index.json: say which"},
		"two":                  {files: []string{"a.safetensors", "b.safetensors"}, err: "has a.safetensors and b.safetensors: say which"},
		"nothing":              {files: []string{"config.json"}, err: "has no *.safetensors and no *.safetensors.index.json"},
		"shards without index": {files: []string{"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"}, err: "has 2 shards but no index, which is written last: the model is not complete"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, file := range tc.files {
				if filepath.Ext(file) == ".json" {
					require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(`{"weight_map":{}}`), 0o600))
				} else {
					require.NoError(t, safetensors.WriteFile(filepath.Join(dir, file), abc.tensors, nil))
				}
			}
			m, err := safetensors.OpenModel(dir)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			defer m.Close()
			names := []string{}
			for name := range m.Files() {
				names = append(names, name)
			}
			if tc.open != "" {
				require.Equal(t, []string{tc.open}, names)
				require.Equal(t, 3, m.Len())
			} else {
				require.Zero(t, m.Len())
			}
		})
	}
	_, err := safetensors.OpenModel(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = safetensors.OpenModel(saved(t, []byte("x")))
	require.ErrorIs(t, err, safetensors.ErrFormat)
}
