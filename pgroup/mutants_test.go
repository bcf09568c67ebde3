package pgroup_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// TestMutants shows that TestPanics notices each rule that testdata/mutants.txt breaks.
func TestMutants(t *testing.T) { mutationtest.Run(t, 0) }
