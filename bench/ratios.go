package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// ratiosOptions are two builds of the command, and how "muster bench" of both is measured.
type ratiosOptions struct {
	old, new  string // paths of the commands
	args      []string
	pairs     int
	tolerance float64
}

// errSlower is the error of a comparison that has found a loss.
var errSlower = errors.New("the new command is slower")

// runRatios compares two builds of the command, for CI: "muster bench" of both in pairs of runs, one
// directly after the other. It fails if a case has lost more than the tolerance, and loses it again
// in a second set of runs. Only ratios count: a busy machine slows both builds of a pair.
func runRatios(ctx context.Context, args []string, out io.Writer) error {
	o := ratiosOptions{}
	f := flag.NewFlagSet("ratios", flag.ContinueOnError)
	f.StringVar(&o.old, "old", "", "the muster command to compare with")
	f.StringVar(&o.new, "new", "", "the muster command to check")
	f.IntVar(&o.pairs, "pairs", 7, "pairs of runs in a set")
	f.Float64Var(&o.tolerance, "tolerance", 0.1, "a loss up to this part of the time is accepted")
	measured := f.String("bench", "-n 2,4 --time 300ms --size 1KiB,64KiB", "arguments of muster bench, separated by spaces")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.old == "" || o.new == "" || o.pairs < 1 || o.tolerance < 0 {
		return errors.New("ratios needs -old and -new, at least one pair, and a tolerance that is not negative")
	}
	o.args = append([]string{"bench", "--json"}, strings.Fields(*measured)...)
	first, err := o.compare(ctx)
	if err != nil {
		return err
	}
	if err := first.write(out, o.tolerance); err != nil {
		return err
	}
	if len(first.lost(o.tolerance)) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(out, "\nonce more, as there are losses:"); err != nil {
		return err
	}
	second, err := o.compare(ctx)
	if err != nil {
		return err
	}
	if err := second.write(out, o.tolerance); err != nil {
		return err
	}
	again := second.lost(o.tolerance)
	both := slices.DeleteFunc(first.lost(o.tolerance), func(name string) bool { return !slices.Contains(again, name) })
	if len(both) > 0 {
		return fmt.Errorf("%w by more than %.0f %%, in both sets of runs: %s", errSlower, 100*o.tolerance, strings.Join(both, ", "))
	}
	return nil
}

// ratios are the quotients of the times of the new and the old command, by case, of each pair.
type ratios map[string][]float64

// compare runs a set of pairs. Every second one begins with the new command.
func (o *ratiosOptions) compare(ctx context.Context) (ratios, error) {
	all := ratios{}
	for i := range o.pairs {
		var times [2]map[string]float64
		for turn := range 2 {
			which := (i + turn) % 2
			var err error
			if times[which], err = o.measure(ctx, []string{o.old, o.new}[which]); err != nil {
				return nil, err
			}
		}
		for name, before := range times[0] {
			if now, ok := times[1][name]; ok { // an older command may have other cases
				all[name] = append(all[name], now/before)
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the commands have no case in common")
	}
	return all, nil
}

// measure returns the median time of each case of "muster bench".
func (o *ratiosOptions) measure(ctx context.Context, path string) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, path, o.args...)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", path, strings.Join(o.args, " "), err)
	}
	var run struct {
		Results []struct {
			Case   string  `json:"case"`
			Ranks  int     `json:"ranks"`
			Size   int     `json:"size_bytes"`
			Median float64 `json:"median_us"`
		} `json:"results"`
	}
	if err := json.Unmarshal(b, &run); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	times := map[string]float64{}
	for _, r := range run.Results {
		if r.Median > 0 {
			name := r.Case
			if r.Size > 0 {
				name += " of " + strconv.Itoa(r.Size) + " B"
			}
			times[fmt.Sprintf("%s, %d ranks", name, r.Ranks)] = r.Median
		}
	}
	return times, nil
}

// lost returns the cases whose median ratio is beyond the tolerance.
func (r ratios) lost(tolerance float64) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if median(r[name]) > 1+tolerance {
			names = append(names, name)
		}
	}
	return names
}

func (r ratios) write(out io.Writer, tolerance float64) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "new / old time\tmedian\tleast\tmost\t")
	lost := r.lost(tolerance)
	for _, name := range slices.Sorted(maps.Keys(r)) {
		mark := ""
		if slices.Contains(lost, name) {
			mark = "slower"
		}
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\t%s\n", name, median(r[name]), slices.Min(r[name]), slices.Max(r[name]), mark)
	}
	return t.Flush()
}
