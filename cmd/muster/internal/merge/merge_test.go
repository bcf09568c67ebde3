package merge_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/merge"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

type tensors = map[string]*tensor.Tensor

// shards writes models to files, and opens them under the names a, b, and so on.
func shards(t *testing.T, models ...tensors) (all []merge.Shard) {
	t.Helper()
	for i, ts := range models {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		require.NoError(t, safetensors.WriteFile(path, ts, nil))
		m, err := safetensors.OpenModel(path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close() })
		all = append(all, merge.Shard{Name: string(rune('a' + i)), Model: m})
	}
	return all
}

func bytesOf(t *testing.T, data string, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.Wrap([]byte(data), tensor.U8, shape...)
	require.NoError(t, err)
	return x
}

func TestWrite(t *testing.T) {
	all := shards(t,
		tensors{"rows": bytesOf(t, "ab", 1, 2), "columns": bytesOf(t, "acd", 3, 1), "same": bytesOf(t, "s", 1), "empty": bytesOf(t, "", 0, 2)},
		tensors{"rows": bytesOf(t, "cdef", 2, 2), "columns": bytesOf(t, "1122ee", 3, 2), "same": bytesOf(t, "s", 1), "own": bytesOf(t, "o", 1)},
	)
	plan, err := merge.New(all, map[string]int{"rows": 0, "columns": 1, "empty": 1})
	require.NoError(t, err)
	var out bytes.Buffer
	var size int64
	metadata := map[string]string{"format": "pt"}
	require.NoError(t, plan.Write(t.Context(), &out, metadata, func(h *safetensors.Header) { size = h.Size() }))
	require.EqualValues(t, out.Len(), size)
	f, err := safetensors.Parse(out.Bytes())
	require.NoError(t, err)
	require.Equal(t, metadata, f.Metadata)
	for name, want := range map[string]string{"rows": "U8[3,2] abcdef", "columns": "U8[3,3] a11c22dee", "same": "U8[1] s", "own": "U8[1] o", "empty": "U8[0,2] "} {
		x, err := f.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, want, x.String()+" "+string(x.Data))
	}
}

func TestRefuses(t *testing.T) {
	packed, err := tensor.Wrap(make([]byte, 3), tensor.F4, 2, 3)
	require.NoError(t, err)
	for _, test := range []struct {
		a, b *tensor.Tensor
		axis int
		want string
	}{
		{bytesOf(t, "a", 1), bytesOf(t, "ab", 2), -1, `tensor "x": b has U8[2], and a has U8[1]; they are not joined along an axis, so they must be the same`},
		{bytesOf(t, "ab", 1, 2), bytesOf(t, "a", 1, 1), 0, `tensor "x": b has U8[1,1], and a has U8[1,2]; they may differ along axis 0 only`},
		{bytesOf(t, "a", 1), bytesOf(t, "ab", 2), 1, `tensor "x": a has U8[1], which has no axis 1 to join along`},
		{packed, packed, 1, `tensor "x": a has F4[2,3], whose rows along axis 1 are no whole bytes`},
	} {
		axes := map[string]int{"x": test.axis}
		if test.axis < 0 {
			axes = nil
		}
		_, err := merge.New(shards(t, tensors{"x": test.a}, tensors{"x": test.b}), axes)
		require.EqualError(t, err, test.want)
	}
}

func TestWriteEnds(t *testing.T) {
	plan, err := merge.New(shards(t, tensors{"x": bytesOf(t, "a", 1)}, tensors{"x": bytesOf(t, "b", 1)}), nil)
	require.NoError(t, err)
	none := func(*safetensors.Header) {}
	require.EqualError(t, plan.Write(t.Context(), io.Discard, nil, none), `tensor "x": b has other bytes than a, and no axis to join them along is given`)

	plan, err = merge.New(shards(t, tensors{"x": bytesOf(t, "a", 1)}), nil)
	require.NoError(t, err)
	reason := errors.New("the end")
	ctx, end := context.WithCancelCause(t.Context())
	end(reason)
	require.Equal(t, reason, plan.Write(ctx, io.Discard, nil, none), "as it is, without a name of a tensor")
}
