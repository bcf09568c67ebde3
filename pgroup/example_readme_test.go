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

// train and TestRanks are shown in README.md, as they are here: TestReadmeShowsThis compares them.

func train(ctx context.Context) error {
	cfg, err := pgroup.FromEnv() // who this process is: set by muster run, torchrun, Open MPI, Slurm or Kubernetes
	if err != nil {
		return err
	}
	g, err := pgroup.Create(ctx, cfg) // returns when all ranks are there, or says who is not
	if err != nil {
		return err
	}
	defer g.Close()
	layers, err := pgroup.Gather(ctx, g, 0, fmt.Sprintf("layer %d", g.Rank()))
	if err != nil {
		return err // on every rank the same: "… lost rank 2"
	}
	if g.Rank() == 0 {
		fmt.Println(layers)
	}
	return g.Shutdown(ctx) // waits until nobody needs anybody any more
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

func TestReadmeShowsThis(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("example_readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"train", "TestRanks"} {
		_, code, _ := strings.Cut(string(own), "\nfunc "+name+"(")
		code, _, _ = strings.Cut(code, "\n}\n")
		if !strings.Contains(string(readme), "\nfunc "+name+"("+code+"\n}\n") {
			t.Errorf("README.md does not show func %s as it is here", name)
		}
	}
}
