package etcdstore_test

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
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

// BenchmarkBarrier has n ranks, each an engine of its own, in barriers one after the other, and after each of them one put of etcd's own
// client: the medians of both, on the same member and its disk, and what one is in terms of the other. Then the ranks enter double
// barriers of etcd's recipes.
func BenchmarkBarrier(b *testing.B) {
	members := etcd(b, "--data-dir", b.TempDir())
	plain := plainClient(b, members)
	for _, n := range []int{2, 8, 32} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			pass := barriers(b, members, n)
			var ours, puts, recipes []time.Duration
			busy := busyTime(b)
			for seq := uint64(1); b.Loop(); seq++ {
				ours = append(ours, timed(func() { pass(seq) }))
				puts = append(puts, timed(func() {
					if _, err := plain.Put(b.Context(), "plain", "0123456789abcdef"); err != nil {
						b.Error(err)
					}
				}))
			}
			b.ReportMetric(float64((busyTime(b)-busy).Microseconds())/float64(len(ours)), "cpu-µs/op")
			pass = recipeBarriers(b, members, n)
			for seq := range uint64(min(len(ours), 50)) {
				recipes = append(recipes, timed(func() { pass(seq) }))
			}
			put := float64(median(puts))
			for name, ds := range map[string][]time.Duration{"barrier": ours, "put": puts, "recipe": recipes} {
				b.ReportMetric(float64(median(ds).Microseconds()), "µs/"+name)
				b.ReportMetric(float64(median(ds))/put, "puts/"+name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// barriers makes a group of n ranks; what it returns has them pass the barrier seq.
func barriers(b *testing.B, members []*member, n int) func(seq uint64) {
	root := newRoot()
	ranks := make([]*store.Store, n)
	gens := make([]uint64, n)
	for i := range ranks {
		ranks[i] = store.New(dial(b, addresses(members), &etcdstore.Options{Root: root, Session: time.Minute}))
	}
	each(n, func(i int) {
		roll, err := ranks[i].Join(b.Context(), wire.Contribution{Group: "g", Rank: i, Size: n}, nil)
		if err != nil {
			b.Error(err)
			return
		}
		gens[i] = roll.Generation
	})
	return together(b, n, func(i int, seq uint64) error {
		c := wire.Contribution{Generation: gens[i], Rank: i, Seq: seq, Root: -1, Verb: "barrier", Want: wire.WantNothing}
		_, err := ranks[i].Collect(b.Context(), c, nil)
		return err
	})
}

// recipeBarriers is the same of etcd's recipes. Nobody leaves: each barrier has a name of its own, as a record has its number.
func recipeBarriers(b *testing.B, members []*member, n int) func(seq uint64) {
	sessions := make([]*concurrency.Session, n)
	for i := range sessions {
		s, err := concurrency.NewSession(plainClient(b, members), concurrency.WithTTL(60))
		if err != nil {
			b.Fatal(err)
		}
		sessions[i] = s
	}
	root := newRoot()
	return together(b, n, func(i int, seq uint64) error {
		return recipe.NewDoubleBarrier(sessions[i], fmt.Sprint(root, seq), n).Enter()
	})
}

// together has n goroutines, which live as long as the benchmark, do something at once.
func together(b *testing.B, n int, do func(i int, seq uint64) error) func(seq uint64) {
	var done sync.WaitGroup
	next := make([]chan uint64, n)
	for i := range next {
		next[i] = make(chan uint64)
		go func() {
			for seq := range next[i] {
				if err := do(i, seq); err != nil {
					b.Error(err)
				}
				done.Done()
			}
		}()
	}
	b.Cleanup(func() {
		for _, c := range next {
			close(c)
		}
	})
	return func(seq uint64) {
		done.Add(n)
		for _, c := range next {
			c <- seq
		}
		done.Wait()
	}
}

func plainClient(b *testing.B, members []*member) *clientv3.Client {
	b.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: addresses(members), Logger: zap.NewNop()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
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
