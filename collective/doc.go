// Package collective reduces and moves large slices among ranks, in place: through shared memory on one
// host, over TCP between hosts.
//
//	c, err := collective.Open(ctx, g, nil)                    // every rank of the group
//	err = collective.AllReduce(ctx, c, collective.Avg, grads) // the same bits on every rank, and in every run
//	err = collective.AllReduceAll(ctx, c, collective.Avg, [][]float32{weights, biases}) // several slices as one
//
// For objects of other types than slices of numbers, at most 16 MiB, use the operations of the same names in
// package pgroup, which need no Comm.
//
// All ranks call the same verbs in the same order, with the same type, length, op and root; if they
// do not, all ranks get an error that names the difference. Each verb has a sequence number, which
// is also in its messages, so messages of two verbs are never confused.
//
// Ranks may be goroutines of one process, as in tests. What an operation orders between them, the race
// detector does not see: variables that they share need a lock or an atomic.
//
// After an error the Comm has ended, on every rank, with the same failure. The contents of the
// slices are then undefined. Shrink the group and open another Comm.
package collective
