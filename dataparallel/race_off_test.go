//go:build !race

package dataparallel_test

// mostAllocated is how many bytes a rank may allocate in a repeated AllReduceGradients.
const mostAllocated = 16 << 10
