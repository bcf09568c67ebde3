package main

import (
	"context"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newGet() *cobra.Command {
	var r remote
	var wait, raw bool
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key",
		Long: `Print the value of a key, and a newline. Exits with 3 if there is no such key, and with --wait
only after --timeout, with 4. "muster keys PREFIX --json" prints all keys that start with PREFIX,
with their values.`,
		Example: `  muster get model/ready
  muster get model/ready --wait --timeout 1m
  muster get weights/index --raw > index.json`,
		Args: operands("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !wait && !cmd.Flags().Changed("timeout") {
				r.timeout = quick
			}
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				value, err := get(ctx, s, args[0], wait)
				if err != nil {
					return err
				}
				return printValue(cmd.OutOrStdout(), value, raw)
			})
		},
	}
	r.flags(cmd, 0)
	waitFlags(cmd, &wait, "wait until there is such a key", &raw)
	return cmd
}

func get(ctx context.Context, s *store.Store, key string, wait bool) ([]byte, error) {
	if !wait {
		return s.Get(ctx, key)
	}
	values, err := s.Wait(ctx, key)
	if err != nil {
		return nil, err
	}
	return values[0], nil
}
