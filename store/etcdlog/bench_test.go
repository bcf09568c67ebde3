package etcdlog_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
)

// median returns the median of ds.
func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}

// BenchmarkBarrier measures barriers of 8 ranks, made in sequence, each rank with a connection to a
// store whose log is in an etcd of one or three members. After each barrier it measures one put of
// etcd's own client to the same members and disk. It reports both medians and their ratio.
func BenchmarkBarrier(b *testing.B) {
	for _, count := range []int{1, 3} {
		b.Run(fmt.Sprint(count, " members"), func(b *testing.B) {
			members := etcdBehind(b, count, nil)
			pass, plain := barriers(b, members, 8), client(b, members)
			var ours, puts []time.Duration
			for seq := uint64(1); b.Loop(); seq++ {
				ours = append(ours, timed(func() { pass(seq) }))
				puts = append(puts, timed(func() {
					if _, err := plain.Put(b.Context(), "plain", "0123456789abcdef"); err != nil {
						b.Error(err)
					}
				}))
			}
			b.ReportMetric(float64(median(ours).Microseconds()), "µs/barrier")
			b.ReportMetric(float64(median(ours))/float64(median(puts)), "puts/barrier")
			b.ReportMetric(float64(median(puts).Microseconds()), "µs/put")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkWrites measures 50 writers that set keys of their own, each with one or 16 requests at a
// time: in a store whose log is in an etcd of three members, and by puts of etcd's own client.
func BenchmarkWrites(b *testing.B) {
	members := etcdBehind(b, 3, nil)
	const writers = 50
	value := []byte("0123456789abcdef")
	for _, under := range []int{1, 16} {
		run := func(b *testing.B, set func(writer int, key string) error) {
			var left atomic.Int64
			left.Store(int64(b.N))
			each(writers*under, func(i int) {
				for left.Add(-1) >= 0 {
					if err := set(i/under, fmt.Sprint("key-", i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
		}
		b.Run(fmt.Sprint(under, " at once/muster"), func(b *testing.B) {
			s := servedStores(b, members, writers)
			b.ResetTimer()
			run(b, func(w int, key string) error { return s[w].Set(b.Context(), key, value, nil) })
		})
		b.Run(fmt.Sprint(under, " at once/etcd"), func(b *testing.B) {
			clients := make([]*clientv3.Client, writers)
			for i := range clients {
				clients[i] = client(b, members)
			}
			b.ResetTimer()
			run(b, func(w int, key string) error {
				_, err := clients[w].Put(b.Context(), "plain/"+key, string(value))
				return err
			})
		})
	}
}

// servedStores returns n clients, with a connection each, of a store whose log is in the etcd of
// members.
func servedStores(b *testing.B, members []*member, n int) []*store.Store {
	b.Helper()
	all, addr := make([]*store.Store, n), serve(b, lead(b, client(b, members), &etcdlog.Options{Root: newRoot()}))
	for i := range all {
		all[i] = open(b, "muster://"+addr)
	}
	return all
}

func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// barriers makes a group of n ranks. The function that it returns runs barrier seq in all ranks.
func barriers(b *testing.B, members []*member, n int) func(seq uint64) {
	ranks := servedStores(b, members, n)
	gens := make([]uint64, n)
	each(n, func(i int) {
		membership, err := ranks[i].Join(b.Context(), wire.Contribution{Group: "g", Rank: i, Size: n}, nil)
		if err != nil {
			b.Error(err)
			return
		}
		gens[i] = membership.Generation
	})
	return func(seq uint64) {
		each(n, func(i int) {
			c := wire.Contribution{Generation: gens[i], Rank: i, Seq: seq, Root: -1, Verb: "barrier", Want: wire.WantNothing}
			if _, err := ranks[i].Collect(b.Context(), c, nil); err != nil {
				b.Error(err)
			}
		})
	}
}

func each(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
