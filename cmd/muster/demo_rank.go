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

// demoLayers are the configurations that the ranks of a pipeline exchange before they export a model.
var demoLayers = []string{"embed_tokens bf16 [32000×4096]", "layers.0.self_attn fp8 [4096×4096]", "layers.0.mlp fp8 [11008×4096]", "lm_head bf16 [32000×4096]"}

func newDemoRank() *cobra.Command {
	return &cobra.Command{
		Use: "demo-rank", Hidden: true, Short: "One of the processes of demo", Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			launch.ExitWithParent()
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
	world, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return err
	}
	defer world.Close()
	d := &demoProcess{world: world, out: out}
	d.sayFirst("ranks 0–%d have joined world, %s after they started", world.Size()-1, short(time.Since(begun)))
	for _, step := range []func(context.Context) error{d.gather, d.barrier, d.lose} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// demoProcess is one rank of the demo.
type demoProcess struct {
	world *pgroup.Group
	out   io.Writer
}

func (d *demoProcess) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// sayFirst prints on rank 0 alone.
func (d *demoProcess) sayFirst(format string, args ...any) {
	if d.world.Rank() == 0 {
		d.say(format, args...)
	}
}

func (d *demoProcess) gather(ctx context.Context) error {
	layers, err := pgroup.Gather(ctx, d.world, 0, demoLayers[d.world.Rank()])
	if err != nil || d.world.Rank() != 0 {
		return err
	}
	if !slices.Equal(layers, demoLayers) {
		return fmt.Errorf("rank 0 gathered %q, and not %q", layers, demoLayers)
	}
	d.say("a layer's configuration from each rank:")
	for rank, l := range layers {
		d.say("    from rank %d: %s", rank, l)
	}
	return nil
}

func (d *demoProcess) barrier(ctx context.Context) error {
	begun := time.Now()
	for range demoBarriers {
		if err := d.world.Barrier(ctx); err != nil {
			return err
		}
	}
	d.sayFirst("all four pass %d barriers, in %s each", demoBarriers, short(time.Since(begun)/demoBarriers))
	return nil
}

// lose waits in a barrier for the victim, which is killed.
func (d *demoProcess) lose(ctx context.Context) error {
	if d.world.Rank() == demoVictim {
		d.say("kill -9 of this process, pid %d, while the others wait for it in a barrier", os.Getpid())
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	begun := time.Now()
	err := d.world.Barrier(ctx)
	e, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || !slices.Equal(e.Lost, []int{demoVictim}) {
		return fmt.Errorf("a barrier that waits for rank %d, which was killed, returned: %s", demoVictim, fmt.Sprint(err))
	}
	took := time.Since(begun)
	d.say("%s, after %s", strings.TrimPrefix(e.Error(), "pgroup: "), short(took))
	if took > demoLate {
		return fmt.Errorf("rank %d detected the failure only after %s", d.world.Rank(), short(took))
	}
	return nil
}
