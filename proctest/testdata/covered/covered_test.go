package covered

import (
	"testing"

	"github.com/muster-pg/muster/proctest"
)

func TestBranch(t *testing.T) {
	proctest.Run(t, 3, func(t *testing.T, p *proctest.Proc) {
		if branch(p.Rank()) == "" {
			t.Fail()
		}
	})
}
