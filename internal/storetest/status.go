package storetest

import (
	"slices"
	"testing"

	"github.com/muster-pg/muster/store"
)

var statusChecks = []check{
	{"many ranks come in pages, each once", statusMany, []Feature{Status, Collect, Crowds}},
}

// sees returns the status of the test's group, or nil if there is none.
func sees(t *testing.T, w *world, s *store.Store) *store.GroupStatus {
	t.Helper()
	all, err := s.Status(w.ctx, "")
	good(t, err)
	i := slices.IndexFunc(all.Groups, func(g store.GroupStatus) bool { return g.Name == "group" })
	if i < 0 {
		return nil
	}
	return &all.Groups[i]
}

func statusMany(t *testing.T, w *world) {
	const size = 2500
	s := w.store()
	allGood(t, together(size, func(n int) ([][]byte, error) {
		_, err := s.Join(w.ctx, applicant("group", n, size), nil)
		return nil, err
	}))
	g := sees(t, w, w.store())
	same(t, "ranks", len(g.Ranks), size)
	for n := range size {
		same(t, "rank", g.Ranks[n].Rank, n)
		same(t, "label", g.Ranks[n].Label, label(n))
	}
}
