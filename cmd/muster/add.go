package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newAdd() *cobra.Command {
	var r remote
	cmd := &cobra.Command{
		Use:   "add KEY [DELTA]",
		Short: "Add to a counter, and print its new value",
		Long:  "Add DELTA, or 1, to a counter, and print its new value. A counter that is not there starts at 0.",
		Example: `  muster add jobs/started
  muster add jobs/running -1`,
		Args: operands("KEY", "[DELTA]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			delta := int64(1)
			if len(args) == 2 {
				n, err := strconv.ParseInt(args[1], 10, 64)
				if err != nil {
					return usagef(cmd, "DELTA %q is not a whole number of 64 bits", args[1])
				}
				delta = n
			}
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				n, err := s.Add(ctx, args[0], delta)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), n)
				return err
			})
		},
	}
	r.flags(cmd, quick)
	return cmd
}
