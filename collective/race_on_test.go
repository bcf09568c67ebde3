//go:build race

package collective_test

// steps is how many TestSteps does: the race detector makes each ten times as long.
const steps = 10_000
