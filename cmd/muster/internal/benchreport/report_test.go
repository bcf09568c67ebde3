package benchreport_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/benchreport"
)

// measured returns a run whose latencies are multiplied by times.
func measured(name string, times float64) benchreport.Run {
	r := benchreport.Run{Name: name, Version: "muster v1", Cores: 2, Seconds: 1, Host: "rank0"}
	for _, ranks := range []int{2, 4, 8} {
		us := 40 * float64(ranks) * times
		r.Results = append(r.Results, benchreport.Result{Case: "barrier", Ranks: ranks, Count: 9, Median: us, P99: 3 * us, Mean: 1.2 * us, Rate: 1e6 / us})
		for _, size := range []int{64, 1 << 10, 1 << 20} {
			us := us + float64(size)/100
			r.Results = append(r.Results, benchreport.Result{Case: "all-gather", Ranks: ranks, Size: size, Count: 9, Median: us, P99: 3 * us, Mean: 1.2 * us, Rate: 1e6 / us})
		}
	}
	return r
}

func peers(t *testing.T) []benchreport.Run {
	t.Helper()
	f, err := os.Open("testdata/peers.json")
	require.NoError(t, err)
	defer f.Close()
	runs, err := benchreport.Read(f, "peers")
	require.NoError(t, err)
	require.Len(t, runs, 4)
	require.Equal(t, "vLLM StatelessProcessGroup", runs[0].Name)
	require.Equal(t, benchreport.Result{Case: "barrier", Ranks: 2, Mean: 1102}, runs[0].Results[0])
	return runs
}

func TestReadWhatBenchPrints(t *testing.T) {
	b, err := json.Marshal(measured("", 1))
	require.NoError(t, err)
	runs, err := benchreport.Read(bytes.NewReader(b), "before")
	require.NoError(t, err)
	require.Equal(t, []benchreport.Run{measured("before", 1)}, runs)
	runs, err = benchreport.Read(strings.NewReader(" ["+string(b)+","+string(b)+"]"), "before")
	require.NoError(t, err)
	require.Equal(t, []string{"before 1", "before 2"}, []string{runs[0].Name, runs[1].Name})
}

func TestReadRefuses(t *testing.T) {
	one := func(result string) string { return `{"results": [` + result + `]}` }
	for text, want := range map[string]string{
		"":                   "unexpected end",
		"{":                  "unexpected end",
		"{}":                 "x: it has no results",
		"[{}]":               "x: it has no results",
		"[]":                 "it has no run",
		`{"results": 3}`:     "cannot unmarshal",
		one(`{"ranks": 2}`):  "results[0] has no case",
		one(`{"case": "a"}`): "ranks is 0",
		one(`{"case": "a", "ranks": 2, "size_bytes": -1, "mean_us": 1}`):                        "size_bytes -1",
		one(`{"case": "a", "ranks": 2}`):                                                        "has to be above 0",
		one(`{"case": "a", "ranks": 2, "mean_us": -1}`):                                         "none below",
		one(`{"case": "a", "ranks": 2, "mean_us": 1e999}`):                                      "cannot unmarshal",
		one(`{"case": "a", "ranks": 2, "mean_us": 1e308}`):                                      "nor beyond reason",
		one(`{"case": "a", "ranks": 2, "median_us": 1, "mean_us": 1e-300}`):                     "nor beyond reason",
		one(`{"case": "a", "ranks": 2, "p99_us": 1}`):                                           "has to be above 0",
		one(`{"case": "a", "ranks": 2, "mean_us": 1}, {"case": "a", "ranks": 2, "mean_us": 1}`): "twice",
		`"` + strings.Repeat("x", 17<<20) + `"`:                                                 "more than 16 MiB",
	} {
		_, err := benchreport.Read(strings.NewReader(text), "x")
		require.ErrorContains(t, err, want, "%.60s", text)
	}
}

func TestCompare(t *testing.T) {
	rows, by := benchreport.Compare([]benchreport.Run{measured("now", 1), measured("before", 2)})
	require.Equal(t, "median", by)
	require.Len(t, rows, 12)
	require.Equal(t, []benchreport.Beside{{Micros: 160, Ratio: 2}}, rows[0].Others)
	require.Equal(t, "2× faster", rows[0].Others[0].Comparison())

	// The other systems report only the mean, so all runs are compared by the mean.
	rows, by = benchreport.Compare(append([]benchreport.Run{measured("now", 1)}, peers(t)...))
	require.Equal(t, "mean", by)
	require.InDelta(t, 1102/96.0, rows[0].Others[0].Ratio, 1e-9)
	require.Equal(t, "11× faster", rows[0].Others[0].Comparison())
	require.Equal(t, "9.6× slower", rows[0].Others[2].Comparison())
	require.Zero(t, rows[1].Others[0], "there is no such case")
}

