package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
	"github.com/spf13/cobra"
)

const (
	demoTime     = 30 * time.Second // timeout of the demo; it takes a fraction of a second
	demoRankTime = 20 * time.Second // timeout of one rank, which then reports what it waits for
	demoLate     = time.Second      // a failure must be detected within this time
)

func newDemo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Run a group of four real processes, and kill one",
		Long: `Start four processes that form two overlapping groups, gather a layer's configuration from each of
them, pass a barrier, and kill one. Exits with 0 if all of it happened as it says.`,
		Example: "  muster demo",
		Args:    operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(context.Background(), demoTime)
			defer cancel()
			d := &demo{out: cmd.OutOrStdout(), ink: inkOf(cmd.OutOrStdout()), start: time.Now()}
			return d.run(ctx)
		},
	}
}

// demo runs one job and explains what happens.
type demo struct {
	out   io.Writer
	ink   ink
	start time.Time

	place      place
	job        *launch.Job
	reports    reports[demoReport]
	early      []demoReport // received before they were awaited
	complaints complaints
}

func (d *demo) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.place.masterAddr = "127.0.0.1"
	if err := d.place.open(); err != nil {
		return err
	}
	defer d.place.close()
	if err := d.launch(ctx); err != nil {
		return err
	}
	err := d.narrate(ctx)
	if err != nil {
		cancel()
	}
	if e := d.job.Wait(); err == nil {
		err = e
	}
	if err != nil {
		return d.complaints.add(fmt.Errorf("the demo went wrong: %w", err))
	}
	d.say("%s in %s.\n", d.ink.green("All of it as expected,"), short(time.Since(d.start)))
	return nil
}

func (d *demo) launch(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.reports = newReports[demoReport](ctx)
	d.job, err = launch.Start(ctx, launch.Spec{
		N: demoRanks, Path: self, Args: []string{"demo-rank"}, ParentPipe: true, Grace: time.Second,
		Env:    func(rank int) []string { return d.place.environ(rank, demoRanks) },
		Output: d.reports, ErrOutput: &d.complaints, Prefix: func(int) string { return "" },
		MayFail: func(rank int) bool { return rank == demoVictim },
	})
	return err
}

func (d *demo) narrate(ctx context.Context) error {
	d.say("%s\n\n", d.ink.bold("muster: four processes, two groups, one failure"))
	for _, chapter := range []func(context.Context) error{d.meet, d.gather, d.barrier, d.kill} {
		if err := chapter(ctx); err != nil {
			return err
		}
		d.say("\n")
	}
	return nil
}

func (d *demo) meet(ctx context.Context) error {
	var pids []string
	for rank := range demoRanks {
		pids = append(pids, d.ink.rank(rank, fmt.Sprint(d.job.Process(rank).Pid())))
	}
	d.item("store", "%s, in this process", d.place.host.url())
	d.item("processes", "ranks 0–3 are pids %s", strings.Join(pids, " "))
	world, err := d.await(ctx, stepWorld, allRanks())
	if err != nil {
		return err
	}
	d.item("world", "ranks 0–3 have joined, %s after they started", short(slowest(world)))
	trainers, err := d.await(ctx, stepTrainers, demoTrainers)
	if err != nil {
		return err
	}
	d.item("trainers", "ranks 0–2 have joined a second group: %s", short(slowest(trainers)))
	return nil
}

func (d *demo) gather(ctx context.Context) error {
	got, err := d.await(ctx, stepGather, []int{0})
	if err != nil {
		return err
	}
	d.say("%s a layer's configuration from each rank is on rank 0, in %s\n\n", d.ink.bold("Gather:"), short(got[0].Took))
	d.say("%s\n", d.ink.dim(fmt.Sprintf("  %-4s  %-18s  %5s  %-12s  %-5s  %9s", "rank", "layer", "heads", "shape", "dtype", "scale")))
	for rank, l := range got[0].Layers {
		if !reflect.DeepEqual(l, demoLayer(rank)) {
			return fmt.Errorf("rank 0 gathered %+v from rank %d, which sent %+v", l, rank, demoLayer(rank))
		}
		d.say("  %s  %-18s  %5s  %s  %-5s  %9g\n", d.ink.rank(rank, fmt.Sprintf("%4d", rank)), l.Name, heads(l), padRight(shape(l), 12), l.DType, l.Scale)
	}
	if n := len(got[0].Layers); n != demoRanks {
		return fmt.Errorf("rank 0 gathered %d layers", n)
	}
	return nil
}

func heads(l layer) string {
	if l.Heads == 0 {
		return "–"
	}
	return fmt.Sprint(l.Heads)
}

