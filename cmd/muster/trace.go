package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/timeline"
	"github.com/spf13/cobra"
)

func newTrace() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "trace DIR | trace FILE…",
		Short: "Merge the traces of ranks, and find stragglers",
		Long: `Merge the traces of a job's ranks, and print how often each rank came last, and how long the others
waited for it. MUSTER_TRACE=DIR in the environment of the ranks, or trace.Chrome, makes the traces.

Of a DIR the command takes the last job. The ends of common verbs align the clocks of different
hosts. The trace of a killed rank lacks at most its last 0.1 s.

-o writes all ranks as one Chrome trace, for ui.perfetto.dev.`,
		Example: `  MUSTER_TRACE=traces muster run -n 4 -- ./train
  muster trace traces
  muster trace traces -o job.json
  muster trace traces/rank0-*.json traces/rank3-*.json`,
		Args: operands("DIR|FILE", "[FILE…]"),
		RunE: func(cmd *cobra.Command, args []string) error { return traceOf(cmd, args, output) },
	}
	cmd.DisableFlagsInUseLine = true
	cmd.Flags().StringVarP(&output, "output", "o", "", "`file` to write: a Chrome trace of all ranks")
	return cmd
}

// traceOf merges traces, writes them to output unless that is empty, and prints the summary.
func traceOf(cmd *cobra.Command, args []string, output string) error {
	files, note, err := readTraces(cmd, args)
	if err != nil {
		return err
	}
	t, err := timeline.Merge(files...)
	if err != nil {
		return err
	}
	if output != "" {
		if err := writeOutput(output, t.Chrome); err != nil {
			return fmt.Errorf("-o %s: %w", output, cause(err))
		}
	}
	s := t.Summary()
	out := bufio.NewWriter(cmd.OutOrStdout())
	(&tracePrinter{report{out, inkOf(cmd.OutOrStdout())}}).print(&s, t, note)
	return out.Flush()
}

// readTraces reads files, or the last job of a directory. The note says what it omitted.
func readTraces(cmd *cobra.Command, args []string) (files []*timeline.File, note string, err error) {
	if info, err := os.Stat(args[0]); err == nil && info.IsDir() {
		if len(args) > 1 {
			return nil, "", usagef(cmd, "one directory, or files")
		}
		files, err = timeline.ReadDir(args[0])
		if err != nil && (len(files) == 0 || !errors.Is(err, timeline.ErrEmpty)) {
			return nil, "", err
		}
		if err != nil {
			note = strings.ReplaceAll(err.Error(), "timeline: ", "") + "\n"
		}
		jobs := timeline.Jobs(files)
		if n := len(jobs) - 1; n > 0 {
			note += fmt.Sprintf("%d more in %s: this is the last one; name the files of another to see that", n, args[0])
		}
		return jobs[0], note, nil
	}
	for _, path := range args {
		f, err := timeline.ReadFile(path)
		if err != nil {
			return nil, "", err
		}
		files = append(files, f)
	}
	return files, "", nil
}

// tracePrinter prints a summary.
type tracePrinter struct{ report }

func (p *tracePrinter) print(s *timeline.Summary, t *timeline.Timeline, note string) {
	failed := ""
	if s.Failed > 0 {
		failed = p.red(fmt.Sprintf(", %d failed", s.Failed))
	}
	p.line("%s%s", p.bold(fmt.Sprintf("%s, %s together in %s", count(int64(len(t.Rows)), "rank"), count(int64(s.Records), "verb"), short(s.Took))), failed)
	p.line("they waited %s for each other, all ranks together", short(s.Lost))
	if len(s.Ranks) > 0 && s.Ranks[0].Caused > 0 {
		p.line("\n%s", p.dim("            came last   others waited   waited itself"))
	}
	for i := range s.Ranks {
		p.rank(s, &s.Ranks[i], i)
	}
	if s.Absent > 0 {
		p.line("and %s for ranks whose traces are not here", short(s.Absent))
	}
	if note != "" {
		p.line("\n%s", p.dim(strings.TrimSpace(note)))
	}
}

func (p *tracePrinter) rank(s *timeline.Summary, r *timeline.RankSummary, i int) {
	notes := []string{}
	if w := r.Worst; w != nil && i < 3 {
		notes = append(notes, fmt.Sprintf("most in %s: %s", printable(w.String()), short(w.Waited)))
	}
	if c := r.Row.Clock.Abs(); c >= 100*time.Millisecond {
		way := "ahead"
		if r.Row.Clock < 0 {
			way = "behind"
		}
		notes = append(notes, fmt.Sprintf("clock %s %s", short(c), way))
	}
	if r.Row.Unaligned {
		notes = append(notes, "its clock is its own: no verb in common with the others")
	}
	if r.Row.Truncated {
		notes = append(notes, "did not close")
	}
	for _, f := range r.Row.Files {
		for _, d := range f.Dropped {
			notes = append(notes, printable(d))
		}
	}
	line := fmt.Sprintf("%-11s %8d×   %13s   %13s", r.Row, r.Last, short(r.Caused), short(r.Waited))
	if i == 0 && 2*r.Caused >= s.Lost && r.Caused > 0 {
		line = p.red(line)
	}
	p.line("%s   %s", line, p.dim(strings.Join(notes, "; ")))
}
