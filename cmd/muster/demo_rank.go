package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
	"github.com/spf13/cobra"
)

const (
	demoRankTime = 20 * time.Second // timeout of one rank, which then reports what it waits for
	demoLate     = time.Second      // a failure must be detected within this time
	demoBarriers = 1000
)

var demoTrainers = []int{0, 1, 2} // the ranks of the second group

func newDemoRank() *cobra.Command {
	return &cobra.Command{
		Use: "demo-rank", Hidden: true, Short: "One of the processes of demo", Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(context.Background(), demoRankTime)
			defer cancel()
			return demoRank(ctx, cmd.OutOrStdout())
		},
	}
}

// demoRank runs one rank of the demo. Rank 0 prints what happens to all of them.
func demoRank(ctx context.Context, out io.Writer) error {
	begun := time.Now()
	cfg, err := pgroup.FromEnv()
	if err != nil {
		return err
	}
	launch.ExitWithParent()
	world, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return err
	}
	defer world.Close()
	d := &demoProcess{world: world, out: out}
	d.sayFirst("ranks 0–%d have joined world, %s after they started", world.Size()-1, short(time.Since(begun)))
	for _, step := range []func(context.Context) error{d.sub, d.gather, d.barrier, d.lose} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// demoProcess is one rank of the demo.
type demoProcess struct {
	world    *pgroup.Group
	trainers *pgroup.Group // nil on ranks that are not members
	out      io.Writer
}

func (d *demoProcess) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// sayFirst prints on rank 0 alone.
func (d *demoProcess) sayFirst(format string, args ...any) {
	if d.world.Rank() == 0 {
		d.say(format, args...)
	}
}

func (d *demoProcess) sub(ctx context.Context) (err error) {
	if !slices.Contains(demoTrainers, d.world.Rank()) {
		return nil
	}
	begun := time.Now()
	if d.trainers, err = d.world.Sub(ctx, "trainers", demoTrainers...); err != nil {
		return err
	}
	d.sayFirst("ranks 0–2 have joined a second group, trainers, in %s", short(time.Since(begun)))
	return nil
}

func (d *demoProcess) gather(ctx context.Context) error {
	// so that the measured time is that of the gather alone
	if err := d.world.Barrier(ctx); err != nil {
		return err
	}
	begun := time.Now()
	layers, err := pgroup.Gather(ctx, d.world, 0, demoLayer(d.world.Rank()))
	if err != nil || d.world.Rank() != 0 {
		return err
	}
	d.say("a layer's configuration from each rank, gathered in %s:", short(time.Since(begun)))
	for rank, l := range layers {
		if l != demoLayer(rank) {
			return fmt.Errorf("rank 0 gathered %v from rank %d, which sent %v", l, rank, demoLayer(rank))
		}
		d.say("    from rank %d: %v", rank, l)
	}
	return nil
}

func (d *demoProcess) barrier(ctx context.Context) error {
	times := make([]time.Duration, 0, demoBarriers)
	for range demoBarriers {
		begun := time.Now()
		if err := d.world.Barrier(ctx); err != nil {
			return err
		}
		times = append(times, time.Since(begun))
	}
	slices.Sort(times)
	d.sayFirst("all four pass %d barriers, in %s each (median)", demoBarriers, short(times[len(times)/2]))
	return nil
}

// lose waits in a barrier for the victim, which is killed.
func (d *demoProcess) lose(ctx context.Context) error {
	if d.world.Rank() == demoVictim {
		d.say("kill -9 of this process, pid %d, while the others wait for it in a barrier", os.Getpid())
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	begun := time.Now()
	text, err := lost(d.world.Barrier(ctx))
	if err != nil {
		return err
	}
	took := time.Since(begun)
	d.say("%s, after %s", text, short(took))
	if took > demoLate {
		return fmt.Errorf("rank %d detected the failure only after %s", d.world.Rank(), short(took))
	}
	if d.trainers == nil {
		return nil
	}
	if _, err = lost(d.trainers.Barrier(ctx)); err == nil {
		d.say("the same error in trainers")
	}
	return err
}

// lost returns the text of the error of an operation, which must be that the victim is lost.
func lost(err error) (string, error) {
	e, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || !slices.Equal(e.Lost, []int{demoVictim}) {
		return "", fmt.Errorf("an operation that waits for rank %d, which was killed, returned: %s", demoVictim, fmt.Sprint(err))
	}
	return strings.TrimPrefix(e.Error(), "pgroup: "), nil
}
