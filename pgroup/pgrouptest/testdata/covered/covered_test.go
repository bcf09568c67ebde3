package covered

import (
	"testing"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

func TestBranch(t *testing.T) {
	pgrouptest.Procs(t, 3, func(t *testing.T, g *pgroup.Group) {
		if branch(g.Rank()) == "" {
			t.Fail()
		}
	})
}
