//go:build race

package collective_test

// The long tests take ten times as long under the race detector, which allocates too.
const (
	underRace = true
	steps     = 2_000  // of TestSteps
	long      = 40_001 // elements, of which there are many
)
