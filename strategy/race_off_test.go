//go:build !race

package strategy_test

// mostAllocated is how many bytes a rank may allocate in one AllReduceGradients that has been
// called before.
const mostAllocated = 16 << 10
