// Package dataparallel trains one model on many ranks: it averages the gradients of all ranks, broadcasts
// weights from one rank to all, and keeps a worker in a job while other workers join and leave.
//
//	s := dataparallel.New(comm, nil)
//	err := s.BroadcastTensors(ctx, 0, params)
//	for step := range steps {
//		grads := backward(params, step)
//		err = s.AllReduceGradients(ctx, grads) // averaged in place: the same bits on every rank
//		...
//	}
//
// A [Strategy] works over a collective.Comm that the caller has opened. A [WorkerNode] does all of it for
// one worker: it registers in a job of package membership, renews its lease, connects to the other workers
// of its view, and has a Strategy for each view.
//
// The verbs are those of Zerfoo's package distributed.
package dataparallel
