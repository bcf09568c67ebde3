package pgroup_test

import (
	"testing"

	"github.com/muster-pg/muster/pgroup"
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
