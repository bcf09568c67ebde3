package proctest_test

import (
	"testing"

	"github.com/muster-pg/muster/proctest"
)

func TestLock(t *testing.T) {
	proctest.Run(t, 4, func(t *testing.T, p *proctest.Proc) { // in each of 4 processes
		if p.Size() != 4 || p.Rank() < 0 || p.Rank() > 3 {
			t.Errorf("rank %d of %d", p.Rank(), p.Size())
		}
	})
}
