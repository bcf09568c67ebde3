//go:build race

package dataparallel_test

// mostAllocated also covers the allocations of the race detector.
const mostAllocated = 32 << 10
