package safetensors_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

const megabytes64 = 64 << 20

// model64 is 64 MiB in 16 tensors.
func model64() map[string]*tensor.Tensor {
	ts := map[string]*tensor.Tensor{}
	for i := range 16 {
		ts[fmt.Sprintf("layer.%d.weight", i)] = tensor.New(tensor.BF16, 1024, megabytes64/16/2/1024)
	}
	return ts
}

var sink byte

// BenchmarkRead reads 64 MiB that the operating system has in memory, and touches each page of them.
func BenchmarkRead(b *testing.B) {
	name := filepath.Join(b.TempDir(), "m.safetensors")
	require.NoError(b, safetensors.WriteFile(name, model64(), nil))
	touch := func(f *safetensors.File, err error) {
		require.NoError(b, err)
		for _, t := range f.All() {
			for at := 0; at < len(t.Data); at += 4096 {
				sink += t.Data[at]
			}
		}
		require.NoError(b, f.Close())
	}
	for way, read := range map[string]func(){
		"open and touch": func() { touch(safetensors.Open(name)) },
		"plain":          func() { _, _ = os.ReadFile(name) },
	} {
		b.Run(way, func(b *testing.B) {
			b.SetBytes(megabytes64)
			for b.Loop() {
				read()
			}
		})
	}
}

// BenchmarkWrite writes 64 MiB into a file that is there, unsynced; as WriteFile, synced and renamed.
func BenchmarkWrite(b *testing.B) {
	ts, dir := model64(), b.TempDir()
	data := make([]byte, megabytes64)
	into := func(write func(w io.Writer) error) {
		f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(b, err)
		require.NoError(b, write(f))
		require.NoError(b, f.Close())
	}
	for way, write := range map[string]func(){
		"Write": func() { into(func(w io.Writer) error { return safetensors.Write(w, ts, nil) }) },
		"plain": func() { into(func(w io.Writer) error { _, err := w.Write(data); return err }) },
		"WriteFile": func() {
			require.NoError(b, safetensors.WriteFile(filepath.Join(dir, "whole"), ts, nil))
		},
		"plain synced": func() {
			into(func(w io.Writer) error {
				if _, err := w.Write(data); err != nil {
					return err
				}
				return w.(*os.File).Sync()
			})
		},
	} {
		b.Run(way, func(b *testing.B) {
			b.SetBytes(megabytes64)
			for b.Loop() {
				write()
			}
		})
	}
}
