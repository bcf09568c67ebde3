// Package benchreport compares runs of muster bench with each other and with figures from other
// sources, in tables and plots. The output is a self-contained HTML page, or a picture.
package benchreport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Result is the result of one case with a number of ranks. At least one of Median, Mean and Rate is
// known.
type Result struct {
	Case   string  `json:"case"`
	Ranks  int     `json:"ranks"`
	Size   int     `json:"size_bytes,omitempty"` // of an object; 0 if the case has no size
	Count  int     `json:"count,omitempty"`      // number of measurements
	Median float64 `json:"median_us,omitempty"`
	P99    float64 `json:"p99_us,omitempty"`
	Mean   float64 `json:"mean_us,omitempty"`
	Rate   float64 `json:"ops_per_s,omitempty"`
}

// Run is the results of one measurement: the output of muster bench --json, or figures from another
// source.
type Run struct {
	Name    string   `json:"name,omitempty"`
	Version string   `json:"version,omitempty"`
	Date    string   `json:"date,omitempty"`
	Cores   int      `json:"cores,omitempty"`
	Seconds float64  `json:"seconds_per_case,omitempty"`
	Host    string   `json:"host,omitempty"` // host of the group's store: rank0 or launcher
	Note    string   `json:"note,omitempty"`
	Results []Result `json:"results"`
}

// mostBytes limits the size of a file of figures.
const mostBytes = 16 << 20

// Read reads one run or an array of runs. A run without a name gets the given name.
func Read(r io.Reader, name string) ([]Run, error) {
	b, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > mostBytes {
		return nil, fmt.Errorf("more than %d MiB: these are no figures", mostBytes>>20)
	}
	var runs []Run
	if trimmed := strings.TrimSpace(string(b)); strings.HasPrefix(trimmed, "[") {
		err = json.Unmarshal(b, &runs)
	} else {
		runs = make([]Run, 1)
		err = json.Unmarshal(b, &runs[0])
	}
	if err != nil {
		return nil, err
	}
	if len(runs) == 0 {
		return nil, errors.New("it has no run")
	}
	for i := range runs {
		if runs[i].Name == "" {
			runs[i].Name = name
			if len(runs) > 1 {
				runs[i].Name += fmt.Sprintf(" %d", i+1)
			}
		}
		if err := runs[i].check(); err != nil {
			return nil, fmt.Errorf("%s: %w", runs[i].Name, err)
		}
	}
	return runs, nil
}

func (r *Run) check() error {
	if len(r.Results) == 0 {
		return errors.New("it has no results")
	}
	type key struct {
		name        string
		ranks, size int
	}
	seen := map[key]bool{}
	for i, res := range r.Results {
		k := key{res.Case, res.Ranks, res.Size}
		switch {
		case res.Case == "":
			return fmt.Errorf("results[%d] has no case", i)
		case res.Ranks < 1 || res.Size < 0:
			return fmt.Errorf("results[%d], %s: ranks is %d and size_bytes %d", i, res.Case, res.Ranks, res.Size)
		case !res.known():
			return fmt.Errorf("results[%d], %s of %d ranks: one of median_us, mean_us and ops_per_s has to be above 0, and none below, nor beyond reason", i, res.Case, res.Ranks)
		case seen[k]:
			return fmt.Errorf("results[%d]: %s of %d ranks and %d bytes is there twice", i, res.Case, res.Ranks, res.Size)
		}
		seen[k] = true
	}
	return nil
}

func (r Result) known() bool {
	const most = 1e15 // in µs, this is 30 years
	all := []float64{r.Median, r.P99, r.Mean, r.Rate}
	return min(r.Median, r.P99, r.Mean, r.Rate) >= 0 && max(r.Median, r.Mean, r.Rate) > 0 &&
		!slices.ContainsFunc(all, func(x float64) bool { return x > most || x > 0 && x < 1/most })
}

