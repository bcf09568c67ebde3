package vllm_test

import (
	"fmt"
	"testing"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/store"
)

// BenchmarkVerbs measures the verbs of groups in one process, where each rank has its own
// connection to a server in the same process.
func BenchmarkVerbs(b *testing.B) {
	for _, n := range []int{2, 8, 64} {
		gs := benchGroup(b, n)
		for name, verb := range map[string]func(g *vllm.Group) error{
			"allgather": func(g *vllm.Group) error { _, err := vllm.AllGatherObj(b.Context(), g, g.Rank()); return err },
			"barrier":   func(g *vllm.Group) error { return g.Barrier(b.Context()) },
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				together(n, func(rank int) {
					for range b.N {
						if err := verb(gs[rank]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

func benchGroup(b *testing.B, n int) []*vllm.Group {
	b.Helper()
	addr := testcluster.Serve(b, new(store.Server))
	gs := make([]*vllm.Group, n)
	together(n, func(rank int) {
		s, err := store.Dial(b.Context(), addr, nil)
		if err != nil {
			b.Error(err)
			return
		}
		b.Cleanup(func() { _ = s.Close() })
		if gs[rank], err = vllm.Join(b.Context(), vllm.Config{Rank: rank, Size: n, Store: s}); err != nil {
			b.Error(err)
			return
		}
		b.Cleanup(func() { _ = gs[rank].Close() })
	})
	if b.Failed() {
		b.FailNow()
	}
	return gs
}
