package pgrouptest_test

import (
	"testing"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// A test of a program's own: the sum of what three ranks have. With Procs instead of Run, the ranks are
// three processes.
func Example() {
	_ = func(t *testing.T) { // TestSum of your package
		pgrouptest.Run(t, 3, func(t *testing.T, g *pgroup.Group) {
			sum, err := pgroup.AllReduce(t.Context(), g, pgroup.Sum, g.Rank())
			if err != nil {
				t.Fatal(err)
			}
			if sum[0] != 0+1+2 {
				t.Errorf("the sum is %d, want 3", sum[0])
			}
		})
	}
	// Output:
}
