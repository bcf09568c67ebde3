package main

import (
	"context"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newWait() *cobra.Command {
	var r remote
	cmd := &cobra.Command{
		Use:   "wait KEY…",
		Short: "Wait until all of the keys are there",
		Long:  "Wait until all of the keys are there. Exits with 4 if --timeout is over, and says which are missing.",
		Example: `  muster wait model/ready
  muster wait worker/0 worker/1 --timeout 30s && ./start`,
		Args: operands("KEY…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				_, err := s.Wait(ctx, args...)
				return err
			})
		},
	}
	r.flags(cmd, 0)
	return cmd
}
