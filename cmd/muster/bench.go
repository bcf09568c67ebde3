package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/wire"
	"github.com/spf13/cobra"
)

// benching is what bench was told.
type benching struct {
	spec   benchSpec
	ranks  []int
	size   size
	host   string
	place  place
	asJSON bool
	page   pageFlags
	log    io.Writer
}

func newBench() *cobra.Command {
	o := &benching{size: 1 << 10, place: place{masterAddr: "127.0.0.1"}}
	var about strings.Builder
	for _, c := range benchCases {
		fmt.Fprintf(&about, "\n  %-10s  %s", c.name, c.about)
	}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure groups of real processes on this machine",
		Long: "Measure groups of real processes on this machine, each case for --time:\n" + about.String() + `

Times are those of one operation, of all ranks together. Rates are operations of the group
in a second; of set and get, those of all ranks.`,
		Example: `  muster bench
  muster bench -n 2,4,8,16 --size 64KiB --cases barrier,all-gather
  muster bench --time 200ms --json | jq '.results[] | {case, ranks, median_us}'`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.page.register(cmd, "")
	f := cmd.Flags()
	f.IntSliceVarP(&o.ranks, "ranks", "n", []int{2, 4, 8}, "how many `ranks`")
	f.Var(&o.size, "size", "of an object, and of a value")
	f.DurationVar(&o.spec.Time, "time", time.Second, "for each case")
	f.StringSliceVar(&o.spec.Cases, "cases", benchCaseNames(), "what to measure")
	f.StringVar(&o.host, "host", "rank0", "who hosts the group: rank0, or launcher as with run")
	f.StringVar(&o.place.store, "store", "", "`URL` of a store that is there, where the ranks meet instead, as etcd://host:port")
	f.BoolVar(&o.asJSON, "json", false, "one JSON object")
	return cmd
}

func (o *benching) check(cmd *cobra.Command) error {
	for _, n := range o.ranks {
		if n < 2 || n > 1024 {
			return usagef(cmd, "-n %d: a benchmark has 2 to 1024 ranks", n)
		}
	}
	for _, name := range o.spec.Cases {
		if !slices.Contains(benchCaseNames(), name) {
			return usagef(cmd, "--cases %s: there are %s", name, strings.Join(benchCaseNames(), ", "))
		}
	}
	switch {
	case o.size > wire.MaxValue:
		return usagef(cmd, "--size %s: an object has at most 16MiB", &o.size)
	case o.spec.Time <= 0:
		return usagef(cmd, "--time must be positive")
	case o.host != "rank0" && o.host != "launcher":
		return usagef(cmd, "--host %s: it is rank0 or launcher", o.host)
	}
	if o.place.store != "" {
		o.host = redacted(o.place.store)
	}
	o.spec.Size, o.spec.Launcher, o.spec.Numbers = int(o.size), o.host != "rank0", o.page.addr != ""
	if o.page.addr != "" && o.host != "launcher" {
		return usagef(cmd, "--http shows the store that the launcher hosts: add --host launcher")
	}
	if err := o.place.check(cmd); err != nil {
		return err
	}
	return o.page.check(cmd, os.Getenv("MUSTER_SECRET_FILE") != "", false, false)
}

// benchResult is a case with so many ranks.
type benchResult struct {
	Case   string  `json:"case"`
	Ranks  int     `json:"ranks"`
	Count  int     `json:"count"` // times measured
	Median float64 `json:"median_us"`
	P99    float64 `json:"p99_us"`
	Mean   float64 `json:"mean_us"`
	Rate   float64 `json:"ops_per_s"`
}

// benchResults is what --json prints.
type benchResults struct {
	Version string        `json:"version"`
	Cores   int           `json:"cores"`
	Size    int           `json:"size_bytes"`
	Seconds float64       `json:"seconds_per_case"`
	Host    string        `json:"host"`
	Results []benchResult `json:"results"`
}

