package main

import (
	"context"
	"io"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/spf13/cobra"
)

func newSet() *cobra.Command {
	var r remote
	var o store.SetOptions
	cmd := &cobra.Command{
		Use:   "set KEY VALUE|-",
		Short: "Give a key a value; - reads it from standard input",
		Example: `  muster set model/ready yes
  muster set lease/4 "$HOSTNAME" --ttl 10s
  muster set weights/index - < index.json`,
		Args: operands("KEY", "VALUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := valueOf(cmd, args[1])
			if err != nil {
				return err
			}
			return r.do(cmd, func(ctx context.Context, s *store.Store) error { return s.Set(ctx, args[0], value, &o) })
		},
	}
	r.flags(cmd, quick)
	cmd.Flags().DurationVar(&o.TTL, "ttl", 0, "the key is deleted after this time; 0 is never")
	return cmd
}

// valueOf returns the argument, or the content of standard input for "-".
func valueOf(cmd *cobra.Command, arg string) ([]byte, error) {
	if arg != "-" {
		return []byte(arg), nil
	}
	b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), wire.MaxValue+1))
	if err == nil && len(b) > wire.MaxValue {
		return nil, &exit{code: exitFailed, text: "the value on standard input is over 16 MiB, the limit of a store"}
	}
	return b, err
}
