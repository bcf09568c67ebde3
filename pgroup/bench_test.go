package pgroup_test

import (
	"fmt"
	"testing"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// BenchmarkAlone measures what this package adds to a verb: a group of one in memory never waits.
func BenchmarkAlone(b *testing.B) {
	g, err := pgroup.Create(b.Context(), pgroup.Config{Size: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	ctx := b.Context()
	kib := make([]byte, 1024)
	for name, verb := range map[string]func() error{
		"barrier":        func() error { return g.Barrier(ctx) },
		"allgather/1KiB": func() error { _, err := pgroup.AllGather(ctx, g, kib); return err },
		"allgather/int":  func() error { _, err := pgroup.AllGather(ctx, g, 1); return err },
		"broadcast/1KiB": func() error { _, err := pgroup.Broadcast(ctx, g, 0, kib); return err },
		"allreduce/1":    func() error { _, err := pgroup.AllReduce(ctx, g, pgroup.Sum, 1.0); return err },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := verb(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBarrier measures a barrier of ranks in one process, over one store or over sockets.
func BenchmarkBarrier(b *testing.B) {
	for name, at := range map[string]bool{"memory": false, "hosted": true} {
		for _, n := range []int{2, 4, 8} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				gs := make([]*pgroup.Group, n)
				s := store.New(new(store.Memory))
				defer s.Close()
				addr := "127.0.0.1:29571"
				together(n, func(rank int) {
					c := pgroup.Config{Rank: rank, Size: n, Store: s}
					if at {
						c.Store, c.Address = nil, addr
					}
					g, err := pgroup.Create(b.Context(), c)
					if err != nil {
						b.Error(err)
						return
					}
					gs[rank] = g
				})
				if b.Failed() {
					b.FailNow()
				}
				ctx := b.Context()
				b.ResetTimer()
				together(n, func(rank int) {
					for range b.N {
						if err := gs[rank].Barrier(ctx); err != nil {
							b.Error(err)
							return
						}
					}
				})
				b.StopTimer()
				closeAll(gs)
			})
		}
	}
}
