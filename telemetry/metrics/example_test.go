package metrics_test

import (
	"bufio"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/telemetry/metrics"
	"github.com/muster-pg/muster/telemetry/prom"
)

// ExampleHandler serves the metrics of a store, of this process and of its ranks at one address.
func ExampleHandler() {
	s := store.New(new(store.Memory))
	defer s.Close()
	sink, err := prom.New(nil, nil) // for the Trace of each Config
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(s, sink))
	srv := httptest.NewServer(mux)
	defer srv.Close()

	rep, err := http.Get(srv.URL + "/metrics")
	if err != nil {
		log.Fatal(err)
	}
	defer rep.Body.Close()
	for lines := bufio.NewScanner(rep.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "muster_store_keys") {
			fmt.Println(lines.Text())
		}
	}
	// Output: muster_store_keys 0
}

// ExampleNew registers the metrics of a store in a registry with other collectors.
func ExampleNew() {
	s := store.New(new(store.Memory))
	defer s.Close()
	r := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	r.MustRegister(metrics.New(s))
	n, err := testutil.GatherAndCount(r, "muster_store_up")
	fmt.Println(n, err)
	// Output: 1 <nil>
}