func TestComparison(t *testing.T) {
	for ratio, want := range map[float64]string{0: "", 1: "as fast", 1.09: "as fast", 0.92: "as fast", 1.5: "1.5× faster", 0.5: "2× slower", 0.001: "1000× slower", 55: "55× faster"} {
		require.Equal(t, want, benchreport.Beside{Ratio: ratio}.Comparison())
	}
}

func TestUnits(t *testing.T) {
	for us, want := range map[float64]string{0.5: "0.5 µs", 12.34: "12.3 µs", 456.7: "457 µs", 1200: "1.2 ms", 2.5e6: "2.5 s"} {
		require.Equal(t, want, benchreport.Latency(us))
	}
	for n, want := range map[int]string{64: "64 B", 1 << 10: "1 KiB", 3 << 19: "1.5 MiB", 1 << 30: "1 GiB"} {
		require.Equal(t, want, benchreport.Size(n))
	}
	for n, want := range map[float64]string{5: "5 B/s", 1500: "1.5 kB/s", 2e6: "2 MB/s", 3.25e9: "3.25 GB/s"} {
		require.Equal(t, want, benchreport.Rate(n))
	}
}

func TestThroughput(t *testing.T) {
	require.InDelta(t, 2e6, benchreport.Result{Case: "get", Size: 1000, Rate: 2000}.Throughput(), 1)
	require.InDelta(t, 1e7, benchreport.Result{Case: "broadcast", Size: 1000, Mean: 100}.Throughput(), 1)
	require.Zero(t, benchreport.Result{Case: "get", Size: 1000, Mean: 100}.Throughput(), "each rank has a rate of its own")
	require.Zero(t, benchreport.Result{Case: "barrier", Rate: 5}.Throughput())
}

func html(t *testing.T, runs ...benchreport.Run) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, benchreport.HTML(&b, runs))
	return b.String()
}

// outside matches everything that a browser would fetch.
var outside = regexp.MustCompile(`(?i)\b(src|href)=|url\(|@import|<script|<link|<iframe|<image`)

func TestHTMLOfOneRun(t *testing.T) {
	p := html(t, measured("this run", 1))
	require.NotRegexp(t, outside, p)
	for _, want := range []string{
		"<h1>muster v1 on 2 cores</h1>", "Latency by ranks", "Throughput by size", "the median",
		`aria-label="barrier"`, `aria-label="all-gather"`, "no object", "8 ranks", "<td>80 µs<td>240 µs<td>96 µs<td>12500",
	} {
		require.Contains(t, p, want)
	}
	require.Equal(t, 3, strings.Count(p, `role="img"`), "barrier, and all-gather by both")
	require.Equal(t, strings.Count(p, "<svg"), strings.Count(p, "</svg>"))
	require.NotContains(t, p, "compared")
}

func TestHTMLBesideOthers(t *testing.T) {
	other := measured("<b>before", 2)
	other.Cores, other.Note = 64, "on another machine"
	p := html(t, append([]benchreport.Run{measured("this run", 1), other}, peers(t)...)...)
	require.NotRegexp(t, outside, p)
	for _, want := range []string{"&lt;b&gt;before", "on another machine", "Some of these figures are of another machine", "vLLM StatelessProcessGroup", `aria-label="all-gather, 1 KiB"`, "the mean", "11× faster", "9.6× slower"} {
		require.Contains(t, p, want)
	}
	require.NotContains(t, p, "<b>before")
	require.Equal(t, 1+3+3, strings.Count(p, `role="img"`), "barrier, all-gather of 3 sizes, and of 3 numbers of ranks")
}

func TestHTMLOfWhatHasNoCurve(t *testing.T) {
	r := measured("this run", 1)
	r.Results = r.Results[:1]
	p := html(t, r)
	require.Zero(t, strings.Count(p, `role="img"`))
	require.Contains(t, p, "<td>80 µs<td>240 µs")
}

// TestManyRuns compares more runs than there are colours.
func TestManyRuns(t *testing.T) {
	var runs []benchreport.Run
	for i := range 20 {
		runs = append(runs, measured(fmt.Sprintf("a run with a long name, number %d", i), 1+float64(i)))
	}
	require.Contains(t, html(t, runs...), "number 19")
}

func BenchmarkHTML(b *testing.B) {
	for b.Loop() {
		_ = benchreport.HTML(new(bytes.Buffer), []benchreport.Run{measured("this run", 1), measured("before", 2)})
	}
}
