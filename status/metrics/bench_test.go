package metrics_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/status"
	"github.com/muster-pg/muster/status/metrics"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

const (
	slice   = time.Second // of one way: each has a look, at its begin
	callers = 16          // of the store, at once
	ranks   = 256         // of a group that is looked at
	keys    = 10_000
)

// BenchmarkWatched is what it costs a store that is used as fast as it goes, over TCP, that somebody looks: with a page that is open, and with
// metrics that are scraped each second. An op is a round, in which four stores take turns, in an order by chance: one that nobody looks at, another one
// of those, which tells how exact this is, and those two. Figures are medians over the rounds, each compared with the first of the same round: by how
// many per cent fewer requests were answered in a second, and for a second of this process's processor time, which others on the machine disturb
// less. ± is how far the median may be off, 19 times out of 20. The time of the viewers is in it.
//
//	go test ./status/metrics -run '^$' -bench Watched -benchtime 40x -timeout 30m
func BenchmarkWatched(b *testing.B) {
	ways := []*way{{name: "off"}, {name: "again"}, {name: "page", look: openPage}, {name: "metrics", look: scrape}}
	for _, w := range ways {
		w.start(b)
		defer w.stop()
	}
	for b.Loop() {
		for _, i := range rand.Perm(len(ways)) {
			ways[i].run(b)
		}
	}
	off := ways[0]
	b.ReportMetric(median(off.perSecond), "requests/s")
	for _, w := range ways[1:] {
		wall, processor := make([]float64, len(off.perSecond)), make([]float64, len(off.perSecond))
		for i := range wall {
			wall[i] = 100 * (1 - w.perSecond[i]/off.perSecond[i])
			processor[i] = 100 * (1 - w.perProcessor[i]/off.perProcessor[i])
		}
		b.ReportMetric(median(wall), "%slower-"+w.name)
		b.ReportMetric(median(processor), "%dearer-"+w.name)
		b.ReportMetric(spread(wall), "%slower±-"+w.name)
		b.ReportMetric(spread(processor), "%dearer±-"+w.name)
	}
	b.ReportMetric(0, "ns/op") // a round takes as long as it takes
}

func median(vs []float64) float64 {
	vs = slices.Sorted(slices.Values(vs))
	return (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
}

// spread is half of the interval in which the median is, with 95 %: by the order of the values alone, however they are distributed.
func spread(vs []float64) float64 {
	vs = slices.Sorted(slices.Values(vs))
	n := float64(len(vs))
	low := max(int(n/2-0.98*math.Sqrt(n)), 0)
	return (vs[len(vs)-1-low] - vs[low]) / 2
}

// way is a store, and how it is looked at.
type way struct {
	name string
	look func(ctx context.Context, url string) // until ctx ends; nil is not at all

	memory *store.Memory
	server *store.Server
	client *store.Store
	page   *httptest.Server

	perSecond, perProcessor []float64 // requests, in each round
}

func (w *way) start(b *testing.B) {
	w.memory = new(store.Memory)
	w.server = &store.Server{Engine: w.memory}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	go func() { _ = w.server.Serve(l) }()
	w.client, err = store.Dial(b.Context(), l.Addr().String(), nil)
	require.NoError(b, err)
	s := store.New(w.memory)
	for i := range keys {
		require.NoError(b, s.Set(b.Context(), fmt.Sprintf("key/%d", i), make([]byte, 100), nil))
	}
	var joining sync.WaitGroup
	for rank := range ranks {
		joining.Go(func() {
			_, _ = s.Join(b.Context(), wire.Contribution{Group: "train", Rank: rank, Size: ranks, Label: "pid 4711 on node-a"}, nil)
		})
	}
	joining.Wait()
	mux := http.NewServeMux()
	mux.Handle("/", status.Handler(s))
	mux.Handle("GET /metrics", metrics.Handler(s))
	w.page = httptest.NewServer(mux)
}

func (w *way) stop() {
	w.page.Close()
	_ = w.client.Close()
	_ = w.server.Close()
	_ = w.memory.Close()
}

// run uses the store for a slice.
func (w *way) run(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), slice)
	defer cancel()
	var work sync.WaitGroup
	var done atomic.Int64
	began, before := time.Now(), processorTime(b)
	for i := range callers {
		work.Go(func() { done.Add(w.call(ctx, fmt.Sprintf("key/%d", i))) })
	}
	if w.look != nil {
		work.Go(func() { w.look(ctx, w.page.URL) })
	}
	work.Wait()
	n := float64(done.Load())
	w.perSecond = append(w.perSecond, n/time.Since(began).Seconds())
	w.perProcessor = append(w.perProcessor, n/(processorTime(b)-before).Seconds())
	require.Positive(b, n)
}

// call makes three reads for each write.
func (w *way) call(ctx context.Context, key string) (n int64) {
	value := make([]byte, 100)
	for ; ctx.Err() == nil; n++ {
		if n%4 == 0 {
			_ = w.client.Set(context.WithoutCancel(ctx), key, value, nil)
		} else {
			_, _ = w.client.Get(context.WithoutCancel(ctx), key)
		}
	}
	return n
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func openPage(ctx context.Context, url string) { fetch(ctx, url+"/events") }

func scrape(ctx context.Context, url string) {
	for tick := time.NewTicker(time.Second); ; {
		fetch(ctx, url+"/metrics")
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

func fetch(ctx context.Context, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	rep, err := http.DefaultClient.Do(req)
	if err != nil {
		return // the slice is over
	}
	_, _ = io.Copy(io.Discard, rep.Body)
	_ = rep.Body.Close()
}
