// Package metrics tells Prometheus what a store does, and what waits in it.
//
//	http.Handle("/metrics", metrics.Handler(s))
//
// All of it comes by Store.Status: the store may be of this process, or one that was dialed, as one that rank 0 hosts. It is asked when
// Prometheus asks, and never for more than a hundredth of the time. What ranks themselves do is counted by package trace/prom, whose Sink is a
// collector too: give it to Handler, or both to a registry of your own.
//
// No label has a group, a rank or a key: they would have no bound. The page has them.
//
// A standby of a replicated store has muster_store_up 1, muster_replication_leads 0, and its own lag.
package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/muster-pg/muster/status"
	"github.com/muster-pg/muster/store"
)

const (
	askTime = 4 * time.Second        // less than Prometheus waits
	every   = 500 * time.Millisecond // that the store is asked at most: several may scrape
	atOnce  = 8                      // scrapes
)

// Handler serves the metrics of s, of this process (go_…, process_…), and of more.
func Handler(s *store.Store, more ...prometheus.Collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(New(s), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	r.MustRegister(more...)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: atOnce})
}

// New returns a collector of what s says of its store. What is about the store as a whole takes the right to read everything. A store that does
// not answer has muster_store_up 0, and nothing else.
func New(s *store.Store) prometheus.Collector {
	return &collector{status.NewWatch(store.ReadOnly(s), every, &status.Options{Ranks: 1})}
}

type collector struct{ watch *status.Watch }

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{up, requests, answers, syncs, groups, ranks, waits, longest, leads, takeovers, led, lag} {
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
			return // a standby knows nothing else
		}
	}
	ofGroups(ch, v)
	ofWaits(ch, v)
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func ofServer(ch chan<- prometheus.Metric, s *store.ServerStatus) {
	for i := range numbers {
		if n := &numbers[i]; !n.durable || s.Durable {
			if x := n.of(s); x >= 0 { // otherwise it is not known
				ch <- prometheus.MustNewConstMetric(n.desc, n.kind, x)
			}
		}
	}
	byName := map[string]int64{} // those that have no name of their own share one
	for op, n := range s.Ops {
		byName[store.OpName(op)] += n
	}
	for name, n := range byName {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(requests, prometheus.CounterValue, float64(n), name)
		}
	}
	if s.Up < 0 { // it counts nothing
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
	lags := map[string]uint64{} // a process that was started again may be there twice
	for _, s := range r.Standbys {
		lags[s.Addr] = max(lags[s.Addr], s.Lag)
	}
	for addr, n := range lags {
		ch <- gauge(lag, float64(n), addr)
	}
}

// ofGroups counts groups and ranks by their states. All states are there, so that none has gaps.
func ofGroups(ch chan<- prometheus.Metric, v *status.View) {
	ofGroup, ofRank := map[string]int{}, map[string]int{}
	for i := range v.Groups {
		g := &v.Groups[i]
		ofGroup[g.State]++
		for state, n := range g.States {
			ofRank[state] += n
		}
	}
	for _, state := range []string{"forming", "idle", "waiting", "revoked", "over"} {
		ch <- gauge(groups, float64(ofGroup[state]), state)
	}
	for _, state := range []string{"idle", "waits", "awaited", "left", "lost"} {
		ch <- gauge(ranks, float64(ofRank[state]), state)
	}
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
