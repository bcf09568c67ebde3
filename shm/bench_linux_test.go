package shm_test

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkCopyIn copies into a block that was used before. "of-memcpy" is its speed as a fraction
// of that of the same copy between two Go slices, measured alternately.
func BenchmarkCopyIn(b *testing.B) {
	for _, size := range []int{1 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("%dMiB", size>>20), func(b *testing.B) {
			a := newArena(b, nil)
			a.Free(alloc(b, a, size))
			src, dst := make([]byte, size), make([]byte, size)
			fill(src, 1)
			copy(dst, src)
			var plain, ours time.Duration
			b.SetBytes(int64(size))
			for b.Loop() {
				t0 := time.Now()
				copy(dst, src)
				t1 := time.Now()
				block, err := a.Alloc(size)
				if err != nil {
					b.Fatal(err)
				}
				copy(block, src)
				a.Free(block)
				ours += time.Since(t1)
				plain += t1.Sub(t0)
			}
			b.ReportMetric(plain.Seconds()/ours.Seconds(), "of-memcpy")
			b.ReportMetric(float64(size)*float64(b.N)/ours.Seconds()/(1<<30), "GiB/s")
		})
	}
}

// BenchmarkRoundTrip shares a block, maps it, releases it and waits until it is returned. A process
// gets the refs through a pipe.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("process", func(b *testing.B) {
		c, p := start(b, "echo")
		a := newArena(b, nil)
		_, ref := filled(b, a, 1<<20, 1)
		p.send(b, sharedRef{Ref: ref})
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Share(b.Context(), a, ref); err != nil {
				b.Fatal(err)
			}
			if _, err := p.in.Write([]byte{0}); err != nil {
				b.Fatal(err)
			}
			if err := c.WaitReleased(b.Context(), ref); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("goroutine", func(b *testing.B) {
		c, d := pair(b)
		a := newArena(b, nil)
		_, ref := filled(b, a, 1<<20, 1)
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Share(b.Context(), a, ref); err != nil {
				b.Fatal(err)
			}
			blocks, err := d.Map(b.Context(), ref)
			if err != nil {
				b.Fatal(err)
			}
			blocks[0].Release()
			if err := c.WaitReleased(b.Context(), ref); err != nil {
				b.Fatal(err)
			}
		}
	})
}
