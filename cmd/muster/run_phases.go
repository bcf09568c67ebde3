package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
)

// phasesEvery is the time between two looks at the phases of the ranks.
const phasesEvery = 10 * time.Second

// printPhases prints the phases that the ranks of a run are in, when they have changed, until ctx is
// done. The run's groups are in the store that open opens.
func printPhases(ctx context.Context, open func(context.Context) (*store.Store, error), run string, w io.Writer) {
	tick := time.NewTicker(phasesEvery)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if text := phasesText(ctx, open, run); text != "" && text != last {
			fmt.Fprintln(w, "muster:", printable(text))
			last = text
		}
	}
}

// phasesText returns these phases; "" if there are none, or the store does not answer. Groups that were
// made of another one have the phases of its ranks, so those of the largest are all.
func phasesText(ctx context.Context, open func(context.Context) (*store.Store, error), run string) string {
	ctx, cancel := context.WithTimeout(ctx, phasesEvery)
	defer cancel()
	s, err := open(ctx)
	if err != nil {
		return ""
	}
	defer s.Close()
	now, err := s.Status(ctx, "")
	if err != nil {
		return ""
	}
	all := new(status.Phases)
	for _, g := range status.Of(now, status.Options{Ranks: 1}).Groups {
		if g.Run == run && g.Phases != nil && g.Phases.Ranks > all.Ranks {
			all = g.Phases
		}
	}
	return strings.Join(all.Texts, "; ")
}
