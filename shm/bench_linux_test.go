package shm_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/shm"
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

// BenchmarkShare measures the owner's cost of sharing a block of a segment that the peer has.
func BenchmarkShare(b *testing.B) {
	near, far := sockets(b)
	defer far.Close()
	c := shm.NewConn(near)
	defer c.Close()
	a := newArena(b, nil)
	_, ref := filled(b, a, 1<<20, 1)
	p := rawPeer{b, far}
	refs := slices.Repeat([]shm.Ref{ref}, 2000)
	b.ReportAllocs()
	for n := 1; b.Loop(); n++ {
		if err := c.Share(b.Context(), a, ref); err != nil {
			b.Fatal(err)
		}
		if n%len(refs) == 0 { // so that the limit of shared blocks is not reached
			b.StopTimer()
			p.giveBack(refs...)
			require.NoError(b, c.WaitReleased(b.Context(), ref))
			b.StartTimer()
		}
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

// BenchmarkManySmall shares 1000 tensors in one call, and waits until they are returned.
func BenchmarkManySmall(b *testing.B) {
	c, d := pair(b)
	a := newArena(b, nil)
	var refs []shm.Ref
	for i := range 1000 {
		_, ref := filled(b, a, 1000, uint64(i))
		refs = append(refs, ref)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Share(b.Context(), a, refs...); err != nil {
			b.Fatal(err)
		}
		blocks, err := d.Map(b.Context(), refs...)
		if err != nil {
			b.Fatal(err)
		}
		for _, block := range blocks {
			block.Release()
		}
		if err := c.WaitReleased(b.Context(), refs...); err != nil {
			b.Fatal(err)
		}
	}
}
