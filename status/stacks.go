package status

import (
	"context"
	"sync"

	"github.com/muster-pg/muster/store"
)

// mostStacks is how many ranks FetchStacks asks: each answer has up to 64 KiB.
const mostStacks = 16

// FetchStacks asks the first ranks of v.Blame, all at the same time, for the stacks of their
// processes, and puts those into v. Processes of PyTorch are not asked: they have no client that
// answers.
func FetchStacks(ctx context.Context, s *store.Store, v *View) {
	var asked sync.WaitGroup
	defer asked.Wait()
	for i := range v.Blame[:min(len(v.Blame), mostStacks)] {
		b := &v.Blame[i]
		if b.Generation == 0 { // it has not joined
			continue
		}
		asked.Go(func() {
			text, err := s.Stacks(ctx, b.Generation, b.Rank)
			if b.Stacks = text; err != nil {
				b.StacksError = err.Error()
			}
		})
	}
}
