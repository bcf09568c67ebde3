package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/spf13/cobra"
)

const (
	demoRanks  = 4
	demoVictim = 2                // the rank that is killed
	demoTime   = 30 * time.Second // timeout of the demo; it takes a fraction of a second
)

func newDemo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Run a group of four real processes, and kill one",
		Long: `Start four processes that form two overlapping groups, gather a layer's configuration from each of
them, pass a barrier, and kill one. Exits with 0 if all of it happened as it says.`,
		Example: "  muster demo",
		Args:    operands(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return demo(cmd) },
	}
}

// demo starts the ranks, which print what happens, and fail if anything else does.
func demo(cmd *cobra.Command) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), demoTime)
	defer cancel()
	begun, out, k := time.Now(), cmd.OutOrStdout(), inkOf(cmd.OutOrStdout())
	meet := place{masterAddr: "127.0.0.1"}
	if err := meet.open(); err != nil {
		return err
	}
	defer meet.close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n", k.bold("muster: four processes, two groups, one failure"))
	job, err := launch.Start(ctx, launch.Spec{
		N: demoRanks, Path: self, Args: []string{"demo-rank"}, ParentPipe: true, Grace: time.Second,
		Env:    func(rank int) []string { return meet.environ(rank, demoRanks) },
		Output: out, ErrOutput: cmd.ErrOrStderr(), Prefix: func(rank int) string { return k.rank(rank, fmt.Sprintf("rank %d", rank)) + "  " },
		MayFail: func(rank int) bool { return rank == demoVictim },
	})
	if err != nil {
		return err
	}
	if err = job.Wait(); err == nil {
		victim := job.Process(demoVictim).Err()
		if e, ok := errors.AsType[*launch.ExitError](victim); !ok || e.Signal != syscall.SIGKILL {
			err = fmt.Errorf("rank %d was to be killed by SIGKILL, and ended so: %s", demoVictim, fmt.Sprint(victim))
		}
	}
	if err != nil {
		return fmt.Errorf("the demo went wrong: %w", err)
	}
	fmt.Fprintf(out, "\n%s in %s.\n", k.green("All of it as expected,"), short(time.Since(begun)))
	return nil
}

// demoLayer returns the configuration of the layer that a rank of a pipeline holds.
func demoLayer(rank int) string {
	return []string{
		"embed_tokens bf16 [32000×4096]",
		"layers.0.self_attn fp8 [4096×4096]",
		"layers.0.mlp fp8 [11008×4096]",
		"lm_head bf16 [32000×4096]",
	}[rank]
}
