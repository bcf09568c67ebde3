package metrics_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/telemetry/metrics"
	"github.com/muster-pg/muster/telemetry/prom"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// said is a store that returns the given answer.
type said struct {
	status *store.Status
	code   wire.Code
}

func (s said) Do(_ context.Context, req *wire.Request, rep *wire.Reply) error {
	*rep = wire.Reply{Code: s.code}
	if s.status != nil && req.Op == wire.OpStatus {
		rep.Keys, rep.Value = wire.AppendStatus(nil, nil, s.status)
	}
	return nil
}

func (said) Close() error { return nil }

func registryOf(t *testing.T, e store.Engine) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(metrics.New(store.New(e))))
	return r
}

// everything has a different number in every field.
var everything = &store.Status{
	Server: &store.ServerStatus{
		Up: 90 * time.Second, Durable: true, Sessions: 2, Calls: 3, Groups: 4, Keys: 5, Bytes: 6, In: 7, Out: 8,
		Ops: []int64{0, 0, 0, 0, 9, 10}, LatencySum: 3 * time.Second,
		Latency: []store.Bucket{{UpTo: 1000, Count: 11}, {UpTo: 1<<12 - 1, Count: 12}, {UpTo: time.Second, Count: 13}, {UpTo: time.Minute, Count: 1}},
		Conns:   14, Accepted: 15, Refused: 16, Dropped: 17, LostSessions: 18, Watches: 19, History: 20, Compacted: 21,
		LogBytes: 22, Syncs: []store.Bucket{{UpTo: time.Millisecond, Count: 23}}, SyncSum: time.Second / 2, SyncPending: 24 * time.Second,
	},
	Groups: []store.GroupStatus{
		{
			Name: "train", Generation: 7, Size: 4, Present: 3, Ended: -1, Open: 1,
			Records: []store.RecordStatus{{
				Verb: "barrier", Seq: 1, Root: -1, Age: 42 * time.Second,
				Arrived: wire.Ranks{Count: 2, Spans: []wire.Span{{First: 0, Last: 1}}}, Missing: wire.Ranks{Count: 1, Spans: []wire.Span{{First: 2, Last: 2}}},
			}},
			Ranks: []store.RankStatus{
				{Rank: 0, Session: 1, Progress: &wire.Phase{ID: 1, Name: "train", Done: 12, Total: 48, Ago: time.Hour}},
				{Rank: 1, Session: 2, Waits: []store.WaitStatus{{Verb: "recv", Peer: 2, Waited: time.Second}}},
				{Rank: 2, Session: 3},
				{Rank: 3, Session: 4, Gone: wire.CodeLost},
			},
		},
		{Name: "idle", Generation: 8, Size: 1, Present: 1, Ended: -1, Ranks: []store.RankStatus{{
			Rank: 0, Session: 9, Progress: &wire.Phase{ID: 1, Name: "train", Done: 3, Total: 4, Stall: time.Minute, Ago: 61 * time.Second},
		}}},
	},
	Keys: []store.KeyStatus{{Key: "ready", Calls: 3, Waited: 90 * time.Second}},
	Replication: &store.ReplicationStatus{
		Leading: true, Leader: "a:7070", Term: 3, LeadingFor: 30 * time.Second,
		// c was restarted
		Standbys: []store.StandbyStatus{{Addr: "b:7070", Lag: 2}, {Addr: "c:7070"}, {Addr: "c:7070", Lag: 9}},
	},
}

// TestMetrics compares the metrics of everything with testdata/metrics.txt.
func TestMetrics(t *testing.T) {
	r := registryOf(t, said{status: everything})
	golden, err := os.ReadFile("testdata/metrics.txt")
	require.NoError(t, err)
	want := string(golden)
	var names []string
	for line := range strings.Lines(want) {
		if f := strings.Fields(line); len(f) == 4 {
			names = append(names, f[2])
		}
	}
	require.Equal(t, want, textOf(t, r, names))
	lint, err := testutil.GatherAndLint(r)
	require.NoError(t, err)
	require.Empty(t, lint)
	sync, err := testutil.GatherAndCount(r, "muster_store_log_sync_seconds")
	require.NoError(t, err)
	require.Equal(t, 1, sync)
}

// TestElastic checks that the jobs of a store are counted, without the nodes of "muster run".
func TestElastic(t *testing.T) {
	memory := new(store.Memory)
	s := store.New(memory)
	defer s.Close()
	for _, c := range []membership.Config{{Job: "train", ID: "a", Min: 1}, {Job: "other", ID: "a", Min: 2}, {Job: "muster-run/x", ID: "a", Min: 1}} {
		m, err := membership.Join(t.Context(), s, c)
		require.NoError(t, err)
		defer m.Close()
		if c.Min == 1 {
			_, err = m.Next(t.Context())
			require.NoError(t, err)
			_, err = s.Wait(t.Context(), "membership/"+url.PathEscape(c.Job)+"/history")
			require.NoError(t, err)
		}
	}
	require.Equal(t, `
# TYPE muster_elastic_changes gauge
muster_elastic_changes 1
# TYPE muster_elastic_jobs gauge
muster_elastic_jobs{state="view"} 1
muster_elastic_jobs{state="waiting"} 1
# TYPE muster_elastic_no_view_seconds gauge
muster_elastic_no_view_seconds 0
# TYPE muster_elastic_workers gauge
muster_elastic_workers 1
`[1:], textOf(t, registryOf(t, memory), []string{"muster_elastic_changes", "muster_elastic_jobs", "muster_elastic_no_view_seconds", "muster_elastic_workers"}))
}

