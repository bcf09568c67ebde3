package pgroup_test

import (
	"slices"
	"testing"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// docs/guides/test.md shows TestRanks.

func TestRanks(t *testing.T) {
	pgrouptest.Run(t, 4, func(t *testing.T, g *pgroup.Group) { // or Procs, for 4 real processes
		got, err := pgroup.AllGather(t.Context(), g, g.Rank())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, []int{0, 1, 2, 3}) {
			t.Errorf("rank %d got %v", g.Rank(), got)
		}
	})
}
