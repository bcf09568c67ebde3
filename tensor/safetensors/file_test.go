package safetensors_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// saved is a file with these bytes.
func saved(t testing.TB, b []byte) string {
	name := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, os.WriteFile(name, b, 0o600))
	return name
}

// TestWays has every way to read give the same, and errors that name the tensor, the file and the cause.
func TestWays(t *testing.T) {
	want := golden["dtypes"]
	name := goldenName("dtypes")
	for way, read := range map[string]func() (*safetensors.File, error){
		"Open": func() (*safetensors.File, error) { return safetensors.Open(name) },
		"Parse": func() (*safetensors.File, error) {
			return safetensors.Parse(written(t, want))
		},
	} {
		t.Run(way, func(t *testing.T) {
			f := must(read())
			requireSame(t, want, contents{maps.Collect(f.All()), f.Metadata})
			for range f.All() {
				break
			}
			_, err := f.Tensor("missing")
			require.ErrorIs(t, err, safetensors.ErrNoTensor)
			require.ErrorContains(t, err, `tensor "missing"`)
			kept := must(f.Tensor("u64"))
			kept.Shape[0] = 99 // the caller's own
			kept = kept.Clone()
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { assert.NoError(t, f.Close()) })
			}
			wg.Wait()
			require.NoError(t, f.Close(), "again")
			_, err = f.Tensor("u64")
			require.ErrorIs(t, err, fs.ErrClosed)
			require.Panics(t, func() {
				for range f.All() {
				}
			})
			info, _ := f.Info("u64")
			assert.Equal(t, []int{2, 1, 1}, info.Shape)
			assert.Equal(t, want.tensors["u64"].Data, kept.Data, "a clone lives on")
		})
	}
}

// TestMapped writes to a mapping, which is a fault, and looks in the list of mappings.
func TestMapped(t *testing.T) {
	name := saved(t, raw(one(byteFields), "x"))
	mapped := func() bool {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skip("SKIPPED: no list of mappings here")
		}
		return strings.Contains(string(b), name)
	}
	f := must(safetensors.Open(name))
	defer f.Close()
	a := must(f.Tensor("a"))
	if runtime.GOOS != "windows" { // where files are not mapped
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		require.Panics(t, func() { a.Data[0] = 'y' })
	}
	require.Equal(t, "x", string(a.Data))
	require.True(t, mapped())
	require.NoError(t, f.Close())
	require.False(t, mapped())
	_, err := safetensors.Open(saved(t, raw("{}", "x")))
	require.Error(t, err)
}

// TestReplacedWhileOpen wants who has opened a file to keep it.
func TestReplacedWhileOpen(t *testing.T) {
	name := filepath.Join(t.TempDir(), "m.safetensors")
	write := func(v byte) {
		w := &tensor.Tensor{DType: tensor.U8, Shape: []int{1}, Data: []byte{v}}
		require.NoError(t, safetensors.WriteFile(name, map[string]*tensor.Tensor{"w": w}, nil))
	}
	write(1)
	f := must(safetensors.Open(name))
	defer f.Close()
	write(2)
	w := must(f.Tensor("w"))
	require.Equal(t, []byte{1}, w.Data)
}

// TestOdd has a header whose length is no multiple of 8: tensors are right, and a Clone is aligned.
func TestOdd(t *testing.T) {
	header := one(`"dtype":"F64","shape":[1],"data_offsets":[0,8]`)
	for len(header)%8 != 1 {
		header += " "
	}
	name := saved(t, raw(header, "\x00\x00\x00\x00\x00\x00\xf0\x3f"))
	f := must(safetensors.Open(name))
	defer f.Close()
	a := must(f.Tensor("a"))
	_, err := tensor.View[float64](a)
	require.Error(t, err)
	v := must(tensor.View[float64](a.Clone()))
	require.Equal(t, []float64{1}, v)
}

// TestNotAFile wants the name and the cause in what cannot be opened.
func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.safetensors")
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	_, err := safetensors.Open(missing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, missing)
	_, err = safetensors.Open(dir)
	require.ErrorContains(t, err, dir+" is no regular file")
	_, err = safetensors.Open(pipe) // without a writer
	require.ErrorContains(t, err, pipe+" is no regular file")
	_, err = safetensors.Open(saved(t, nil))
	require.ErrorIs(t, err, safetensors.ErrFormat)
}
