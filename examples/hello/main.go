// Command hello is the program of README.md: each rank gives its layer to rank 0, which prints all.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/muster-pg/muster/pgroup"
)

func main() {
	if err := train(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func train(ctx context.Context) error {
	cfg, err := pgroup.FromEnv() // set by muster run, torchrun, Open MPI, Slurm or Kubernetes
	if err != nil {
		return err
	}
	g, err := pgroup.Create(ctx, cfg) // returns when all ranks have joined, or names the missing
	if err != nil {
		return err
	}
	defer g.Close()
	layers, err := pgroup.Gather(ctx, g, 0, fmt.Sprintf("layer %d", g.Rank()))
	if err != nil {
		return err // the same error on every rank: "… lost rank 2"
	}
	if g.Rank() == 0 {
		fmt.Println(layers)
	}
	return g.Shutdown(ctx) // waits until no rank needs another one
}
