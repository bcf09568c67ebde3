package safetensors_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// TestOpenLenient opens models with the faults that indexes of others have. Each is reported, and the tensors are all there; OpenModel refuses them.
func TestOpenLenient(t *testing.T) {
	const file = "model-00001-of-00001.safetensors" // has a, b and c
	all := `"a":"` + file + `","b":"` + file + `","c":"` + file + `"`
	for name, tc := range map[string]struct {
		index  string
		tensor string
		want   string // reported
		total  int64
	}{
		"tensor not listed":     {index: `{"weight_map":{"a":"` + file + `","b":"` + file + `"}}`, tensor: "c", want: "does not say that it is in this file"},
		"metadata null":         {index: `{"metadata":null,"weight_map":{` + all + `}}`, want: "metadata is no object"},
		"metadata a list":       {index: `{"metadata":[{"total_size":1}],"weight_map":{` + all + `}}`, want: "metadata is no object"},
		"total_size as text":    {index: `{"metadata":{"total_size":"40"},"weight_map":{` + all + `}}`, want: "total_size is no number", total: 40},
		"total_size other text": {index: `{"metadata":{"total_size":"40 GB"},"weight_map":{` + all + `}}`, want: "total_size is no number"},
		"total_size null":       {index: `{"metadata":{"total_size":null},"weight_map":{` + all + `}}`, want: "total_size is no number"},
		"total_size negative":   {index: `{"metadata":{"total_size":-1},"weight_map":{` + all + `}}`, want: "total_size is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sharded(t, 1000, abc)
			require.NoError(t, os.WriteFile(filepath.Join(dir, indexName), []byte(tc.index), 0o600))
			_, err := safetensors.OpenModel(dir)
			require.ErrorIs(t, err, safetensors.ErrFormat)

			var faults []*safetensors.FormatError
			m, err := safetensors.OpenLenient(dir, func(e *safetensors.FormatError) { faults = append(faults, e) })
			require.NoError(t, err)
			defer m.Close()
			require.Len(t, faults, 1)
			assert.ErrorContains(t, faults[0], tc.want)
			assert.ErrorContains(t, faults[0], dir)
			assert.Equal(t, tc.tensor, faults[0].Tensor)
			assert.Equal(t, tc.total, m.TotalSize)
			require.Equal(t, 3, m.Len())
			for name, want := range abc.tensors {
				got, err := m.Tensor(name)
				require.NoError(t, err)
				assert.Equal(t, want.Data, got.Data)
			}
			m, err = safetensors.OpenLenient(dir, nil)
			require.NoError(t, err)
			require.NoError(t, m.Close())
		})
	}
}

// TestOpenLenientRefuses has faults that leave a doubt about a tensor: they are errors all the same.
func TestOpenLenientRefuses(t *testing.T) {
	const file = "model-00001-of-00001.safetensors" // has a, b and c
	for name, tc := range map[string]struct{ index, want string }{
		"tensor not there":    {`{"weight_map":{"a":"` + file + `","d":"` + file + `"}}`, "which does not have it"},
		"tensor of another":   {`{"weight_map":{"a":"` + file + `","c":"other.safetensors"}}`, "does not say that it is in this file"},
		"file is not there":   {`{"weight_map":{"a":"` + file + `","x":"other.safetensors"}}`, "other.safetensors"},
		"unlisted in 2 files": {`{"weight_map":{"a":"` + file + `","d":"second.safetensors"}}`, "does not say that it is in this file"},
		"no weight_map":       {`{"metadata":null}`, "has no weight_map"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sharded(t, 1000, abc)
			require.NoError(t, os.WriteFile(filepath.Join(dir, indexName), []byte(tc.index), 0o600))
			ts := map[string]*tensor.Tensor{"b": abc.tensors["b"], "d": abc.tensors["a"]}
			require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "second.safetensors"), ts, nil))
			_, err := safetensors.OpenLenient(dir, nil)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
