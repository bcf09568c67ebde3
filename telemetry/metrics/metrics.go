// Package metrics exports the state of a store to Prometheus: its activity, and what waits in it.
//
//	http.Handle("/metrics", metrics.Handler(s))
//
// All of it comes from Store.Status, and from keys: the store may be in this process or on another host, for
// example one that rank 0 hosts. The collector requests the status only during a scrape, and never
// for more than a hundredth of the time. The ranks' own activity is counted by package telemetry/prom,
// whose Sink is a collector too: pass it to Handler, or register both with your own registry.
//
// No label contains a group, a rank or a key, because their number has no bound. The status page
// shows them.
//
// A standby of a replicated store reports muster_store_up 1, muster_replication_leads 0, and its
// own lag.
package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
)

const (
	askTime = 4 * time.Second // less than Prometheus's own timeout
	// between two requests to the store: there may be several scrapers
	every  = 500 * time.Millisecond
	atOnce = 8 // concurrent scrapes
)

// Handler returns a handler that serves the metrics of s, those of this process (go_…, process_…),
// and those of the collectors in more.
func Handler(s *store.Store, more ...prometheus.Collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(New(s), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	r.MustRegister(more...)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: atOnce})
}

// New returns a collector of the metrics of s. The metrics of the store as a whole require the
// right to read everything. If the store does not answer, the only metric is muster_store_up with
// the value 0.
func New(s *store.Store) prometheus.Collector {
	return &collector{status.NewWatch(store.ReadOnly(s), every, status.Options{Ranks: 1})}
}

type collector struct{ watch *status.Watch }

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{up, requests, answers, syncs, groups, ranks, inPhase, least, noProgress, waits, longest, leads, takeovers, led, lag, jobs, workers, changes, noView} {
		ch <- d
	}
	for i := range numbers {
		ch <- numbers[i].desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	v, s, err := c.watch.Look(ctx)
	if err != nil {
		ch <- gauge(up, 0)
		return
	}
	ch <- gauge(up, 1)
	if s.Server != nil {
		ofServer(ch, s.Server)
	}
	if r := s.Replication; r != nil {
		ofReplication(ch, r)
		if !r.Leading {
			return // a standby reports nothing else
		}
	}
	ofGroups(ch, v)
	ofPhases(ch, v)
	ofWaits(ch, v)
	ofElastic(ch, v)
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func ofServer(ch chan<- prometheus.Metric, s *store.ServerStatus) {
	for i := range numbers {
		if n := &numbers[i]; !n.durable || s.Durable {
			if x := n.of(s); x >= 0 { // otherwise it is unknown
				ch <- prometheus.MustNewConstMetric(n.desc, n.kind, x)
			}
		}
	}
	byName := map[string]int64{} // operations without their own name share one
	for op, n := range s.Ops {
		byName[store.OpName(op)] += n
	}
	for name, n := range byName {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(requests, prometheus.CounterValue, float64(n), name)
		}
	}
	if s.Up < 0 { // this store keeps no counters
		return
	}
	ch <- histogram(answers, s.Latency, s.LatencySum)
	if s.Durable {
		ch <- histogram(syncs, s.Syncs, s.SyncSum)
	}
}

func ofReplication(ch chan<- prometheus.Metric, r *store.ReplicationStatus) {
	ch <- gauge(leads, float64(btoi(r.Leading)))
	ch <- prometheus.MustNewConstMetric(takeovers, prometheus.CounterValue, float64(max(r.Term, 1)-1))
	if r.LeadingFor >= 0 {
		ch <- gauge(led, r.LeadingFor.Seconds())
	}
	lags := map[string]uint64{} // a restarted process may be listed twice
	for _, s := range r.Standbys {
		lags[s.Addr] = max(lags[s.Addr], s.Lag)
	}
	for addr, n := range lags {
		ch <- gauge(lag, float64(n), addr)
	}
}

// ofGroups counts groups and ranks by state. It reports every state, also those with count 0, so
// that no time series has gaps.
func ofGroups(ch chan<- prometheus.Metric, v *status.View) {
	ofGroup, ofRank := map[string]int{}, map[string]int{}
	for i := range v.Groups {
		g := &v.Groups[i]
		ofGroup[g.State]++
		for state, n := range g.States {
			ofRank[state] += n
		}
	}
	for _, state := range []string{"forming", "idle", "waiting", "failed", "closed"} {
		ch <- gauge(groups, float64(ofGroup[state]), state)
	}
	for _, state := range []string{"idle", "waits", "awaited", "stalled", "left", "lost"} {
		ch <- gauge(ranks, float64(ofRank[state]), state)
	}
}

// ofPhases sums up the phases of all ranks.
func ofPhases(ch chan<- prometheus.Metric, v *status.View) {
	n, part, ago := 0, 1.0, 0.0
	for i := range v.Groups {
		if p := v.Groups[i].Phases; p != nil {
			n, ago = n+p.Ranks, max(ago, p.Ago)
			if p.Least >= 0 {
				part = min(part, p.Least)
			}
		}
	}
	ch <- gauge(inPhase, float64(n))
	ch <- gauge(least, part)
	ch <- gauge(noProgress, ago)
}

func ofWaits(ch chan<- prometheus.Metric, v *status.View) {
	count, most := map[string]int{}, map[string]float64{}
	for i := range v.Waiting {
		w := &v.Waiting[i]
		count[w.Kind]++
		most[w.Kind] = max(most[w.Kind], w.For)
	}
	for _, kind := range []string{"verb", "message", "key"} {
		ch <- gauge(waits, float64(count[kind]), kind)
		ch <- gauge(longest, most[kind], kind)
	}
}

// ofElastic sums up the elastic jobs. These are gauges: a job that ends takes its part away.
func ofElastic(ch chan<- prometheus.Metric, v *status.View) {
	waiting := map[bool]int{}
	var size, changed, away float64
	for i := range v.Elastic {
		if j := &v.Elastic[i]; !j.Nodes {
			waiting[j.Waiting]++
			size += float64(j.Size)
			changed += float64(j.Changes)
			away += j.NoView
		}
	}
	ch <- gauge(jobs, float64(waiting[false]), "view")
	ch <- gauge(jobs, float64(waiting[true]), "waiting")
	ch <- gauge(workers, size)
	ch <- gauge(changes, changed)
	ch <- gauge(noView, away)
}
