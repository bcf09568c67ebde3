package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// world runs f on two ranks of this process. Error handling is omitted.
func world(f func(ctx context.Context, s *dataparallel.Strategy)) {
	ctx := context.Background()
	meet := store.New(new(store.Memory))
	defer meet.Close()
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			g, _ := pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: 2, Store: meet})
			defer g.Close()
			c, _ := collective.Open(ctx, g, nil)
			defer c.Close()
			f(ctx, dataparallel.New(c, nil))
		})
	}
	ranks.Wait()
}

func ExampleStrategy_AllReduceGradients() {
	world(func(ctx context.Context, s *dataparallel.Strategy) {
		w, loss := []float32{2, 4, 6}, []float64{0.5}
		if s.Rank() == 1 {
			w, loss = []float32{4, 6, 8}, []float64{0.25}
		}
		err := s.AllReduceGradients(ctx, map[string]*tensor.Tensor{"w": tensor.From(w), "loss": tensor.From(loss)})
		if s.Rank() == 1 {
			fmt.Println(w, loss, err)
		}
	})
	// Output: [3 5 7] [0.375] <nil>
}

func ExampleStrategy_StartGradients() {
	world(func(ctx context.Context, s *dataparallel.Strategy) {
		first, last := []float32{0}, []float32{0}
		a, _ := s.StartGradients(ctx, map[string]*tensor.Tensor{"layer.1": tensor.From(first), "layer.2": tensor.From(last)})
		last[0] = float32(s.Rank()) // computed first
		a.Ready("layer.2")
		first[0] = 10 * float32(s.Rank()) // while layer.2 is averaged
		a.Ready("layer.1")
		err := a.Wait(ctx)
		if s.Rank() == 0 {
			fmt.Println(first, last, err)
		}
	})
	// Output: [5] [0.5] <nil>
}

func ExampleStrategy_BroadcastTensors() {
	world(func(ctx context.Context, s *dataparallel.Strategy) {
		w, b := make([]float32, 2), make([]float64, 1)
		if s.Rank() == 0 {
			w, b = []float32{1, 2}, []float64{3}
		}
		_ = s.BroadcastTensors(ctx, 0, map[string]*tensor.Tensor{"w": tensor.From(w), "b": tensor.From(b)})
		if s.Rank() == 1 {
			fmt.Println(w, b)
		}
	})
	// Output: [1 2] [3]
}

// workers returns started nodes of a job with one worker for each of ids.
func workers(ctx context.Context, meet *store.Store, ids ...string) (nodes []*dataparallel.WorkerNode) {
	var all sync.WaitGroup
	for _, id := range ids {
		n := &dataparallel.WorkerNode{
			Store:  meet, // or Address: "muster://store:7070"
			Worker: membership.Config{Job: "train", ID: id, Min: len(ids), Max: 8},
		}
		nodes = append(nodes, n)
		all.Go(func() { _ = n.Start(ctx) })
	}
	all.Wait()
	return nodes
}

func ExampleStrategy_Shutdown() {
	world(func(ctx context.Context, s *dataparallel.Strategy) {
		first, second := s.Shutdown(ctx), s.Shutdown(ctx)
		if s.Rank() == 0 {
			fmt.Println(first, second, errors.Is(s.Barrier(ctx), pgroup.ErrClosed))
		}
	})
	// Output: <nil> <nil> true
}

func ExampleWorkerNode() {
	ctx := context.Background()
	meet := store.New(new(store.Memory))
	defer meet.Close()
	var all sync.WaitGroup
	for _, n := range workers(ctx, meet, "a", "b", "c") {
		all.Go(func() {
			defer n.Close()
			x := []float32{float32(n.Rank())}
			_ = n.Strategy().AllReduceGradients(ctx, map[string]*tensor.Tensor{"x": tensor.From(x)})
			if n.Rank() == 0 {
				fmt.Println("the mean of", n.Size(), "ranks is", x[0])
			}
			_ = n.Strategy().Shutdown(ctx) // so that no rank leaves while others still need it
		})
	}
	all.Wait()
	// Output: the mean of 3 ranks is 1
}

func ExampleWorkerNode_Next() {
	ctx := context.Background()
	meet := store.New(new(store.Memory))
	defer meet.Close()
	nodes := workers(ctx, meet, "a")
	a, b := nodes[0], &dataparallel.WorkerNode{Store: meet, Worker: membership.Config{Job: "train", ID: "b", Min: 1, Max: 8}}
	defer a.Close()
	defer b.Close()
	go func() { _ = b.Start(ctx) }() // while a trains
	var err error
	for s := a.Strategy(); err == nil; {
		err = s.Barrier(ctx)
	}
	fmt.Println(a.Over(err))
	s, _ := a.Next(ctx)
	fmt.Println("rank", s.Rank(), "of", s.Size())
	// Output:
	// true
	// rank 0 of 2
}

func ExampleWorkerNode_Train() {
	ctx := context.Background()
	meet := store.New(new(store.Memory))
	defer meet.Close()
	var all sync.WaitGroup
	for _, id := range []string{"a", "b"} {
		n := &dataparallel.WorkerNode{Store: meet, Worker: membership.Config{Job: "train", ID: id, Min: 2, Max: 8}} // or WorkerFromEnv
		weights := []float32{0}
		t := &dataparallel.Training{Goal: 10, Tensors: map[string]*tensor.Tensor{"weights": tensor.From(weights)}}
		t.Step = func(ctx context.Context, s *dataparallel.Strategy) error {
			grads := []float32{float32(s.Rank())} // of this rank's share of batch t.Completed
			err := s.AllReduceGradients(ctx, map[string]*tensor.Tensor{"weights": tensor.From(grads)})
			if err == nil {
				weights[0] -= grads[0]
			}
			return err
		}
		all.Go(func() {
			defer n.Close()
			err := n.Train(ctx, t)
			if id == "a" {
				fmt.Println(t.Completed, weights, err)
			}
		})
	}
	all.Wait()
	// Output: 10 [-5] <nil>
}

func ExampleWorkerNode_Checkpoint() {
	ctx := context.Background()
	meet := store.New(new(store.Memory))
	defer meet.Close()
	var all sync.WaitGroup
	for _, n := range workers(ctx, meet, "a", "b") {
		all.Go(func() {
			defer n.Close()
			err := n.Checkpoint(ctx, 7, "/ckpt/7", func() error { return nil }) // writes this worker's part
			newest, _ := n.Member().NewestCheckpoint(ctx)
			if n.Rank() == 0 {
				fmt.Println(newest.Epoch, newest.Path, err)
			}
			_ = n.Strategy().Shutdown(ctx)
		})
	}
	all.Wait()
	// Output: 7 /ckpt/7 <nil>
}
