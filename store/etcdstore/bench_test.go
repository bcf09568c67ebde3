package etcdstore_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/wire"
)

// median is that of ds.
func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}

// BenchmarkBarrier has 8 ranks, each an engine of its own, in barriers one after the other, and after each of those one put of etcd's own
// client: the medians of both, on the same member and its disk, and what one is in terms of the other.
func BenchmarkBarrier(b *testing.B) {
	members := etcd(b, "--data-dir", b.TempDir())
	plain, err := clientv3.New(clientv3.Config{Endpoints: addresses(members), Logger: zap.NewNop()})
	if err != nil {
		b.Fatal(err)
	}
	defer plain.Close()
	for _, n := range []int{2, 8, 32} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchBarrier(b, addresses(members), plain, n) })
	}
}

func benchBarrier(b *testing.B, addrs []string, plain *clientv3.Client, n int) {
	root := newRoot()
	value := strings.Repeat("v", 16)
	ranks := make([]*store.Store, n)
	gens := make([]uint64, n)
	for i := range ranks {
		ranks[i] = store.New(dial(b, addrs, &etcdstore.Options{Root: root, Session: time.Minute}))
	}
	each(n, func(i int) {
		roll, err := ranks[i].Join(b.Context(), wire.Contribution{Group: "g", Rank: i, Size: n}, nil)
		if err != nil {
			b.Error(err)
		}
		gens[i] = roll.Generation
	})
	busy := busyTime(b)
	var barriers, puts []time.Duration
	for seq := uint64(1); b.Loop(); seq++ {
		began := time.Now()
		each(n, func(i int) {
			c := wire.Contribution{Generation: gens[i], Rank: i, Seq: seq, Root: -1, Verb: "barrier", Want: wire.WantNothing}
			if _, err := ranks[i].Collect(b.Context(), c, nil); err != nil {
				b.Error(err)
			}
		})
		barriers = append(barriers, time.Since(began))
		began = time.Now()
		if _, err := plain.Put(b.Context(), root+"plain", value); err != nil {
			b.Fatal(err)
		}
		puts = append(puts, time.Since(began))
	}
	b.ReportMetric(float64((busyTime(b)-busy).Microseconds())/float64(len(barriers)), "cpu-µs/op")
	barrier, put := median(barriers), median(puts)
	b.ReportMetric(float64(barrier.Microseconds()), "µs/barrier")
	b.ReportMetric(float64(put.Microseconds()), "µs/put")
	b.ReportMetric(float64(barrier)/float64(put), "puts/barrier")
	b.ReportMetric(0, "ns/op")
}

// busyTime is what the process has used of its cores.
func busyTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func each(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
