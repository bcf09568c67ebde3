package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newPs() *cobra.Command {
	var r remote
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the jobs of muster run: their nodes, ranks, restarts and last failure",
		Long: `List the running jobs of "muster run": their state, nodes, ranks, restarts and last failure.

Without --store it lists those that this user runs on this host, and those of all hosts on the store
of MUSTER_STORE. With --store it lists the jobs of that store alone. A job of several nodes is
waiting while it has too few of them.

Use ps to see which jobs run and how often they restarted; "muster who", or "muster page" in a
browser, to see what the ranks of a job wait for.`,
		Example: `  muster ps
  muster ps --store muster://node0:7070
  muster ps --json | jq -r '.[] | select(.restarts > 0) | .job'`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := r.jobs(cmd)
			if err != nil {
				return err
			}
			all := joined(found)
			if asJSON {
				return printJSON(cmd.OutOrStdout(), all)
			}
			return printJobs(cmd.OutOrStdout(), inkOf(cmd.OutOrStdout()), all, time.Now())
		},
	}
	r.flags(cmd, quick)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array, for programs")
	return cmd
}

// jobs returns the jobs of the store if one is named, and unless --store names it, those of this
// host: an element for each node.
func (r *remote) jobs(cmd *cobra.Command) (all []job, err error) {
	if r.url == "" {
		all = jobs()
		if os.Getenv("MUSTER_STORE") == "" {
			return all, nil
		}
	}
	err = r.do(cmd, func(ctx context.Context, s *store.Store) error {
		for e, err := range s.List(ctx, jobPrefix) {
			if err != nil {
				return err
			}
			var j job
			if !strings.Contains(e.Key, nodeInfix) || json.Unmarshal(e.Value, &j) != nil {
				continue
			}
			j.URL = redacted(r.url)
			if !slices.ContainsFunc(all, func(local job) bool { return local.Job == j.Job && local.Node == j.Node }) {
				all = append(all, j)
			}
		}
		return nil
	})
	return all, err
}

// jobRow is a job, as ps prints it.
type jobRow struct {
	Job     string         `json:"job"`
	State   string         `json:"state"`
	Nodes   int            `json:"nodes"` // that run processes
	Ranks   int            `json:"ranks"` // of all nodes
	Count   int            `json:"restarts"`
	Failure *agent.Failure `json:"last_failure,omitempty"`
	Started time.Time      `json:"started"`
	Command []string       `json:"command"`
	On      []job          `json:"on"` // each node's "muster run"
}

// joined returns the jobs of the nodes, oldest first. Local jobs without a store in common are
// different jobs, even if they have the same name.
func joined(nodes []job) []*jobRow {
	rows := []*jobRow{}
	byName := map[[2]string]*jobRow{}
	for _, j := range nodes {
		row := byName[[2]string{j.Job, j.URL}]
		if row == nil {
			row = &jobRow{Job: j.Job, State: j.State, Started: j.Started, Command: j.Command}
			byName[[2]string{j.Job, j.URL}] = row
			rows = append(rows, row)
		}
		row.On = append(row.On, j)
		row.Nodes, row.Ranks, row.Count = max(row.Nodes, j.Nodes), max(row.Ranks, j.Size), max(row.Count, j.Restarts)
		if j.State == agent.Running {
			row.State = agent.Running // a node that waits is a spare
		}
		if j.Started.Before(row.Started) {
			row.Started = j.Started
		}
		if f := j.Failure; f != nil && (row.Failure == nil || f.Time.After(row.Failure.Time)) {
			row.Failure = f
		}
	}
	slices.SortStableFunc(rows, func(a, b *jobRow) int { return a.Started.Compare(b.Started) })
	return rows
}

func printJobs(w io.Writer, k ink, rows []*jobRow, now time.Time) error {
	out := bufio.NewWriter(w)
	if len(rows) == 0 {
		_, _ = fmt.Fprintln(out, "no job runs")
		return out.Flush()
	}
	width := len("JOB")
	for _, r := range rows {
		width = max(width, len([]rune(printable(r.Job))))
	}
	line := func(ink func(string) string, job, state, nodes, ranks, restarts, age, store string) {
		_, _ = fmt.Fprintln(out, ink(strings.TrimSpace(fmt.Sprintf("%-*s  %-7s  %5s  %5s  %8s  %8s  %s", width, job, state, nodes, ranks, restarts, age, store))))
	}
	plain := func(s string) string { return s }
	line(k.bold, "JOB", "STATE", "NODES", "RANKS", "RESTARTS", "FOR", "STORE")
	for _, r := range rows {
		line(plain, printable(r.Job), cmp.Or(r.State, agent.Waiting), fmt.Sprint(r.Nodes), fmt.Sprint(r.Ranks), fmt.Sprint(r.Count),
			ago(now.Sub(r.Started).Seconds()), redacted(r.On[0].URL))
		for _, j := range r.On {
			_, _ = fmt.Fprintln(out, k.dim(fmt.Sprintf("  pid %d on %s: %s", j.PID, printable(j.Node), printable(strings.Join(j.Command, " ")))))
		}
		if f := r.Failure; f != nil {
			text := f.String()
			if f.Process != "" {
				text += " on node " + f.Node
			}
			_, _ = fmt.Fprintln(out, k.red(fmt.Sprintf("  last failure: %s, %s ago", printable(text), ago(now.Sub(f.Time).Seconds()))))
		}
	}
	return out.Flush()
}
