package nfsws_test

import (
	"encoding/binary"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// counted returns n elements with different values.
func counted(n int) *tensor.Tensor {
	data := make([]uint32, n)
	for i := range data {
		data[i] = uint32(i) * 2654435761
	}
	return tensor.From(data, n)
}

// TestViewReadsBlocks reads blocks of all lengths at all positions.
func TestViewReadsBlocks(t *testing.T) {
	w := open(t, t.TempDir(), 0, nil)
	want := map[string]*tensor.Tensor{
		"big": counted(3*nfsws.PartBytes/4 + 77), "../../small": counted(5), "": counted(1), "none": tensor.New(tensor.F32, 0, 2),
	}
	version := must(w.Write(t.Context(), configOf(1), want))
	require.Len(t, names(t, w.Dir()), 2, "no name of a tensor is a path")
	for _, asked := range []nfsws.Version{version, {}} {
		v, err := w.View(t.Context(), 0, asked)
		require.NoError(t, err)
		defer v.Close()
		require.Equal(t, version, v.Version)
		require.Equal(t, string(configOf(1)), string(v.Config))
		require.ElementsMatch(t, slices.Collect(maps.Keys(want)), v.Header.Names())
		rng := rand.New(rand.NewPCG(1, 1))
		for range 300 {
			for name, x := range want {
				off := rng.IntN(len(x.Data) + 1)
				p := make([]byte, 1+rng.IntN(1<<rng.IntN(22)))
				n, err := v.ReadAt(t.Context(), name, p, int64(off))
				end := min(off+len(p), len(x.Data))
				require.Equal(t, end-off, n)
				require.True(t, string(x.Data[off:end]) == string(p[:n]))
				if n < len(p) {
					require.Equal(t, io.EOF, err)
				} else {
					require.NoError(t, err)
				}
			}
		}
		_, err = v.ReadAt(t.Context(), "absent", make([]byte, 1), 0)
		require.ErrorIs(t, err, safetensors.ErrNoTensor)
		_, err = v.ReadAt(t.Context(), "big", make([]byte, 1), -1)
		require.ErrorContains(t, err, `tensor "big" has no byte -1`)
	}
}

// TestViewOfDamage tests damage to one part: the others can be read.
func TestViewOfDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, t.TempDir(), 0, nil)
		want := counted(3 * nfsws.PartBytes / 4)
		version := must(w.Write(t.Context(), nil, map[string]*tensor.Tensor{"w": want}))
		v := must(w.View(t.Context(), 0, version))
		defer v.Close()
		f := must(os.OpenFile(filepath.Join(w.Dir(), nfsws.WeightsName(0, 0, version)), os.O_WRONLY, 0))
		must(f.WriteAt([]byte{99}, 3*nfsws.PartBytes/2))
		require.NoError(t, f.Close())

		p := make([]byte, 10)
		for _, off := range []int64{0, 3*nfsws.PartBytes - 10} {
			must(v.ReadAt(t.Context(), "w", p, off))
			require.Equal(t, want.Data[off:][:10], p)
		}
		n, err := v.ReadAt(t.Context(), "w", make([]byte, len(want.Data)), 0)
		require.ErrorIs(t, err, nfsws.ErrCorrupt)
		require.ErrorContains(t, err, "bytes 1048576 to 2097152 have the checksum")
		require.Less(t, n, nfsws.PartBytes)
		_, err = v.ReadAt(t.Context(), "w", p, nfsws.PartBytes)
		require.ErrorIs(t, err, nfsws.ErrCorrupt)
		_, err = v.ReadAt(t.Context(), "w", p, 0)
		require.NoError(t, err, "and the view still is of use")
	})
}

// TestViewOfAReplacedState tests a state whose files are removed, as another client sees it: its
// open file becomes stale.
func TestViewOfAReplacedState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		v := must(s.writer.View(t.Context(), 0, nfsws.Version{}))
		for range 2 {
			publish(t, on(t, s.disk, 0), 9)
		}
		s.v.always("read .safetensors", fault{err: syscall.ESTALE})
		p := make([]byte, 4)
		_, err := v.ReadAt(t.Context(), "w", p, 0)
		require.NoError(t, err, "what is in memory is right")
		require.EqualValues(t, 1, binary.LittleEndian.Uint32(p))
		v.Forget()
		_, err = v.ReadAt(t.Context(), "w", p, 0)
		require.ErrorIs(t, err, nfsws.ErrNotPublished)
		require.ErrorContains(t, err, "was replaced by")
	})
}
