// Package strategy is data parallelism: it averages the gradients of all ranks, broadcasts weights
// from one rank, and keeps a worker in a job whose workers join, leave and fail.
//
//	s := strategy.New(comm, nil)
//	err := s.BroadcastTensors(ctx, 0, params)
//	for step := range steps {
//		grads := backward(params, step)
//		err = s.AllReduceGradients(ctx, grads) // averaged in place: the same bits on every rank
//		...
//	}
//
// An [AllReduce] works over a collective.Comm that the caller has opened. A [WorkerNode] is all of
// a worker: it registers in the membership of a job, sends heartbeats, connects to the others of
// its view, and has an AllReduce for each view.
package strategy
