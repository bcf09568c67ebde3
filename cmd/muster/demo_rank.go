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
	demoVictim   = 2 // is killed
	demoBarriers = 1000
)

var demoTrainers = []int{0, 1, 2} // the second group

// What a rank of the demo reports, in this order.
const (
	stepWorld    = "world"
	stepTrainers = "trainers"
	stepGather   = "gather"
	stepBarrier  = "barrier"
	stepReady    = "ready" // to see the victim die
	stepLost     = "lost"
	stepToo      = "too" // the trainers have lost it too
)

// demoReport is one step of one rank.
type demoReport struct {
	Rank   int           `json:"rank"`
	Step   string        `json:"step"`
	Took   time.Duration `json:"took,omitempty"`
	Layers []layer       `json:"layers,omitempty"` // by rank
	Lost   []int         `json:"lost,omitempty"`
	Text   string        `json:"text,omitempty"`
}

// layer is what the ranks of a pipeline tell each other before they export a model.
type layer struct {
	Name  string
	Heads int
	Shape []int
	DType string
	Scale float64
}

// demoLayer is the layer that a rank has.
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

// demoRank is what each of the processes does.
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

// demoProcess is one of them.
type demoProcess struct {
	world    *pgroup.Group
	trainers *pgroup.Group // nil on those that are not in it
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
	if err := d.world.Barrier(ctx); err != nil { // so that it is the gather alone that is timed
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
	var times histogram
	for range demoBarriers {
		start := time.Now()
		if err := d.world.Barrier(ctx); err != nil {
			return err
		}
		times.add(time.Since(start))
	}
	return d.say(demoReport{Step: stepBarrier, Took: times.quantile(0.5)})
}

// lose waits for the victim, which does not come.
func (d *demoProcess) lose(ctx context.Context) error {
	if d.world.Rank() == demoVictim {
		<-ctx.Done() // it is killed before
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

// lost reports the error that a verb returned, which has to be one.
func (d *demoProcess) lost(step string, err error) error {
	re, ok := asRankError(err)
	if !ok {
		return fmt.Errorf("rank %d waited for rank %d, which was killed, and got: %s", d.world.Rank(), demoVictim, fmt.Sprint(err))
	}
	return d.say(demoReport{Step: step, Lost: re.Lost, Text: re.Error()})
}
