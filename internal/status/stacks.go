package status

import (
	"context"
	"strings"
	"sync"

	"github.com/muster-pg/muster/store"
)

// mostStacks is how many ranks FetchStacks asks: each answer has up to 64 KiB.
const mostStacks = 16

const serverStacks = 64 << 10 // bytes of a debug server's answer that are kept, as of others

// FetchStacks asks the first ranks of v.Blame, all at the same time, for the stacks of their
// processes, and puts those into v. Processes of PyTorch are asked only if they have debug servers,
// and Fetch has asked those.
func FetchStacks(ctx context.Context, s *store.Store, v *View) {
	var asked sync.WaitGroup
	defer asked.Wait()
	for i := range v.Blame[:min(len(v.Blame), mostStacks)] {
		b := &v.Blame[i]
		if b.Generation == 0 && b.server == "" {
			if b.Label != "" { // a process of PyTorch
				b.StacksError = "no debug server of this process is known: on its host, py-spy dump --pid PID prints its stacks"
			}
			continue
		}
		asked.Go(func() {
			text, err := stacksOf(ctx, s, b)
			if b.Stacks = text; err != nil {
				b.StacksError = err.Error()
			}
		})
	}
}

// stacksOf returns the stacks of a rank.
func stacksOf(ctx context.Context, s *store.Store, b *Blame) (string, error) {
	if b.server == "" {
		return s.Stacks(ctx, b.Generation, b.Rank)
	}
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	text, err := askServer(ctx, b.server, "dump_traceback")
	return strings.ToValidUTF8(string(text[:min(len(text), serverStacks)]), "?"), err
}
