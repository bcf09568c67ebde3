//go:build !race

package collective_test

const (
	underRace = false
	steps     = 4_000   // of TestSteps
	long      = 150_001 // elements, of which there are many: several pieces and blocks
)
