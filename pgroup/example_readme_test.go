package pgroup_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// README.md and docs/ show train and TestRanks: TestGoCodeOfTheDocs (cmd/muster/internal/docs)
// compares them.

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

// The program of README.md, as the only rank of its group.
func Example_program() {
	for _, set := range []string{"RANK=0", "WORLD_SIZE=1", "MUSTER_STORE=mem:"} { // as a launcher does
		name, value, _ := strings.Cut(set, "=")
		if was, there := os.LookupEnv(name); there {
			defer os.Setenv(name, was)
		} else {
			defer os.Unsetenv(name)
		}
		_ = os.Setenv(name, value)
	}
	if err := train(context.Background()); err != nil {
		log.Print(err)
	}
	// Output: [layer 0]
}

func TestRanks(t *testing.T) {
	pgrouptest.Run(t, 4, func(t *testing.T, g *pgroup.Group) { // or Procs, for 4 real processes
		got, err := pgroup.AllGather(t.Context(), g, g.Rank())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, []int{0, 1, 2, 3}) {
			t.Errorf("rank %d got %v", g.Rank(), got)
		}
	})
}
