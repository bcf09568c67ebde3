//go:build race

package collective_test

// What takes long takes ten times as long under the race detector, which allocates too.
const (
	underRace = true
	steps     = 10_000 // of TestSteps
	long      = 40_001 // elements, of which there are many
)
