package metrics_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/telemetry/metrics"
	"github.com/muster-pg/muster/wire"
)

// BenchmarkScrape measures a scrape, in the scraping process and the store, of a store with 10,000
// keys and a group of 256 ranks.
func BenchmarkScrape(b *testing.B) {
	s := testcluster.Dial(b, testcluster.Serve(b, new(store.Server)), nil)
	for i := range 10_000 {
		require.NoError(b, s.Set(b.Context(), fmt.Sprintf("key/%d", i), make([]byte, 100), nil))
	}
	const ranks = 256
	var joining sync.WaitGroup
	for rank := range ranks {
		joining.Go(func() {
			_, _ = s.Join(b.Context(), wire.Contribution{Group: "train", Rank: rank, Size: ranks, Label: "pid 4711 on node-a"}, nil)
		})
	}
	joining.Wait()
	for b.Loop() {
		w := httptest.NewRecorder()
		metrics.Handler(s).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil)) // a new one has cached nothing
		require.Equal(b, http.StatusOK, w.Code)
	}
}