func shape(l layer) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(l.Shape), "[]"), " ", " × ")
}

func (d *demo) barrier(ctx context.Context) error {
	got, err := d.await(ctx, stepBarrier, allRanks())
	if err != nil {
		return err
	}
	d.say("%s all four pass %d of them, in %s each (median)\n", d.ink.bold("Barrier:"), demoBarriers, short(slowest(got)))
	return nil
}

func (d *demo) kill(ctx context.Context) error {
	waiting := slices.DeleteFunc(allRanks(), func(rank int) bool { return rank == demoVictim })
	if _, err := d.await(ctx, stepReady, waiting); err != nil {
		return err
	}
	victim := d.job.Process(demoVictim)
	d.say("%s the others wait for rank %d in a barrier, and it gets SIGKILL\n\n", d.ink.bold("Loss:"), demoVictim)
	killed := time.Now()
	if err := victim.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	for range waiting {
		r, err := d.awaitAny(ctx, stepLost)
		if err != nil {
			return err
		}
		took := time.Since(killed)
		if err := d.checkLoss(r, took); err != nil {
			return err
		}
		d.say("  %s  %s  %s\n", d.ink.rank(r.Rank, fmt.Sprintf("rank %d", r.Rank)), padLeft(short(took), 7), strings.TrimPrefix(r.Text, "pgroup: "))
	}
	return d.killedToo(ctx, victim)
}

// killedToo checks that the second group gets the failure too, and that the victim has ended.
func (d *demo) killedToo(ctx context.Context, victim *launch.Process) error {
	survivors := []int{0, 1}
	too, err := d.await(ctx, stepToo, survivors)
	if err != nil {
		return err
	}
	for _, r := range too {
		if err := d.checkLoss(r, 0); err != nil {
			return err
		}
	}
	d.say("\n  ranks 0 and 1 get the same error in trainers.\n")
	select {
	case <-victim.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*launch.ExitError](victim.Err()); !ok || e.Signal != syscall.SIGKILL {
		return fmt.Errorf("rank %d was to be killed by SIGKILL, and ended so: %s", demoVictim, fmt.Sprint(victim.Err()))
	}
	return nil
}

func (d *demo) checkLoss(r demoReport, took time.Duration) error {
	if !slices.Equal(r.Lost, []int{demoVictim}) {
		return fmt.Errorf("rank %d must report that rank %d has failed, but reported: %s", r.Rank, demoVictim, r.Text)
	}
	if took > demoLate {
		return fmt.Errorf("rank %d detected the failure only after %s", r.Rank, short(took))
	}
	return nil
}

// await returns the reports of a step, one from each of the ranks.
func (d *demo) await(ctx context.Context, step string, ranks []int) ([]demoReport, error) {
	var got []demoReport
	for range ranks {
		r, err := d.awaitAny(ctx, step)
		if err != nil {
			return nil, err
		}
		got = append(got, r)
	}
	slices.SortFunc(got, func(a, b demoReport) int { return a.Rank - b.Rank })
	for i, rank := range ranks {
		if got[i].Rank != rank {
			return nil, fmt.Errorf("rank %d reported %q, and was not to", got[i].Rank, step)
		}
	}
	return got, nil
}

// awaitAny returns the next report of a step.
func (d *demo) awaitAny(ctx context.Context, step string) (demoReport, error) {
	is := func(r demoReport) bool { return r.Step == step }
	for {
		if i := slices.IndexFunc(d.early, is); i >= 0 {
			r := d.early[i]
			d.early = slices.Delete(d.early, i, i+1)
			return r, nil
		}
		select {
		case r := <-d.reports.values:
			d.early = append(d.early, r)
		case <-ctx.Done():
			return demoReport{}, fmt.Errorf("no rank reported %q within %v", step, demoTime)
		case <-d.job.Done():
			if len(d.reports.values) == 0 {
				return demoReport{}, errors.Join(d.job.Wait(), fmt.Errorf("all ranks ended before %q", step))
			}
		}
	}
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

func (d *demo) item(name, format string, args ...any) {
	d.say("  %s  %s\n", d.ink.bold(padRight(name, 9)), fmt.Sprintf(format, args...))
}

func allRanks() []int {
	ranks := make([]int, demoRanks)
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}

func slowest(rs []demoReport) time.Duration {
	var most time.Duration
	for _, r := range rs {
		most = max(most, r.Took)
	}
	return most
}

func asRankError(err error) (*pgroup.RankError, bool) { return errors.AsType[*pgroup.RankError](err) }
