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
	up        = desc("store_up", "Whether the store has answered.")
	requests  = desc("store_requests_total", "Requests that were carried out, by operation.", "op")
	answers   = desc("store_answer_seconds", "How long answers that need nobody else take in the store. They are counted for 90 seconds after somebody has looked.")
	syncs     = desc("store_log_sync_seconds", "How long writes of the log take until they are on the disk.")
	groups    = desc("groups", "Groups, by state: they come together, are at work, wait in a verb, have failed, or have failed and are over.", "state")
	ranks     = desc("ranks", "Ranks of those groups, by state: in no call, waiting, waited for while in no call, left, or lost.", "state")
	takeovers = desc("replication_takeovers_total", "How many times another process began to lead, since the store began.")
	waits     = desc("waits", "What waits, by kind: verbs that are not decided, messages between ranks, and keys that calls wait for.", "kind")
	leads     = desc("replication_leads", "Whether this process is the leader of a replicated store: 0 is a standby.")
	led       = desc("replication_led_seconds", "For how long the leader has led.")
	lag       = desc("replication_lag_entries", "Entries of the log that were committed, and that the standby had not applied when it last reported.", "standby")
	longest   = desc("longest_wait_seconds", "For how long the oldest of those has been waiting, by kind.", "kind")
)

// number is a metric that is one field.
type number struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	of      func(*store.ServerStatus) float64
	durable bool // of a durable store only
}

var numbers = []number{
	level("store_running_seconds", "How long the store has been running. It goes on after a restart of a durable one.", func(s *store.ServerStatus) float64 { return s.Up.Seconds() }),
	level("store_durable", "Whether the store is kept on a disk.", func(s *store.ServerStatus) float64 { return float64(btoi(s.Durable)) }),
	level("store_connections", "Connections.", func(s *store.ServerStatus) float64 { return float64(s.Conns) }),
	count("store_accepted_connections_total", "Connections that were let in.", func(s *store.ServerStatus) float64 { return float64(s.Accepted) }),
	count("store_refused_connections_total", "Connections that were turned away, since there were too many.", func(s *store.ServerStatus) float64 { return float64(s.Refused) }),
	count("store_slow_connections_total", "Connections that were cut off, since the peer did not read what it had asked for.", func(s *store.ServerStatus) float64 { return float64(s.Dropped) }),
	level("store_sessions", "Sessions of clients, also of those that may come back.", func(s *store.ServerStatus) float64 { return float64(s.Sessions) }),
	count("store_lost_sessions_total", "Sessions that were lost, and their ranks with them.", func(s *store.ServerStatus) float64 { return float64(s.LostSessions) }),
	level("store_waiting_calls", "Calls that wait.", func(s *store.ServerStatus) float64 { return float64(s.Calls) }),
	level("store_keys", "Keys.", func(s *store.ServerStatus) float64 { return float64(s.Keys) }),
	level("store_stored_bytes", "Bytes of keys and values.", func(s *store.ServerStatus) float64 { return float64(s.Bytes) }),
	count("store_received_bytes_total", "Bytes that came from clients.", func(s *store.ServerStatus) float64 { return traffic(s, s.In) }),
	count("store_sent_bytes_total", "Bytes that went to clients.", func(s *store.ServerStatus) float64 { return traffic(s, s.Out) }),
	level("store_watching_calls", "Calls that wait for the next change: of watches that have seen all of them.", func(s *store.ServerStatus) float64 { return float64(s.Watches) }),
	level("store_history_changes", "Changes that a watch can go back.", func(s *store.ServerStatus) float64 { return float64(s.History) }),
	count("store_compacted_watches_total", "Watches that were further behind than the history goes back.", func(s *store.ServerStatus) float64 { return float64(s.Compacted) }),
	kept(level("store_log_bytes", "Bytes of log since the last checkpoint.", func(s *store.ServerStatus) float64 { return float64(s.LogBytes) })),
	kept(level("store_log_write_seconds", "For how long the write of the log that is under way has not been on the disk.", func(s *store.ServerStatus) float64 { return s.SyncPending.Seconds() })),
}

// traffic is n, unless s is of a store that counts nothing.
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

// The histograms have bounds at each fourth power of two from 1 µs to 17 s: a store's own buckets end there too.
const (
	firstBound = 10 // 2^10 ns
	lastBound  = 34
)

// histogram makes one of a store's buckets, which are finer.
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
