package safetensors_test

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// FuzzParse wants what is accepted to be the same tensors once it is written again, each inside the file and none in
// another.
func FuzzParse(f *testing.F) {
	for _, tc := range refused {
		if len(tc.file) < 1<<10 {
			f.Add(tc.file)
		}
	}
	for _, tc := range accepted {
		f.Add(tc.file)
	}
	for _, c := range golden {
		f.Add(written(f, c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		f, err := safetensors.Parse(b)
		if err != nil {
			require.ErrorIs(t, err, safetensors.ErrFormat)
			return
		}
		c := contents{maps.Collect(f.All()), f.Metadata}
		next := len(b)
		for _, w := range c.tensors {
			next -= len(w.Data)
		}
		for _, w := range f.All() {
			require.NoError(t, w.Check())
			require.Equal(t, len(w.Data), cap(w.Data))
			if len(w.Data) > 0 {
				require.Same(t, &b[next], unsafe.SliceData(w.Data))
			}
			next += len(w.Data)
		}
		again := written(t, c)
		requireSame(t, c, parsed(t, again))
		require.Equal(t, again, written(t, parsed(t, again)), "what we write does not change")
	})
}

// FuzzWriter wants any contents to come back, and a Writer to write what Write does, in pieces of any size.
func FuzzWriter(f *testing.F) {
	f.Add(uint64(1), "name", "key", "value", 3)
	f.Add(uint64(2), "\x00\u2028\"", "", "\\", 1)
	f.Add(uint64(3), "name", "key", "value", 1000)
	f.Fuzz(func(t *testing.T, seed uint64, name, key, value string, piece int) {
		c := random(rand.New(rand.NewPCG(seed, 0)))
		c.tensors[name] = filled(tensor.F6E3M2, 4)
		c.metadata = map[string]string{key: value}
		var want bytes.Buffer
		err := safetensors.Write(&want, c.tensors, c.metadata)
		var got bytes.Buffer
		w, err2 := safetensors.NewWriter(&got, infos(c), c.metadata)
		require.Equal(t, err == nil, err2 == nil)
		if err != nil {
			require.Zero(t, want.Len()+got.Len())
			return
		}
		requireSame(t, c, parsed(t, want.Bytes()))
		require.EqualValues(t, want.Len(), w.Header().Size())
		for _, name := range w.Names() {
			inPieces(t, w, c.tensors[name].Data, 1+max(0, piece)%100)
		}
		require.NoError(t, w.Close())
		require.NoError(t, w.Close(), "again")
		require.Equal(t, want.Bytes(), got.Bytes())
	})
}

// FuzzIndex wants an index of any text to be refused or right, and nothing outside its directory to be opened.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":40},"weight_map":{"a":"x","b":"x","c":"x"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Add([]byte(`{"weight_map":{}}`))
	dir := f.TempDir()
	name := filepath.Join(dir, "index.json")
	require.NoError(f, safetensors.WriteFile(filepath.Join(dir, "x"), abc.tensors, nil))
	f.Fuzz(func(t *testing.T, index []byte) {
		require.NoError(t, os.WriteFile(name, index, 0o600))
		m, err := safetensors.OpenModel(name)
		if err != nil {
			return
		}
		defer m.Close()
		for name := range m.Files() {
			require.Equal(t, "x", name)
			require.Equal(t, 3, m.Len())
		}
	})
}
