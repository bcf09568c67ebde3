package deploy_test

import (
	"encoding/json"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/telemetry/metrics"
	"github.com/muster-pg/muster/telemetry/prom"
	"github.com/muster-pg/muster/trace"
)

// The parts of a dashboard that are used here.
type (
	dashboard struct {
		Templating struct{ List []struct{ Name string } }
		Panels     []panel
	}
	panel struct {
		ID          int
		Type, Title string
		Datasource  source
		Targets     []target
	}
	target struct {
		RefID, Expr, LegendFormat string
		Datasource                source
	}
	source struct{ Type, UID string }
)

var prometheus = source{"prometheus", "${datasource}"}

func readDashboard(t *testing.T) (d dashboard) {
	b, err := os.ReadFile("../../deploy/grafana/muster.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &d))
	return d
}

// TestDashboard checks that each panel has its own id, and uses the selected Prometheus.
func TestDashboard(t *testing.T) {
	ids := map[int]bool{}
	for _, p := range readDashboard(t).Panels {
		require.Positive(t, p.ID)
		require.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		require.Equal(t, prometheus, p.Datasource, p.Title)
		refs := map[string]bool{}
		for _, q := range p.Targets {
			require.False(t, refs[q.RefID], p.Title)
			refs[q.RefID] = true
			require.Equal(t, prometheus, q.Datasource, p.Title)
		}
		require.NotEmpty(t, refs, p.Title)
	}
}

var variables = regexp.MustCompile(`\$\{?(\w+)\}?`)

// promQL returns a query as Prometheus gets it.
func (d *dashboard) promQL(t *testing.T, expr string) string {
	known := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		known = append(known, v.Name)
	}
	for _, m := range variables.FindAllStringSubmatch(expr, -1) {
		require.Contains(t, known, m[1], expr)
	}
	return variables.ReplaceAllString(strings.ReplaceAll(expr, "$__rate_interval", "1m"), "x")
}

// TestQueries checks that Prometheus accepts the queries, that their metrics and labels exist, and
// that each metric of muster is in a query.
func TestQueries(t *testing.T) {
	d, there := readDashboard(t), served(t)
	shown := map[string]bool{}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			expr, err := parser.ParseExpr(d.promQL(t, q.Expr))
			require.NoError(t, err, "%s: %s", p.Title, q.Expr)
			labels := map[string]bool{"job": true, "instance": true}
			parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
				if s, ok := n.(*parser.VectorSelector); ok {
					shown[there.check(t, s, path)] = true
					maps.Copy(labels, there[s.Name].labels)
				}
				return nil
			})
			for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(q.LegendFormat, -1) {
				assert.True(t, labels[m[1]], "%s: the legend has %s, and the metric has not", p.Title, m[1])
			}
		}
	}
	for name, m := range there {
		if strings.HasPrefix(name, "muster_") {
			assert.True(t, shown[m.family], "%s is in no panel", m.family)
		}
	}
}

// metric describes a metric as Prometheus parses it.
type metric struct {
	family string
	count  bool // whether it is a counter
	labels map[string]bool
}

type exposition map[string]metric

// check checks a selector, and returns the metric family that it selects.
func (there exposition) check(t *testing.T, s *parser.VectorSelector, path []parser.Node) string {
	m, ok := there[s.Name]
	if !assert.True(t, ok, "%s: there is no such metric", s.Name) {
		return ""
	}
	for _, l := range s.LabelMatchers {
		assert.True(t, m.labels[l.Name] || slices.Contains([]string{"job", "instance", model.MetricNameLabel}, l.Name), "%s has no label %s", s.Name, l.Name)
	}
	rate := slices.ContainsFunc(path, func(n parser.Node) bool {
		c, ok := n.(*parser.Call)
		return ok && slices.Contains([]string{"rate", "increase"}, c.Func.Name)
	})
	assert.Equal(t, m.count, rate, "%s: rates are of what only grows, and only rates are", s.Name)
	return m.family
}

// served returns the metrics of a program that hosts a durable store and ranks.
func served(t *testing.T) exposition {
	s := testcluster.Dial(t, testcluster.Serve(t, &store.Server{Engine: &store.Memory{Dir: t.TempDir()}}), nil)
	require.NoError(t, s.Set(t.Context(), "k", []byte("v"), nil))
	sink, err := prom.New(nil, nil)
	require.NoError(t, err)
	start := trace.Now(sink)
	trace.Record(t.Context(), sink, trace.Event{Op: "pgroup.barrier", Start: start, Waited: 1, Bytes: 1})

	rec := httptest.NewRecorder()
	metrics.Handler(s, sink).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	families, err := new(expfmt.NewTextParser(model.LegacyValidation)).TextToMetricFamilies(rec.Body)
	require.NoError(t, err)
	there := exposition{}
	for name, f := range families {
		labels := map[string]bool{}
		for _, x := range f.Metric[0].Label {
			labels[x.GetName()] = true
		}
		switch kind := f.GetType().String(); kind {
		case "COUNTER", "GAUGE":
			there[name] = metric{name, kind == "COUNTER", labels}
		case "HISTOGRAM":
			there[name+"_sum"], there[name+"_count"] = metric{name, true, labels}, metric{name, true, labels}
			withBound := maps.Clone(labels)
			withBound["le"] = true
			there[name+"_bucket"] = metric{name, true, withBound}
		}
	}
	return there
}
