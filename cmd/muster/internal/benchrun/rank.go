// Package benchrun measures the cases of a group in each of its ranks, and combines what they have
// measured on rank 0.
package benchrun

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-pg/muster/internal/benchcase"
	"github.com/muster-pg/muster/pgroup"
)

const (
	firstCount = 20 // operations of the first round, which is not counted
	// duration of a round; between rounds rank 0 decides the length of the next
	roundTime = 100 * time.Millisecond
)

// Spec is the job that the ranks receive.
type Spec struct {
	Sizes []int         `json:"sizes"`
	Time  time.Duration `json:"time"`
	Cases []string      `json:"cases"`
}

// Results is the output of muster bench --json.
type Results struct {
	Version string   `json:"version"`
	Date    string   `json:"date"`
	Cores   int      `json:"cores"`
	Seconds float64  `json:"seconds_per_case"`
	Store   string   `json:"store,omitempty"` // URL of the store; "": muster bench hosts it, as muster run does
	Results []Result `json:"results"`
}

// Result is the result of one case with a number of ranks.
type Result struct {
	Case   string  `json:"case"`
	Ranks  int     `json:"ranks"`
	Size   int     `json:"size_bytes,omitempty"` // of an object; 0 if the case has no size
	Count  int     `json:"count"`                // number of measurements
	Median float64 `json:"median_us"`
	P99    float64 `json:"p99_us"`
	Mean   float64 `json:"mean_us"`
	Rate   float64 `json:"ops_per_s"`
}

// part is what one rank has measured in one case.
type part struct {
	Took  time.Duration
	Times Histogram
}

// Limit returns the timeout for all cases, which is far more than they need.
func (s Spec) Limit() time.Duration {
	return 30*time.Second + 5*time.Duration(len(s.Sizes)*len(s.Cases))*(s.Time+time.Second)
}

// process is one rank of the benchmark.
type process struct {
	benchcase.Rank // the rank; its store is that of the launcher
	spec           Spec
}

// Run joins the group of cfg as one of its ranks, and measures the cases. On rank 0 it passes each
// result to report.
func Run(ctx context.Context, spec Spec, cfg pgroup.Config, report func(Result) error) (err error) {
	b := &process{spec: spec, Rank: benchcase.Rank{Key: fmt.Sprintf("bench/%d", cfg.Rank)}}
	if b.Store, err = cfg.Schemes.Open(ctx, cfg.Address); err != nil {
		return err
	}
	defer b.Store.Close()
	if b.Group, err = pgroup.Create(ctx, cfg); err != nil {
		return err
	}
	defer b.Group.Close()
	for later, size := range spec.Sizes {
		for i := range benchcase.All {
			c := &benchcase.All[i]
			if !slices.Contains(spec.Cases, c.Name) || later > 0 && !c.Sized { // a case without a size occurs once
				continue
			}
			if err := b.result(ctx, c, size, report); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
	}
	return b.Group.Shutdown(ctx)
}

// result measures a case, and passes the result of all ranks to report on rank 0.
func (b *process) result(ctx context.Context, c *benchcase.Case, size int, report func(Result) error) error {
	b.Object = bytes.Repeat([]byte{7}, size)
	own, err := b.measure(ctx, c)
	if err != nil {
		return err
	}
	all, err := pgroup.Gather(ctx, b.Group, 0, own)
	if err != nil || b.Group.Rank() != 0 {
		return err
	}
	return report(combine(c, size, all))
}

// measure runs rounds of a case until rank 0 decides that its time is over. The first round is not
// counted.
func (b *process) measure(ctx context.Context, c *benchcase.Case) (r part, err error) {
	if err := b.Store.Set(ctx, b.Key, b.Object, nil); err != nil {
		return r, err
	}
	var warm Histogram
	count, took := firstCount, time.Duration(0)
	for times := &warm; ; times = &r.Times {
		if times == &r.Times {
			count = b.next(count, took, r.Took)
			if count, err = pgroup.Broadcast(ctx, b.Group, 0, count); err != nil || count == 0 {
				return r, err
			}
		}
		if took, err = b.round(ctx, c, count, times); err != nil {
			return r, err
		}
		if times == &r.Times {
			r.Took += took
		}
	}
}

// next returns how many operations the next round has; 0 means that there is none.
func (b *process) next(count int, took, total time.Duration) int {
	left := b.spec.Time - total
	if left <= 0 {
		return 0
	}
	each := max(took/time.Duration(count), 1)
	return int(min(max(min(left, roundTime)/each, 1), time.Duration(100*count)))
}

func (b *process) round(ctx context.Context, c *benchcase.Case, count int, times *Histogram) (time.Duration, error) {
	start := time.Now()
	last := start
	for range count {
		if err := c.Run(ctx, &b.Rank); err != nil {
			return 0, err
		}
		now := time.Now()
		times.Add(now.Sub(last))
		last = now
	}
	return last.Sub(start), nil
}

// combine combines what all ranks have measured in one case, by rank.
func combine(c *benchcase.Case, size int, parts []part) Result {
	var all Histogram
	var rates []float64
	for rank, r := range parts {
		if c.Timed(rank) {
			all.Merge(r.Times)
			rates = append(rates, float64(r.Times.Count)/r.Took.Seconds())
		}
	}
	rate := slices.Min(rates)
	if c.Independent {
		rate = 0
		for _, r := range rates {
			rate += r
		}
	}
	if !c.Sized {
		size = 0
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	return Result{
		Case: c.Name, Ranks: len(parts), Size: size, Count: all.Count, Rate: math.Round(rate),
		Median: us(all.Quantile(0.5)), P99: us(all.Quantile(0.99)), Mean: us(all.Mean()),
	}
}
