package main

import (
	"context"
	"fmt"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newDelete() *cobra.Command {
	var r remote
	cmd := &cobra.Command{
		Use:     "delete KEY…",
		Short:   "Delete keys, and print how many were there",
		Example: "  muster delete model/ready lease/4",
		Args:    operands("KEY…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				n, err := s.Delete(ctx, args...)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "deleted %d of %d\n", n, len(args))
				return err
			})
		},
	}
	cmd.ValidArgsFunction = r.completeKeys
	r.flags(cmd, quick)
	return cmd
}
