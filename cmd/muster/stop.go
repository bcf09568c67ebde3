package main

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func newStop() *cobra.Command {
	return &cobra.Command{
		Use:   "stop JOB",
		Short: "End a job of this host",
		Long: `Send SIGTERM to each "muster run" of this user on this host that runs JOB, which ends its ranks, and
SIGKILL to them after its --kill-after. "muster ps" lists the jobs. Exits with 3 if there is none of
this name.`,
		Example: "  muster stop train-7",
		Args:    operands("JOB"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var known []string
			stopped := false
			for _, j := range jobs() {
				known = append(known, j.Job)
				if j.Job != args[0] {
					continue
				}
				if err := syscall.Kill(j.PID, syscall.SIGTERM); err != nil {
					return fmt.Errorf("stop job %q: pid %d: %w", j.Job, j.PID, err)
				}
				stopped = true
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "SIGTERM to pid %d: %s\n", j.PID, printable(strings.Join(j.Command, " ")))
			}
			if !stopped {
				return &exit{code: exitNotFound, text: strings.TrimSuffix(fmt.Sprintf("no job %q runs on this host; those that do: %s", args[0], strings.Join(known, ", ")), "; those that do: ")}
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, prefix string) (names []string, _ cobra.ShellCompDirective) {
			for _, j := range jobs() {
				if strings.HasPrefix(j.Job, prefix) {
					names = append(names, j.Job)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
