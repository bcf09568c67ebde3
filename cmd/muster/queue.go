package main

import (
	"context"
	"fmt"
	"io"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newPush() *cobra.Command {
	var r remote
	cmd := &cobra.Command{
		Use:   "push QUEUE VALUE|-…",
		Short: "Append values to a queue",
		Long: `Append values to a queue, in this order; - reads one from standard input. Names of queues are
separate from keys. "muster pop" takes the values out.`,
		Example: `  muster push shards shard-0 shard-1 shard-2
  muster push shards - < shard.json`,
		Args: operands("QUEUE", "VALUE…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				for _, arg := range args[1:] {
					value, err := valueOf(cmd, arg)
					if err != nil {
						return err
					}
					if err := s.Push(ctx, args[0], value); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	r.flags(cmd, quick)
	return cmd
}

func newPop() *cobra.Command {
	var r remote
	var wait, raw bool
	cmd := &cobra.Command{
		Use:   "pop QUEUE",
		Short: "Remove the first value of a queue, and print it",
		Long: `Remove the first value of a queue, and print it and a newline. Each value is removed by one client.
Exits with 3 if the queue is empty. With --wait it waits for a value, and exits with 4 after
--timeout.`,
		Example: `  muster pop shards
  while shard=$(muster pop shards); do ./work "$shard"; done`,
		Args: operands("QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !wait && !cmd.Flags().Changed("timeout") {
				r.timeout = quick
			}
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				value, err := pop(ctx, s, args[0], wait)
				if err != nil {
					return err
				}
				return printValue(cmd.OutOrStdout(), value, raw)
			})
		},
	}
	r.flags(cmd, 0)
	waitFlags(cmd, &wait, "wait until the queue has a value", &raw)
	return cmd
}

func pop(ctx context.Context, s *store.Store, queue string, wait bool) ([]byte, error) {
	if wait {
		return s.Pop(ctx, queue)
	}
	value, n, err := s.TryPop(ctx, queue)
	if err == nil && n == 0 {
		return nil, &exit{code: exitNotFound, text: fmt.Sprintf("queue %q is empty", queue)}
	}
	return value, err
}

// waitFlags registers --wait and --raw of a command that prints a value.
func waitFlags(cmd *cobra.Command, wait *bool, usage string, raw *bool) {
	cmd.Flags().Lookup("timeout").Usage = fmt.Sprintf("give up after this time; 0 is never with --wait, and %v without", quick)
	cmd.Flags().BoolVar(wait, "wait", false, usage)
	cmd.Flags().BoolVar(raw, "raw", false, "the value as it is, without a newline behind it")
}

// printValue prints a value and, unless raw, a newline.
func printValue(w io.Writer, value []byte, raw bool) error {
	if !raw {
		value = append(value, '\n')
	}
	_, err := w.Write(value)
	return err
}
