package python_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// step uses channel name once, in Go, as tests/rank.py does in steps.
func step(ctx context.Context, g *pgroup.Group, name string, i int) error {
	ch := g.Channel(name)
	if err := pgroup.Send(ctx, ch, (g.Rank()+1)%g.Size(), i); err != nil {
		return err
	}
	all, err := pgroup.AllGather(ctx, ch, i)
	if err != nil {
		return err
	}
	got, err := pgroup.Recv[int](ctx, ch, (g.Rank()+g.Size()-1)%g.Size())
	if err != nil {
		return err
	}
	for _, n := range append(all, got) {
		if n != i {
			return fmt.Errorf("channel %s: %v and %d in step %d", name, all, got, i)
		}
	}
	return ch.Close()
}

// TestChannelForEachStepInBoth uses many names, and one name repeatedly, in Go and in Python, by a
// relay, which merges votes: ranks get the values of the same use, however far one of them is ahead.
// In the soak there are more names than a group may have channels.
func TestChannelForEachStepInBoth(t *testing.T) {
	steps := testcluster.Form(200, 4200)
	_, addr := relay(t, testcluster.Serve(t, new(store.Server)), "127.0.0.1:0")
	m := create(t, 3, addr, nil, pgroup.Config{})
	m.each(func(r int) error {
		for i := range steps {
			for _, name := range []string{fmt.Sprint("step ", i), "again"} {
				if err := step(t.Context(), m.gs[r], name, i); err != nil {
					return err
				}
			}
		}
		return nil
	}, func(_ int, p *rank) error {
		_, err := p.do("new", "steps", 0, steps)
		return err
	})
}
