package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newWho() *cobra.Command {
	var r remote
	var o whoOptions
	cmd := &cobra.Command{
		Use:   "who",
		Short: "Print who waits for whom, and for how long",
		Long: `Print who waits for whom, and for how long: undecided operations with the ranks that have joined,
those that are missing and what they do instead; forming groups, sends, receives and calls that
wait for keys; then the groups with the phases of their ranks, the elastic jobs with the last
changes of each, and the last failures. The longest wait is first. A rank that has made no progress
for the stall of its phase is named even if no rank waits for it. Process groups of PyTorch
processes that use the store as their TCPStore are among the groups.

It works with any store, also one that rank 0 hosts, and shows what this process may read. Without
--store it prints the store of MUSTER_STORE and that of each "muster run" of this user on this host;
the first line of each names the store.

Use who when a job hangs; "muster page" to follow it in a browser, or to show it to others; "muster
ps" to see which jobs run, and how often they restarted.`,
		Example: `  muster who
  muster who --store muster://$MASTER_ADDR:$MASTER_PORT --ranks   # and every rank
  watch -n 1 muster who                                           # live
  muster who --json | jq -r '.blame[] | "\(.group) \(.rank) \(.label)"'`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.torch.Recordings, err = readRecordings(cmd, o.files); err != nil {
				return err
			}
			if len(o.files) > 0 && r.url == "" && os.Getenv("MUSTER_STORE") == "" { // of a job that has ended
				s := store.New(new(store.Memory))
				defer s.Close()
				now, err := status.Fetch(cmd.Context(), s, o.torch)
				if err != nil {
					return err
				}
				now.Server = nil
				return r.show(cmd, status.Of(now, status.Options{}), &o)
			}
			if o.json {
				if err := r.findOne(); err != nil {
					return err
				}
				return r.who(cmd, &o)
			}
			found, err := r.find()
			if err != nil {
				return err
			}
			for i, r := range found {
				if i > 0 {
					_, _ = fmt.Fprintln(cmd.OutOrStdout())
				}
				err = errors.Join(err, r.who(cmd, &o))
			}
			return err
		},
	}
	r.flags(cmd, quick)
	cmd.Flags().BoolVar(&o.json, "json", false, "print one JSON object, for programs")
	cmd.Flags().BoolVar(&o.ranks, "ranks", false, "include every rank of every group")
	cmd.Flags().BoolVar(&o.torch.Servers, "collectives", false, "ask the debug servers of PyTorch's ranks, whose addresses are in the store, which collective each rank is in")
	cmd.Flags().StringSliceVar(&o.files, "flight-recorder", nil, "read the dumps of PyTorch's Flight Recorder in `FILES`, whose names end with the rank; a pattern such as '/tmp/trace_*' names several")
	cmd.Flags().BoolVar(&o.stacks, "stacks", false, "ask the ranks that others wait for what they are doing: goroutines, or threads of Python; the store must allow it (run --stacks, serve --stacks, or \"stacks\" in --access)")
	return cmd
}

// whoOptions are the flags of who.
type whoOptions struct {
	json, ranks, stacks bool
	files               []string // patterns
	torch               status.TorchOptions
}

// who prints which ranks of one store wait, and for which other ranks. If the store was found by
// its job, it prints the job first.
func (r *remote) who(cmd *cobra.Command, o *whoOptions) error {
	return r.do(cmd, func(ctx context.Context, s *store.Store) error {
		now, err := status.Fetch(ctx, s, o.torch)
		if err != nil {
			return err
		}
		jobs := status.FetchElastic(ctx, s, now)
		v := status.Of(now, status.Options{})
		v.Elastic = jobs
		if o.stacks {
			status.FetchStacks(ctx, s, v)
		}
		return r.show(cmd, v, o)
	})
}