func (o *benching) run(cmd *cobra.Command) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	o.log = cmd.ErrOrStderr()
	all := benchResults{Version: version(), Cores: runtime.NumCPU(), Size: o.spec.Size, Seconds: o.spec.Time.Seconds(), Host: o.host}
	table := benchTable{out, inkOf(out)}
	if o.asJSON {
		table.out = io.Discard
	}
	table.title(all, &o.size)
	for _, n := range o.ranks {
		table.head(n)
		err := o.group(n, func(r benchResult) {
			table.row(r)
			all.Results = append(all.Results, r)
		})
		if err != nil {
			return fmt.Errorf("bench with %d ranks: %w", n, err)
		}
	}
	if !o.asJSON {
		return nil
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(all)
}

// group runs all cases with n ranks, and gives done each result as it comes.
func (o *benching) group(n int, done func(benchResult)) error {
	p := o.place
	if err := p.open(); err != nil {
		return err
	}
	defer p.close()
	numbers := new(rankNumbers)
	shown, err := p.show(&o.page, o.log, numbers)
	if err != nil {
		return err
	}
	defer shown.close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	spec, err := json.Marshal(o.spec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.spec.limit())
	defer cancel()
	said, wrong := newReports[benchReport](ctx), new(complaints)
	job, err := launch.Start(ctx, launch.Spec{
		N: n, Path: self, Args: []string{"bench-rank", string(spec)}, Tether: true, Grace: time.Second,
		Env:    func(rank int) []string { return p.environ(rank, n) },
		Output: said, ErrOutput: wrong, Prefix: func(int) string { return "" },
	})
	if err != nil {
		return err
	}
	collectReports(job, said.values, n, numbers, done)
	return wrong.add(job.Wait())
}

// collectReports puts together what the ranks measured, until the job has ended.
func collectReports(job *launch.Job, said <-chan benchReport, n int, numbers *rankNumbers, done func(benchResult)) {
	byCase := map[string][]benchReport{}
	take := func(r benchReport) {
		if r.Numbers != "" {
			numbers.take(r.Rank, r.Numbers)
			return
		}
		byCase[r.Case] = append(byCase[r.Case], r)
		if rs := byCase[r.Case]; len(rs) == n {
			done(resultOf(rs))
		}
	}
	for {
		select {
		case r := <-said:
			take(r)
		case <-job.Done():
			for len(said) > 0 {
				take(<-said)
			}
			return
		}
	}
}

// resultOf sums up what the ranks measured in one case.
func resultOf(rs []benchReport) benchResult {
	c := benchCases[slices.IndexFunc(benchCases, func(c benchCase) bool { return c.name == rs[0].Case })]
	var all histogram
	var rates []float64
	for _, r := range rs {
		if c.measured(r.Rank) {
			all.merge(r.Times)
			rates = append(rates, float64(r.Times.Count)/r.Took.Seconds())
		}
	}
	rate := slices.Min(rates)
	if c.apart {
		rate = 0
		for _, r := range rates {
			rate += r
		}
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	return benchResult{
		Case: c.name, Ranks: len(rs), Count: all.Count, Rate: math.Round(rate),
		Median: us(all.quantile(0.5)), P99: us(all.quantile(0.99)), Mean: us(all.mean()),
	}
}

// benchTable writes results for people, as they come.
type benchTable struct {
	out io.Writer
	ink ink
}

func (t benchTable) title(r benchResults, s *size) {
	fmt.Fprintf(t.out, "%s on %d cores: objects of %s, %v for each case, hosted by %s\n", t.ink.bold(r.Version), r.Cores, s, time.Duration(r.Seconds*1e9), r.Host)
}

func (t benchTable) head(ranks int) {
	fmt.Fprintf(t.out, "\n%s %s\n", t.ink.bold(padRight(fmt.Sprintf("%d ranks", ranks), 12)), t.ink.dim("   median        p99       mean      ops/s"))
}

func (t benchTable) row(r benchResult) {
	us := func(x float64) string { return padLeft(short(time.Duration(x*1e3)), 9) }
	fmt.Fprintf(t.out, "  %s %s  %s  %s  %s\n", padRight(r.Case, 10), us(r.Median), us(r.P99), us(r.Mean), padLeft(fmt.Sprintf("%.0f", r.Rate), 9))
}
