// Package collective moves large slices among ranks, in place: through memory in one process or on one host, over TCP between hosts.
//
//	c, err := collective.Open(ctx, g, nil)                  // every rank of the group
//	err = collective.AllReduce(ctx, c, collective.Avg, grads) // the same bits on every rank, and in every run
//	err = collective.AllReduceAll(ctx, c, collective.Avg, [][]float32{weights, biases}) // several slices as though they were one
//
// All ranks call the same verbs in the same order, with the same type, length, op and root; whoever does not is told, on all ranks. Each
// verb is numbered, and so are its messages: a rank that is early or late never mixes two.
//
// After an error the Comm is over, on every rank, with one verdict: what slices hold is not defined then. Shrink the group and open another.
package collective