func (r *remote) show(cmd *cobra.Command, v *status.View, o *whoOptions) error {
	if o.json {
		return printJSON(cmd.OutOrStdout(), v)
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	p := &whoPrinter{report{out, inkOf(cmd.OutOrStdout())}, o.ranks}
	if r.title != "" {
		p.line("%s", p.dim(r.title))
	}
	p.print(v)
	return out.Flush()
}

// whoPrinter prints a view.
type whoPrinter struct {
	report
	ranks bool
}

func (p *whoPrinter) print(v *status.View) {
	p.headlines(v)
	for i := range v.Waiting {
		p.wait(&v.Waiting[i])
	}
	for i := range v.Blame {
		p.stacks(&v.Blame[i])
	}
	if len(v.Groups) > 0 {
		p.line("\n%s", p.bold("groups"))
	}
	for i := range v.Groups {
		p.group(&v.Groups[i])
	}
	if len(v.Elastic) > 0 {
		p.line("\n%s", p.bold("elastic jobs"))
	}
	for i := range v.Elastic {
		p.elastic(&v.Elastic[i])
	}
	if len(v.Failures) > 0 {
		p.line("\n%s", p.bold("last failures"))
	}
	for i := range v.Failures[:min(len(v.Failures), 20)] {
		f := &v.Failures[i]
		when := "unknown"
		if f.Ago >= 0 {
			when = ago(f.Ago) + " ago"
		}
		p.line("  %15s  %s · %s: %s", when, printable(f.Group), printable(f.What), p.red(f.Code))
		p.line("               %s", printable(f.Why))
	}
	if s := v.Server; s != nil {
		p.line("\n%s", p.dim(serverText(s)))
		if s.DiskStalled > 0 {
			p.line("%s", p.red("the disk stalls: a write of the log takes "+ago(s.DiskStalled)+" so far, and no change is acknowledged meanwhile"))
		}
	}
	if r := v.Replication; r != nil {
		p.line("%s", p.dim(replicationText(r)))
	}
}

// headlines prints whom each job waits for, and what else is known of it.
func (p *whoPrinter) headlines(v *status.View) {
	var lines []string
	at := map[string]int{} // by job: the line of the call that has waited longest, the end of a chain of ranks that wait for each other
	calls := map[string]string{}
	ranks := map[string]int{}
	for i := range v.Blame {
		b := &v.Blame[i]
		job := fmt.Sprintf("%s %q %d", b.Group, b.Run, b.Generation)
		who := fmt.Sprintf("rank %d%s", b.Rank, whoText(b.Who))
		switch n := ranks[job]; {
		case n == 0:
			at[job], calls[job] = len(lines), b.What
			lines = append(lines, printable(b.Group)+" waits for "+who)
		case calls[job] != b.What:
			continue
		case n < mostHeadline:
			lines[at[job]] += "; for " + who
		case n == mostHeadline:
			lines[at[job]] += "; and for others"
		}
		ranks[job]++
	}
	for i := range v.Groups {
		for _, note := range v.Groups[i].Notes {
			lines = append(lines, printable(v.Groups[i].Name+": "+note))
		}
	}
	switch {
	case len(lines) == 0 && len(v.Waiting) == 0:
		p.line("%s", p.green("nothing waits"))
	case len(v.Waiting) == 0:
		lines[0] = "nothing waits in the store; " + lines[0]
	}
	for _, line := range lines {
		p.line("%s", p.bold(line))
	}
	if len(lines) > 0 {
		p.line("")
	}
}

// mostHeadline is how many of the ranks that a job waits for are in its first line.
const mostHeadline = 4

// replicationText describes the processes of a replicated store.
func replicationText(r *status.Replication) string {
	text := "no process leads"
	if r.Leader != "" {
		text = "leader " + printable(r.Leader)
		if r.Led >= 0 {
			text += ", for " + ago(r.Led)
		}
	}
	text += fmt.Sprintf(", term %d", r.Term)
	for _, s := range r.Standbys {
		text += "; standby " + printable(s.Addr) + ", "
		switch s.Lag {
		case 0:
			text += "up to date"
		case 1:
			text += "1 log entry behind"
		default:
			text += fmt.Sprintf("%d log entries behind", s.Lag)
		}
	}
	return text
}

// serverText describes the store as a whole.
func serverText(s *status.Server) string {
	var parts []string
	for _, x := range []struct {
		n    int64
		what string
	}{{s.Sessions, "client"}, {s.Calls, "waiting call"}, {s.Groups, "group"}, {s.Keys, "key"}} {
		if x.n >= 0 {
			parts = append(parts, count(x.n, x.what))
		}
	}
	text := strings.Join(parts, ", ")
	if s.Bytes >= 0 {
		text += " (" + bytesText(s.Bytes) + ")"
	}
	return text
}

// ago formats a number of seconds for people.
func ago(seconds float64) string {
	if seconds < 0 {
		return "unknown"
	}
	return status.Short(time.Duration(seconds * float64(time.Second)))
}

// wait prints one line for a call that waits, and one for each rank that it waits for.
func (p *whoPrinter) wait(w *status.Wait) {
	what := printable(w.What)
	if w.Kind != "key" {
		what = printable(w.Group) + " · " + what
	}
	var more []string
	switch w.Kind {
	case "verb":
		more = append(more, fmt.Sprintf("%d of %s have joined", w.Arrived, sizeText(w.Size, w.AtLeast)))
	case "key":
		more = append(more, fmt.Sprintf("%d waiting", w.Arrived))
	}
	if w.Remaining > 0 {
		more = append(more, "times out in "+ago(w.Remaining))
	}
	note := ""
	if len(more) > 0 {
		note = p.dim("  (" + strings.Join(more, ", ") + ")")
	}
	p.line("%s  %s%s", p.red(fmt.Sprintf("%11s", ago(w.For))), p.bold(what), note)
	for _, by := range w.By {
		p.line("             %s", printable(by))
	}
	for _, r := range w.Ranks {
		p.line("             %s rank %d%s", p.dim("waits for"), r.Rank, whoText(r))
	}
	if n := w.Missing - len(w.Ranks); n > 0 && len(w.Ranks) > 0 {
		p.line("             and for %d more", n)
	}
}

// stacks prints the stacks of a rank, if it was asked for them.
func (p *whoPrinter) stacks(b *status.Blame) {
	if b.Stacks == "" && b.StacksError == "" {
		return
	}
	p.line("\n%s", p.bold(fmt.Sprintf("stacks of %s rank %d (%s)", printable(b.Group), b.Rank, printable(b.Label))))
	if b.StacksError != "" {
		p.line("  %s", p.red(printable(b.StacksError)))
	}
	for line := range strings.Lines(b.Stacks) {
		line = strings.TrimRight(line, "\n")
		rest := strings.TrimLeft(line, "\t ")
		p.line("  %s%s", strings.ReplaceAll(line[:len(line)-len(rest)], "\t", "    "), printable(rest))
	}
}

// whoText describes a rank, to follow its number.
func whoText(r status.Who) string {
	s := ""
	if r.Label != "" {
		s = " (" + printable(r.Label) + ")"
	}
	if r.Doing != "" {
		s += ": " + printable(r.Doing)
	}
	if r.LastSeen >= 1 {
		s += ", last seen " + ago(r.LastSeen) + " ago"
	}
	return s
}

func (p *whoPrinter) group(g *status.Group) {
	when := ""
	switch {
	case g.Ended > 0:
		when = " " + ago(g.Ended) + " ago"
	case g.Age >= 0:
		when = ", for " + ago(g.Age)
	}
	text := fmt.Sprintf("  %s  %d of %s ranks, %s%s", p.bold(printable(g.Name)), g.Present, sizeText(g.Size, g.AtLeast), g.State, when)
	if g.Why != "" {
		text += ": " + printable(g.Why)
	}
	p.line("%s", text)
	if g.Phases != nil {
		for _, text := range g.Phases.Texts {
			p.line("    %s", printable(text))
		}
	}
	if !p.ranks {
		return
	}
	for _, r := range g.Ranks {
		seen := ""
		if r.LastSeen >= 1 {
			seen = ", last seen " + ago(r.LastSeen) + " ago"
		}
		p.line("    rank %-5d %s  %s%s", r.Rank, printable(r.Label), printable(r.Doing), seen)
	}
}

// elastic prints a job and its newest changes.
func (p *whoPrinter) elastic(j *status.ElasticJob) {
	total := ""
	if j.Changes > 0 {
		total = p.dim(fmt.Sprintf("  (%s, %s without a view)", count(int64(j.Changes), "change"), ago(j.NoView)))
	}
	p.line("  %s  %s%s", p.bold(printable(j.Name)), j.State, total)
	for _, c := range j.Newest[:min(len(j.Newest), mostChanges)] {
		p.line("    %s  %s", c.Time.Local().Format(time.DateTime), printable(c.What))
	}
}

// mostChanges is how many changes of an elastic job are printed.
const mostChanges = 4

// sizeText is the number of ranks of a group.
func sizeText(size int, atLeast bool) string {
	if atLeast {
		return fmt.Sprintf("at least %d", size)
	}
	return strconv.Itoa(size)
}
