package main

import (
	"context"
	"fmt"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newDelete() *cobra.Command {
	var r remote
	var prefix bool
	cmd := &cobra.Command{
		Use:     "delete KEY…",
		Short:   "Delete keys, and print how many were there",
		Example: "  muster delete model/ready lease/4\n  muster delete model/ --prefix",
		Args:    operands("KEY…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				keys := args
				if prefix {
					keys = nil
					for _, p := range args {
						for e, err := range s.List(ctx, p) {
							if err != nil {
								return err
							}
							if !isHidden(e.Key) {
								keys = append(keys, e.Key)
							}
						}
					}
				}
				deleted, err := s.Delete(ctx, keys...)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "deleted %d of %d\n", deleted, len(keys))
				return err
			})
		},
	}
	r.flags(cmd, quick)
	cmd.Flags().BoolVar(&prefix, "prefix", false, "delete all keys that start with KEY")
	return cmd
}
