package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newPing() *cobra.Command {
	var r remote
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "Ask a store whether it is there, and print how long it took",
		Long: `Ask a store whether it is there, with everything that reaching it takes: its name, the network,
TLS and the secret, and its disk if it is durable. Prints how long connecting took, and one
question. Exits with 5 if it cannot be reached.`,
		Example: `  muster ping --store muster://10.0.0.5:7070
  until muster ping; do sleep 1; done`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			began := time.Now()
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				connected := time.Now()
				if err := ask(ctx, s); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "connected in %v, answered in %v\n", round(connected.Sub(began)), round(time.Since(connected)))
				return err
			})
		},
	}
	r.flags(cmd, quick)
	return cmd
}

// ask sends the store a read that needs no rights. A durable store answers it after its disk.
func ask(ctx context.Context, s *store.Store) error {
	_, err := s.Revision(ctx)
	if errors.Is(err, store.ErrUnsupported) {
		_, err = s.Get(ctx, "muster ping")
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrDenied) {
		return nil
	}
	return err
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
