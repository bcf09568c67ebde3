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
	slice   = 250 * time.Millisecond // of one way
	each    = slice / 10             // from one look to the next
	callers = 16                     // of the store, at once
	ranks   = 256                    // of a group that is looked at
	keys    = 10_000
)

// looks is how many times as often as once a second each way is looked at.
const looks = float64(time.Second / each)

// BenchmarkWatched is what it costs a store that is used as fast as it goes, over TCP, that
// somebody looks once a second: with the page, and by scraping metrics. Once a second is too little
// to be seen beside what else a machine does. So each way is looked at 40 times as often, which
// nothing is kept from one look to the next for, and figures are a 40th of what that costs. An op
// is a round, in which four stores take turns, in an order by chance: one that nobody looks at,
// another one of those, and those two. Figures are medians over the rounds, each compared with the
// first of the same round: by how many per cent fewer requests were answered in a second, and for a
// second of this process's processor time, which others on the machine disturb less. ± is how far
// the median may be off, 19 times out of 20. The time of the viewers is in it. What each request
// pays while somebody looks is BenchmarkMeter's, in package store.
//
//	go test ./status/metrics -run '^$' -bench Watched -benchtime 200x -timeout 30m
func BenchmarkWatched(b *testing.B) {
	ways := []*way{
		{name: "off"},
		{name: "again"},
		{name: "page", path: "/status"},
		{name: "metrics", path: "/metrics"},
	}
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
		report(b, "%slower-", w.name, off.perSecond, w.perSecond)
		report(b, "%dearer-", w.name, off.perProcessor, w.perProcessor)
	}
	b.ReportMetric(0, "ns/op") // a round takes as long as it takes
}

// report tells by how many per cent less there was than with nobody, for one look a second.
func report(b *testing.B, what, name string, off, with []float64) {
	less := make([]float64, len(off))
	for i := range less {
		less[i] = 100 * (1 - with[i]/off[i]) / looks
	}
	b.ReportMetric(median(less), what+name)
	b.ReportMetric(spread(less), what+name+"±")
}

func median(vs []float64) float64 {
	vs = slices.Sorted(slices.Values(vs))
	return (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
}

// spread is half of the interval in which the median is, with 95 %: by the order of the values
// alone, however they are distributed.
func spread(vs []float64) float64 {
	vs = slices.Sorted(slices.Values(vs))
	n := float64(len(vs))
	low := max(int(n/2-0.98*math.Sqrt(n)), 0)
	return (vs[len(vs)-1-low] - vs[low]) / 2
}

// way is a store, and how it is looked at.
type way struct {
	name string
	path string // of the page that is looked at; none is not at all

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
	// a handler that knows of no look before
	fresh := func(h func() http.Handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { h().ServeHTTP(w, r) }
	}
	mux.HandleFunc("GET /status", fresh(func() http.Handler { return status.Handler(s, nil) }))
	mux.HandleFunc("GET /metrics", fresh(func() http.Handler { return metrics.Handler(s) }))
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
	if w.path != "" {
		work.Go(func() { watch(ctx, w.page.URL+w.path) })
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

// watch looks again and again.
func watch(ctx context.Context, url string) {
	tick := time.NewTicker(each)
	defer tick.Stop()
	for {
		fetch(ctx, url)
		select {
		case <-tick.C:
		case <-ctx.Done():
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
