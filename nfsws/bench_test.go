package nfsws_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
)

// benchBytes is the size of the weights.
const benchBytes = 64 << 20

func benchWeights() map[string]*tensor.Tensor {
	ts := map[string]*tensor.Tensor{}
	for i := range 16 {
		x := tensor.New(tensor.BF16, benchBytes/16/2)
		for j := range x.Data {
			x.Data[j] = byte(i + j*j>>3)
		}
		ts[string(rune('a'+i))] = x
	}
	return ts
}

// BenchmarkWrite publishes 64 MiB, and alternately writes, syncs and renames a file of the same
// bytes. The time includes removing the state that was replaced, but not removing the file.
func BenchmarkWrite(b *testing.B) {
	dir, ts := b.TempDir(), benchWeights()
	w := open(b, dir, 0, nil)
	v := must(w.Write(b.Context(), nil, ts))
	plain := must(os.ReadFile(filepath.Join(dir, nfsws.WeightsName(0, 0, v))))
	clean := func() { must(0, os.Remove(filepath.Join(dir, "plain"))) }
	alternate(b, func() { must(w.Write(b.Context(), configOf(1), ts)) }, func() { plainWrite(dir, plain) }, clean)
}

func plainWrite(dir string, data []byte) {
	f := must(os.Create(filepath.Join(dir, "plain.tmp")))
	must(f.Write(data))
	must(0, f.Sync())
	must(0, f.Close())
	must(0, os.Rename(filepath.Join(dir, "plain.tmp"), filepath.Join(dir, "plain")))
}

// BenchmarkRead reads 64 MiB back and verifies them, and alternately reads the same file into fresh
// memory.
func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	w := open(b, dir, 0, nil)
	v := must(w.Write(b.Context(), configOf(1), benchWeights()))
	name := filepath.Join(dir, nfsws.WeightsName(0, 0, v))
	alternate(b, func() { must(w.Read(b.Context(), 0, nfsws.Version{})) }, func() { must(os.ReadFile(name)) }, func() {})
}

// alternate runs ours and plain in turns, and reports the time of each; that of clean, after plain, is in neither.
func alternate(b *testing.B, ours, plain, clean func()) {
	var ourTime, plainTime time.Duration
	for i := 0; b.Loop(); i++ {
		for turn := range 2 {
			if turn == i%2 {
				plainTime += timed(plain)
				clean()
			} else {
				ourTime += timed(ours)
			}
		}
	}
	b.ReportMetric(ourTime.Seconds()/plainTime.Seconds(), "×plain")
	b.ReportMetric(ourTime.Seconds()*1000/float64(b.N), "ms/ours")
	b.ReportMetric(plainTime.Seconds()*1000/float64(b.N), "ms/plain")
	b.ReportMetric(float64(benchBytes)*float64(b.N)/ourTime.Seconds()/(1<<30), "GiB/s")
	b.ReportMetric(0, "ns/op")
}

func timed(f func()) time.Duration {
	begun := time.Now()
	f()
	return time.Since(begun)
}
