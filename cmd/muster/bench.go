package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/benchrun"
	"github.com/muster-pg/muster/internal/benchcase"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
	"github.com/spf13/cobra"
)

// benching holds the options of bench.
type benching struct {
	spec   benchrun.Spec
	ranks  []int
	sizes  sizes
	place  place
	asJSON bool
}

func newBench() *cobra.Command {
	o := &benching{sizes: sizes{1 << 10}, place: place{masterAddr: "127.0.0.1"}}
	var about strings.Builder
	for _, c := range benchcase.All {
		fmt.Fprintf(&about, "\n  %-10s  %s", c.Name, c.About)
	}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure groups of real processes on this machine",
		Long: "Measure groups of real processes on this machine, each case for --time:\n" + about.String() + `

Times are those of one operation, of all ranks together. Rates are operations of the group
in a second; of set and get, those of all ranks. The store is in this process, as with "muster run",
or the one at --store.`,
		Example: `  muster bench
  muster bench -n 2,4,8,16 --size 64KiB --cases barrier,all-gather
  muster bench --time 200ms --json | jq '.results[] | {case, ranks, median_us}'`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.IntSliceVarP(&o.ranks, "ranks", "n", []int{2, 4, 8}, "how many `ranks`")
	f.Var(&o.sizes, "size", "of an object, and of a value; several `sizes` are separated by commas")
	f.DurationVar(&o.spec.Time, "time", time.Second, "for each case")
	f.StringSliceVar(&o.spec.Cases, "cases", benchcase.Names(), "what to measure")
	f.StringVar(&o.place.store, "store", "", "`URL` of a running store, where the ranks meet instead, such as etcd://host:port")
	f.BoolVar(&o.asJSON, "json", false, "one JSON object")
	return cmd
}

func (o *benching) check(cmd *cobra.Command) error {
	for i, n := range o.ranks {
		switch {
		case n < 2 || n > 1024:
			return usagef(cmd, "-n %d: a benchmark has 2 to 1024 ranks", n)
		case slices.Contains(o.ranks[:i], n):
			return usagef(cmd, "-n: %d is there twice", n)
		}
	}
	for _, name := range o.spec.Cases {
		if benchcase.Find(name) == nil {
			return usagef(cmd, "--cases %s: there are %s", name, strings.Join(benchcase.Names(), ", "))
		}
	}
	switch {
	case len(o.spec.Cases) == 0:
		return usagef(cmd, "--cases is empty: there are %s", strings.Join(benchcase.Names(), ", "))
	case slices.Max(o.sizes) > wire.MaxValue:
		return usagef(cmd, "--size %s: an object has at most 16MiB", &o.sizes)
	case o.spec.Time <= 0:
		return usagef(cmd, "--time must be positive")
	}
	for _, s := range o.sizes {
		o.spec.Sizes = append(o.spec.Sizes, int(s))
	}
	return o.place.check(cmd)
}

func (o *benching) run(cmd *cobra.Command) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	all := benchrun.Results{
		Version: version(), Date: time.Now().UTC().Format("2006-01-02 15:04"), Cores: runtime.NumCPU(), Seconds: o.spec.Time.Seconds(), Store: redacted(o.place.store),
	}
	table := benchTable{out, inkOf(out), len(o.sizes) > 1}
	if o.asJSON {
		table.out = io.Discard
	}
	table.title(all, &o.sizes)
	for _, n := range o.ranks {
		table.head(n)
		err := o.group(n, func(r benchrun.Result) {
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
	return printJSON(out, all)
}

// group runs all cases with n ranks, and passes each result to done when it arrives.
func (o *benching) group(n int, done func(benchrun.Result)) error {
	p := o.place
	if err := p.open(); err != nil {
		return err
	}
	defer p.close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	spec, err := json.Marshal(o.spec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.spec.Limit())
	defer cancel()
	job, err := launch.Start(ctx, launch.Spec{
		N: n, Path: self, Args: []string{"bench-rank", string(spec)}, ParentPipe: true, Grace: time.Second,
		Env:    func(rank int) []string { return p.environ(rank, n) },
		Output: resultLines(done), ErrOutput: os.Stderr, Prefix: func(int) string { return "" },
	})
	if err != nil {
		return err
	}
	return job.Wait()
}

// resultLines receives the output of rank 0, a result a line in JSON. It is an Output of launch.Spec.
type resultLines func(benchrun.Result)

// Write receives whole lines.
func (done resultLines) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		var r benchrun.Result
		if err := json.Unmarshal(line, &r); err != nil {
			return 0, fmt.Errorf("a rank said %q: %w", line, err)
		}
		done(r)
	}
	return len(b), nil
}

// newBenchRank is the command of one rank.
func newBenchRank() *cobra.Command {
	return &cobra.Command{
		Use: "bench-rank SPEC", Hidden: true, Short: "One of the processes of bench", Args: operands("SPEC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var spec benchrun.Spec
			if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
				return usagef(cmd, "SPEC: %v", err)
			}
			cfg, err := pgroup.FromEnv()
			if err != nil {
				return usagef(cmd, "this is one of the processes of \"muster bench\", which starts it: %v", err)
			}
			launch.ExitWithParent()
			byURL(&cfg)
			ctx, cancel := context.WithTimeout(context.Background(), spec.Limit())
			defer cancel()
			return benchrun.Run(ctx, spec, cfg, func(r benchrun.Result) error { return json.NewEncoder(cmd.OutOrStdout()).Encode(r) })
		},
	}
}

// benchTable prints results for people, as they arrive.
type benchTable struct {
	out   io.Writer
	ink   ink
	sizes bool // whether there are several sizes
}

func (t benchTable) title(r benchrun.Results, s *sizes) {
	fmt.Fprintf(t.out, "%s on %d cores: objects of %s, %v for each case\n", t.ink.bold(r.Version), r.Cores, s, time.Duration(r.Seconds*1e9))
}

func (t benchTable) head(ranks int) {
	fmt.Fprintf(t.out, "\n%s %s\n", t.ink.bold(fmt.Sprintf("%-*s", t.width()+2, fmt.Sprintf("%d ranks", ranks))), t.ink.dim("   median        p99       mean      ops/s"))
}

// width returns the width of the column of case names.
func (t benchTable) width() int {
	if t.sizes {
		return 20
	}
	return 10
}

func (t benchTable) row(r benchrun.Result) {
	name := r.Case
	if t.sizes && r.Size > 0 {
		name += " " + bytesText(int64(r.Size))
	}
	us := func(x float64) string { return short(time.Duration(x * 1e3)) }
	fmt.Fprintf(t.out, "  %-*s %9s  %9s  %9s  %9.0f\n", t.width(), name, us(r.Median), us(r.P99), us(r.Mean), r.Rate)
}
