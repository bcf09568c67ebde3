package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-pg/muster/store"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("muster_"+name, help, labels, nil)
}

var (
	up         = desc("store_up", "Whether the store has answered.")
	requests   = desc("store_requests_total", "Requests, by operation.", "op")
	answers    = desc("store_answer_seconds", "Latency in the store, of answers that do not wait for other clients; for 90 seconds after a scrape.")
	syncs      = desc("store_log_sync_seconds", "Time until a write of the log is durable.")
	groups     = desc("groups", "Groups, by state: forming, idle, waiting in a verb, failed, or failed and closed.", "state")
	ranks      = desc("ranks", "Ranks of those groups, by state: in no call, waiting, awaited while in no call, stalled in a phase, left, or failed.", "state")
	inPhase    = desc("phase_ranks", "Ranks that are in a phase; one of several groups counts in each.")
	least      = desc("phase_least_ratio", "The least part that such a rank has done of a known total, from 0 to 1; 1 if there is none.")
	noProgress = desc("phase_no_progress_seconds", "The longest time for which such a rank has made no progress, those that wait in a call aside.")
	takeovers  = desc("replication_takeovers_total", "How many times another process began to lead, since the store began.")
	waits      = desc("waits", "Waiting calls, by kind: undecided verbs, messages between ranks, and keys.", "kind")
	leads      = desc("replication_leads", "Whether this process is the leader of a replicated store: 0 is a standby.")
	led        = desc("replication_led_seconds", "For how long the leader has led.")
	lag        = desc("replication_lag_entries", "Entries of the log that were committed, and that the standby had not applied when it last reported.", "standby")
	jobs       = desc("elastic_jobs", "Elastic jobs, by state: with a view, or waiting for one. These and the following are without the nodes of muster run.", "state")
	workers    = desc("elastic_workers", "Workers in the views of these jobs, or in the last one of a job that waits.")
	changes    = desc("elastic_changes", "Changes of their views, since the first view of each.")
	noView     = desc("elastic_no_view_seconds", "For how long these changes have left the jobs without a view, without the present wait.")
	longest    = desc("longest_wait_seconds", "Age of the oldest of those, by kind.", "kind")
)

// number is a metric that is computed from one field of a ServerStatus.
type number struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	of      func(*store.ServerStatus) float64
	durable bool // only for durable stores
}

var numbers = []number{
	level("store_running_seconds", "Uptime of the store; of a durable one across restarts.", func(s *store.ServerStatus) float64 { return s.Up.Seconds() }),
	level("store_durable", "Whether the store is durable.", func(s *store.ServerStatus) float64 { return float64(btoi(s.Durable)) }),
	level("store_connections", "Connections.", func(s *store.ServerStatus) float64 { return float64(s.Conns) }),
	count("store_accepted_connections_total", "Connections that were accepted.", func(s *store.ServerStatus) float64 { return float64(s.Accepted) }),
	count("store_refused_connections_total", "Connections that were refused at a limit.", func(s *store.ServerStatus) float64 { return float64(s.Refused) }),
	count("store_slow_connections_total", "Connections that were closed because the peer did not read its answers.", func(s *store.ServerStatus) float64 { return float64(s.Dropped) }),
	level("store_sessions", "Sessions of clients, also of those that may reconnect.", func(s *store.ServerStatus) float64 { return float64(s.Sessions) }),
	count("store_lost_sessions_total", "Sessions that failed, and their ranks with them.", func(s *store.ServerStatus) float64 { return float64(s.LostSessions) }),
	level("store_waiting_calls", "Calls that wait.", func(s *store.ServerStatus) float64 { return float64(s.Calls) }),
	level("store_keys", "Keys.", func(s *store.ServerStatus) float64 { return float64(s.Keys) }),
	level("store_stored_bytes", "Bytes of keys and values.", func(s *store.ServerStatus) float64 { return float64(s.Bytes) }),
	count("store_received_bytes_total", "Bytes that came from clients.", func(s *store.ServerStatus) float64 { return traffic(s, s.In) }),
	count("store_sent_bytes_total", "Bytes that went to clients.", func(s *store.ServerStatus) float64 { return traffic(s, s.Out) }),
	level("store_watching_calls", "Calls that wait for the next change: of watches that have seen all of them.", func(s *store.ServerStatus) float64 { return float64(s.Watches) }),
	level("store_history_changes", "Changes that a watch can go back.", func(s *store.ServerStatus) float64 { return float64(s.History) }),
	count("store_compacted_watches_total", "Watches that were further behind than the history goes back.", func(s *store.ServerStatus) float64 { return float64(s.Compacted) }),
	kept(level("store_log_bytes", "Bytes of log since the last checkpoint.", func(s *store.ServerStatus) float64 { return float64(s.LogBytes) })),
	kept(level("store_log_write_seconds", "Age of the current write of the log.", func(s *store.ServerStatus) float64 { return s.SyncPending.Seconds() })),
}

// traffic returns n, or -1 (unknown) if s is from a store that keeps no counters.
func traffic(s *store.ServerStatus, n uint64) float64 {
	if s.Up < 0 {
		return -1
	}
	return float64(n)
}

func level(name, help string, of func(*store.ServerStatus) float64) number {
	return number{desc: desc(name, help), kind: prometheus.GaugeValue, of: of}
}

func count(name, help string, of func(*store.ServerStatus) float64) number {
	return number{desc: desc(name, help), kind: prometheus.CounterValue, of: of}
}

func kept(n number) number {
	n.durable = true
	return n
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The bounds of the histograms are the powers of four from 1 µs to 17 s, which are also bounds of
// the store's own buckets.
const (
	firstBound = 10 // 2^10 ns
	lastBound  = 34
)

// histogram converts the buckets of a store, which are finer.
func histogram(d *prometheus.Desc, buckets []store.Bucket, sum time.Duration) prometheus.Metric {
	bounds := map[float64]uint64{}
	total := uint64(0)
	i := 0
	for k := firstBound; k <= lastBound; k += 2 {
		bound := time.Duration(1) << k
		for ; i < len(buckets) && buckets[i].UpTo <= bound; i++ {
			total += uint64(buckets[i].Count)
		}
		bounds[bound.Seconds()] = total
	}
	for ; i < len(buckets); i++ {
		total += uint64(buckets[i].Count)
	}
	return prometheus.MustNewConstHistogram(d, total, sum.Seconds(), bounds)
}
