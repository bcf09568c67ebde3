package core_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/scenario"
)

// TestScenarios runs the rules of stores, as text, on a Memory: a Machine with a lock and a clock.
func TestScenarios(t *testing.T) {
	scenario.Run(t, "../scenario/testdata", scenario.Memory)
}
