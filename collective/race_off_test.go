//go:build !race

package collective_test

// steps is how many TestSteps does.
const steps = 100_000
