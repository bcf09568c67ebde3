//go:build !race

package dataparallel_test

// mostAllocated is how many bytes a rank may allocate in one AllReduceGradients that has been called before.
const mostAllocated = 16 << 10
