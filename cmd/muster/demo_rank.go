package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
	"github.com/spf13/cobra"
)

const (
	demoRanks    = 4
	demoVictim   = 2 // the rank that is killed
	demoBarriers = 1000
)

var demoTrainers = []int{0, 1, 2} // the ranks of the second group

// The steps that a rank of the demo reports, in this order.
const (
	stepWorld    = "world"
	stepTrainers = "trainers"
	stepGather   = "gather"
	stepBarrier  = "barrier"
	stepReady    = "ready" // it waits for the failure of the victim
	stepLost     = "lost"
	stepToo      = "too" // the second group has failed too
)

// demoReport is one step of one rank.
type demoReport struct {
	Rank   int           `json:"rank"`
	Step   string        `json:"step"`
	Took   time.Duration `json:"took,omitempty"`
	Layers []layer       `json:"layers,omitempty"` // in the order of ranks
	Lost   []int         `json:"lost,omitempty"`
	Text   string        `json:"text,omitempty"`
}

// layer is the information that the ranks of a pipeline exchange before they export a model.
type layer struct {
	Name  string
	Heads int
	Shape []int
	DType string
	Scale float64
}

// demoLayer returns the layer that a rank holds.
func demoLayer(rank int) layer {
	return []layer{
		{Name: "embed_tokens", Shape: []int{32000, 4096}, DType: "bf16", Scale: 1},
		{Name: "layers.0.self_attn", Heads: 32, Shape: []int{4096, 4096}, DType: "fp8", Scale: 0.0078125},
		{Name: "layers.0.mlp", Shape: []int{11008, 4096}, DType: "fp8", Scale: 0.015625},
		{Name: "lm_head", Shape: []int{32000, 4096}, DType: "bf16", Scale: 1},
	}[rank]
}

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

// demoRank runs one rank of the demo.
func demoRank(ctx context.Context, out io.Writer) error {
	start := time.Now()
	cfg, err := pgroup.FromEnv()
	if err != nil {
		return err
	}
	world, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return err
	}
	defer world.Close()
	d := &demoProcess{world: world, out: json.NewEncoder(out), start: start}
	for _, step := range []func(context.Context) error{d.met, d.sub, d.gather, d.barrier, d.lose} {
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
	out      *json.Encoder
	start    time.Time
}

func (d *demoProcess) say(r demoReport) error {
	r.Rank = d.world.Rank()
	return d.out.Encode(r)
}

func (d *demoProcess) met(context.Context) error {
	return d.say(demoReport{Step: stepWorld, Took: time.Since(d.start)})
}

func (d *demoProcess) sub(ctx context.Context) (err error) {
	if !slices.Contains(demoTrainers, d.world.Rank()) {
		return nil
	}
	start := time.Now()
	if d.trainers, err = d.world.Sub(ctx, "trainers", demoTrainers...); err != nil {
		return err
	}
	return d.say(demoReport{Step: stepTrainers, Took: time.Since(start)})
}

func (d *demoProcess) gather(ctx context.Context) error {
	// so that the measured time is that of the gather alone
	if err := d.world.Barrier(ctx); err != nil {
		return err
	}
	start := time.Now()
	layers, err := pgroup.Gather(ctx, d.world, 0, demoLayer(d.world.Rank()))
	if err != nil || d.world.Rank() != 0 {
		return err
	}
	return d.say(demoReport{Step: stepGather, Took: time.Since(start), Layers: layers})
}

func (d *demoProcess) barrier(ctx context.Context) error {
	times := make([]time.Duration, 0, demoBarriers)
	for range demoBarriers {
		start := time.Now()
		if err := d.world.Barrier(ctx); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return d.say(demoReport{Step: stepBarrier, Took: times[len(times)/2]})
}

// lose waits in a barrier for the victim, which is killed instead.
func (d *demoProcess) lose(ctx context.Context) error {
	if d.world.Rank() == demoVictim {
		<-ctx.Done() // it is killed before this
		return ctx.Err()
	}
	if err := d.say(demoReport{Step: stepReady}); err != nil {
		return err
	}
	if err := d.lost(stepLost, d.world.Barrier(ctx)); err != nil || d.trainers == nil {
		return err
	}
	return d.lost(stepToo, d.trainers.Barrier(ctx))
}

// lost reports the error that a verb returned, which must be a RankError.
func (d *demoProcess) lost(step string, err error) error {
	re, ok := asRankError(err)
	if !ok {
		return fmt.Errorf("rank %d waited for rank %d, which was killed, and got: %s", d.world.Rank(), demoVictim, fmt.Sprint(err))
	}
	return d.say(demoReport{Step: step, Lost: re.Lost, Text: re.Error()})
}
