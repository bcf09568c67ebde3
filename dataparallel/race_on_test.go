//go:build race

package dataparallel_test

// mostAllocated has room for what the race detector allocates too.
const mostAllocated = 32 << 10