// find returns the result of the same case.
func (r *Run) find(name string, ranks, size int) (Result, bool) {
	i := slices.IndexFunc(r.Results, func(o Result) bool { return o.Case == name && o.Ranks == ranks && o.Size == size })
	if i < 0 {
		return Result{}, false
	}
	return r.Results[i], true
}

// metric is the latency by which runs are compared: the median, if all runs with the case have it.
type metric string

const (
	median metric = "median"
	mean   metric = "mean"
)

// metricOf returns the metric by which all runs can be compared.
func metricOf(runs []Run) metric {
	for _, run := range runs {
		for _, r := range run.Results {
			if r.Median == 0 && r.Mean > 0 {
				return mean
			}
		}
	}
	return median
}

// of returns the latency of r in microseconds; 0 if it is unknown.
func (m metric) of(r Result) float64 {
	if m == mean {
		return r.Mean
	}
	return r.Median
}

// Throughput returns the bytes of objects per second, with each object counted once; 0 if it is
// unknown.
func (r Result) Throughput() float64 {
	rate := r.Rate
	// in set and get each rank has its own rate
	if rate == 0 && r.Mean > 0 && r.Case != "set" && r.Case != "get" {
		rate = 1e6 / r.Mean
	}
	return rate * float64(r.Size)
}

// Comparison is a result of the first run together with those of the other runs.
type Comparison struct {
	Result
	Others []Beside // one for each other run
}

// Beside is the result of another run. Ratio is its latency divided by that of the first run; 0 if
// it does not have the case.
type Beside struct {
	Micros float64
	Ratio  float64
}

// Compare compares runs[1:] with runs[0]. It returns the metric that it used: the median or the
// mean.
func Compare(runs []Run) (rows []Comparison, by string) {
	m := metricOf(runs)
	for _, r := range runs[0].Results {
		row := Comparison{Result: r}
		for i := range runs[1:] {
			var b Beside
			if o, there := runs[i+1].find(r.Case, r.Ranks, r.Size); there && m.of(o) > 0 && m.of(r) > 0 {
				b = Beside{m.of(o), m.of(o) / m.of(r)}
			}
			row.Others = append(row.Others, b)
		}
		rows = append(rows, row)
	}
	return rows, string(m)
}

// Comparison describes the ratio in words, from the view of the first run.
func (b Beside) Comparison() string {
	const noise = 1.1 // smaller differences are not significant
	switch {
	case b.Ratio == 0:
		return ""
	case b.Ratio >= noise:
		return fmt.Sprintf("%s× faster", digits(b.Ratio))
	case b.Ratio <= 1/noise:
		return fmt.Sprintf("%s× slower", digits(1/b.Ratio))
	}
	return "as fast"
}

// digits formats x with at most three digits.
func digits(x float64) string {
	switch {
	case x < 10:
		return fmt.Sprintf("%.2g", x)
	case x < 100:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.0f", math.Round(x/10)*10)
}

// Latency formats a number of microseconds with three digits and a unit.
func Latency(us float64) string {
	x, unit := us, "µs"
	switch {
	case us >= 1e6:
		x, unit = us/1e6, "s"
	case us >= 1e3:
		x, unit = us/1e3, "ms"
	}
	return three(x) + " " + unit
}

// Rate formats a number of bytes per second with three digits and a unit.
func Rate(bytes float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}} {
		if bytes >= u.size {
			return three(bytes/u.size) + " " + u.name
		}
	}
	return three(bytes) + " B/s"
}

func three(x float64) string {
	switch {
	case x < 10:
		return trim(fmt.Sprintf("%.2f", x))
	case x < 100:
		return trim(fmt.Sprintf("%.1f", x))
	}
	return fmt.Sprintf("%.0f", x)
}

func trim(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }

// Size formats a number of bytes with a binary unit.
func Size(n int) string {
	for _, u := range []struct {
		name string
		size int
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size {
			return three(float64(n)/float64(u.size)) + " " + u.name
		}
	}
	return fmt.Sprintf("%d B", n)
}
