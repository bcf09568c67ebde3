package main

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newGet() *cobra.Command {
	var r remote
	var wait, raw, prefix bool
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key",
		Long: `Print the value of a key, and a newline. Exits with 3 if there is no such key, and with --wait
only after --timeout, with 4. With --prefix it prints a line for each key that starts with KEY: the
key, a tab and the value.`,
		Example: `  muster get model/ready
  muster get model/ready --wait --timeout 1m
  muster get weights/index --raw > index.json
  muster get model/ --prefix`,
		Args: operands("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if prefix && (wait || raw) {
				return usagef(cmd, "--prefix goes with neither --wait nor --raw")
			}
			if !wait && !cmd.Flags().Changed("timeout") {
				r.timeout = quick
			}
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				if prefix {
					return getPrefix(ctx, s, args[0], cmd.OutOrStdout())
				}
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
	cmd.Flags().BoolVar(&prefix, "prefix", false, "print all keys that start with KEY, and their values")
	return cmd
}

// getPrefix prints the keys that start with prefix, and their values.
func getPrefix(ctx context.Context, s *store.Store, prefix string, w io.Writer) error {
	out := bufio.NewWriter(w)
	found := false
	for e, err := range s.List(ctx, prefix) {
		if err != nil {
			return err
		}
		if !isHidden(e.Key) {
			found = true
			_, _ = fmt.Fprintf(out, "%s\t%s\n", printable(e.Key), e.Value)
		}
	}
	if !found {
		return &exit{code: exitNotFound, text: fmt.Sprintf("no key starts with %q", prefix)}
	}
	return out.Flush()
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
