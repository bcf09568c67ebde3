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

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/telemetry/metrics"
	"github.com/muster-pg/muster/wire"
)

const (
	slice   = 250 * time.Millisecond // duration of one way in a round
	each    = slice / 10             // between two requests of a viewer
	callers = 16                     // concurrent clients of the store
	ranks   = 256                    // in the group that is shown
	keys    = 10_000
)

// looks is by how much more often a way is viewed than once a second.
const looks = float64(time.Second / each)

// BenchmarkWatched measures the cost of one request per second by a viewer, for a store under full
// load over TCP: with the page, and by scraping metrics.
//
// The cost of one request per second is too small to be measured among the other activity of a
// machine. So each way is viewed 40 times as often, without a cache between the requests, and the
// figures are a 40th of the measured cost. An op is a round, in which four stores take turns in
// random order: one without a viewer, another one without a viewer, and the two with one.
//
// The figures are medians over the rounds, each compared with the first store in the same round: by
// how many percent fewer requests were answered per second, and per second of this process's CPU
// time, which other processes disturb less. ± is half of the 95 % confidence interval of the
// median. The time of the viewers is included. BenchmarkMeter in package store measures the cost
// for each request while the store is viewed.
//
//	go test ./telemetry/metrics -run '^$' -bench Watched -benchtime 200x -timeout 30m
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
	b.ReportMetric(0, "ns/op") // omitted: the duration of a round is fixed
}

// report reports by how many percent the rate is lower than without a viewer, for one request per
// second.
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

// spread returns half of the 95 % confidence interval of the median. It depends only on the order
// of the values, and not on their distribution.
func spread(vs []float64) float64 {
	vs = slices.Sorted(slices.Values(vs))
	n := float64(len(vs))
	low := max(int(n/2-0.98*math.Sqrt(n)), 0)
	return (vs[len(vs)-1-low] - vs[low]) / 2
}

// way is a store and the way in which it is viewed.
type way struct {
	name string
	path string // of the page that is viewed; "": not viewed

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
	// A new handler for each request, which has cached nothing.
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

// run uses the store for the duration slice.
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

// watch requests url again and again.
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
		return // the slice has ended
	}
	_, _ = io.Copy(io.Discard, rep.Body)
	_ = rep.Body.Close()
}
