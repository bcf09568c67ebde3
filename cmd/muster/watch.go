package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newWatch() *cobra.Command {
	var r remote
	var from uint64
	var count int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Print the changes of the keys that start with PREFIX, as they come",
		Long: `Print the changes of the keys that start with PREFIX, as they come: revision, what happened (set,
delete or expire), key and value. It ends after --count changes, after --timeout, or by Ctrl-C.`,
		Example: `  muster watch worker/
  muster watch worker/ --from 17 --json   # what came after revision 17, first`,
		Args: operands("[PREFIX]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				show := eventPrinter(cmd.OutOrStdout(), asJSON)
				return compacted(watch(ctx, s, first(args), store.Revision(from), count, show), from)
			})
		},
	}
	r.flags(cmd, 0)
	cmd.Flags().Uint64Var(&from, "from", 0, "begin after this `revision`; 0 is now")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many changes; 0 is never")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	return cmd
}

func watch(ctx context.Context, s *store.Store, prefix string, from store.Revision, count int, show func(store.Event) error) error {
	seen := 0
	for e, err := range s.Watch(ctx, prefix, from) {
		if err != nil {
			return err
		}
		if err := show(e); err != nil {
			return err
		}
		if seen++; seen == count {
			return nil
		}
	}
	return nil
}

// compacted adds a remedy if the store has discarded the changes after from.
func compacted(err error, from uint64) error {
	if !errors.Is(err, store.ErrCompacted) {
		return err
	}
	return &exit{code: exitFailed, err: err, text: fmt.Sprintf(
		"the store has forgotten the changes right after revision %d: \"muster keys --long\" shows what there is, and the revisions to go on from", from)}
}

func eventPrinter(w io.Writer, asJSON bool) func(store.Event) error {
	if asJSON {
		enc := json.NewEncoder(plainJSON{w})
		return func(e store.Event) error { return enc.Encode(eventOf(e)) }
	}
	k := inkOf(w)
	return func(e store.Event) error {
		line := fmt.Sprintf("%6d  %s  %s", e.Rev, k.bold(fmt.Sprintf("%-6s", kind(e))), printable(e.Key))
		if !e.Deleted {
			line += k.dim(" = " + preview(e.Value))
		}
		_, err := fmt.Fprintln(w, line)
		return err
	}
}

// kind returns what happened to the key.
func kind(e store.Event) string {
	switch {
	case e.Expired:
		return "expire"
	case e.Deleted:
		return "delete"
	}
	return "set"
}

type eventJSON struct {
	Event string `json:"event"`
	entryJSON
}

func eventOf(e store.Event) eventJSON {
	j := eventJSON{Event: kind(e), entryJSON: entryOf(e.Entry)}
	if e.Deleted {
		j.Value = nil
	}
	return j
}
