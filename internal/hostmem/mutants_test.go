package hostmem

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// TestMutants shows that the simulations of operations and of messages notice each rule that testdata/mutants.txt breaks.
func TestMutants(t *testing.T) {
	mutationtest.Run(t, 6, "-run", "^(TestSimulation|TestMessages)$")
}