// textOf returns the text of some metrics, without the help lines.
func textOf(t *testing.T, r prometheus.Gatherer, names []string) string {
	all, err := r.Gather()
	require.NoError(t, err)
	var b strings.Builder
	for _, family := range all {
		for _, name := range names {
			if family.GetName() == name {
				family.Help = nil
				_, err := expfmt.MetricFamilyToText(&b, family)
				require.NoError(t, err)
			}
		}
	}
	return b.String()
}

// TestNothingButWhatIsThere checks that metrics are omitted for a store that is unavailable, in
// memory, a standby, or seen below a prefix.
func TestNothingButWhatIsThere(t *testing.T) {
	count := func(e store.Engine, names ...string) int {
		n, err := testutil.GatherAndCount(registryOf(t, e), names...)
		require.NoError(t, err)
		return n
	}
	for _, code := range []wire.Code{wire.CodeUnavailable, wire.CodeDenied, wire.CodeUnsupported} {
		r := registryOf(t, said{code: code})
		require.Equal(t, "# TYPE muster_store_up gauge\nmuster_store_up 0\n", textOf(t, r, []string{"muster_store_up"}))
		require.Equal(t, 1, count(said{code: code}))
	}
	below := said{status: &store.Status{}}
	require.Equal(t, 1, count(below, "muster_store_up"))
	require.Equal(t, 0, count(below, "muster_store_keys", "muster_store_answer_seconds"))
	require.Equal(t, 5, count(below, "muster_groups"))
	standby := said{status: &store.Status{Replication: &store.ReplicationStatus{LeadingFor: -1}}}
	require.Equal(t, 3, count(standby)) // up, leads and takeovers
	memory := new(store.Memory)
	defer memory.Close()
	require.Equal(t, 0, count(memory, "muster_store_log_bytes", "muster_store_log_sync_seconds"))
	require.Equal(t, 1, count(memory, "muster_store_answer_seconds"))
}

// TestUnknown checks that unknown values have no metric.
func TestUnknown(t *testing.T) {
	families, err := registryOf(t, said{status: &store.Status{Server: &store.ServerStatus{Up: -1, Durable: true, Keys: 7, Sessions: -1, Bytes: -1, Conns: -1, LogBytes: -1}}}).Gather()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	require.True(t, names["muster_store_keys"])
	for _, name := range []string{"running_seconds", "sessions", "stored_bytes", "connections", "received_bytes_total", "sent_bytes_total", "log_bytes", "answer_seconds", "log_sync_seconds"} {
		require.False(t, names["muster_store_"+name], name)
	}
}

// TestHandler checks that the handler serves all formats that Prometheus requests, with the metrics
// of the ranks of this process.
func TestHandler(t *testing.T) {
	s := store.New(new(store.Memory))
	defer s.Close()
	sink, err := prom.New(nil, nil)
	require.NoError(t, err)
	trace.Record(t.Context(), sink, trace.Event{Op: "pgroup.barrier", Start: trace.Now(sink)})
	srv := httptest.NewServer(metrics.Handler(s, sink))
	defer srv.Close()
	for accept, kind := range map[string]string{
		"": "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
		"application/openmetrics-text; version=1.0.0": "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
		require.NoError(t, err)
		req.Header.Set("Accept", accept)
		rep, err := srv.Client().Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(rep.Body)
		require.NoError(t, err)
		require.NoError(t, rep.Body.Close())
		require.Equal(t, []any{200, kind}, []any{rep.StatusCode, rep.Header.Get("Content-Type")})
		for _, name := range []string{"muster_store_up 1", `muster_operations_total{code="ok",op="pgroup.barrier"} 1`, "go_goroutines ", "process_open_fds ", "go_build_info{"} {
			require.Contains(t, string(body), name)
		}
	}
}

// TestNoNameOfAnybody checks that no label contains the name of a group, rank or key: their number
// has no bound, and they would disclose the jobs to every client that may read metrics.
func TestNoNameOfAnybody(t *testing.T) {
	all, err := registryOf(t, said{status: everything}).Gather()
	require.NoError(t, err)
	require.Greater(t, len(all), 20)
	for _, family := range all {
		require.True(t, model.LegacyValidation.IsValidMetricName(family.GetName()))
		for _, m := range family.Metric {
			for _, l := range m.Label {
				require.Contains(t, []string{"op", "state", "kind", "standby"}, l.GetName())
				require.NotContains(t, l.GetValue(), "train")
			}
		}
	}
}
