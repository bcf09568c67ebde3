package collective_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// connected runs body on each of n ranks, here in one process. A real program calls pgroup.FromEnv
// and Create instead.
func connected(n int, body func(ctx context.Context, rank int, c *collective.Comm) error) {
	s := store.New(new(store.Memory))
	defer s.Close()
	var ranks sync.WaitGroup
	for rank := range n {
		ranks.Go(func() {
			ctx := context.Background()
			g, err := pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: n, Store: s})
			if err != nil {
				log.Print(err)
				return
			}
			defer g.Close()
			c, err := collective.Open(ctx, g, nil)
			if err != nil {
				log.Print(err)
				return
			}
			if err := errors.Join(body(ctx, rank, c), c.Shutdown(ctx)); err != nil {
				log.Print(err)
			}
		})
	}
	ranks.Wait()
}

func ExampleAllReduce() {
	connected(3, func(ctx context.Context, rank int, c *collective.Comm) error {
		x := []int64{int64(rank), 1}
		if err := collective.AllReduce(ctx, c, collective.Sum, x); err != nil {
			return err
		}
		if rank == 2 {
			fmt.Println(x)
		}
		return nil
	})
	// Output: [3 3]
}

// Gradients of several layers are reduced as if they were one slice.
func ExampleAllReduceAll() {
	connected(2, func(ctx context.Context, rank int, c *collective.Comm) error {
		grads := [][]float32{{1, 2, 3}, {float32(rank)}, {10, 20}}
		if err := collective.AllReduceAll(ctx, c, collective.Avg, grads); err != nil {
			return err
		}
		if rank == 1 {
			fmt.Println(grads)
		}
		return nil
	})
	// Output: [[1 2 3] [0.5] [10 20]]
}

func ExampleReduce() {
	connected(3, func(ctx context.Context, rank int, c *collective.Comm) error {
		x := []float64{float64(rank), float64(-rank)}
		if err := collective.Reduce(ctx, c, 1, collective.Max, x); err != nil {
			return err
		}
		if rank == 1 {
			fmt.Println(x)
		}
		return nil
	})
	// Output: [2 0]
}

func ExampleReduceScatter() {
	connected(2, func(ctx context.Context, rank int, c *collective.Comm) error {
		src := []int64{1, 2, 30, 40} // two for each rank
		dst := make([]int64, 2)
		if err := collective.ReduceScatter(ctx, c, collective.Sum, dst, src); err != nil {
			return err
		}
		if rank == 1 {
			fmt.Println(dst)
		}
		return nil
	})
	// Output: [60 80]
}

func ExampleAllGather() {
	connected(3, func(ctx context.Context, rank int, c *collective.Comm) error {
		all := make([]int32, 3)
		if err := collective.AllGather(ctx, c, all, []int32{int32(rank * rank)}); err != nil {
			return err
		}
		if rank == 0 {
			fmt.Println(all)
		}
		return nil
	})
	// Output: [0 1 4]
}

func ExampleBroadcast() {
	connected(3, func(ctx context.Context, rank int, c *collective.Comm) error {
		weights := make([]float32, 2)
		if rank == 1 {
			weights = []float32{0.25, 0.75}
		}
		if err := collective.Broadcast(ctx, c, 1, weights); err != nil {
			return err
		}
		if rank == 2 {
			fmt.Println(weights)
		}
		return nil
	})
	// Output: [0.25 0.75]
}

func ExampleAllToAll() {
	connected(3, func(ctx context.Context, rank int, c *collective.Comm) error {
		// element i is for rank i
		src := []int32{int32(10 * rank), int32(10*rank + 1), int32(10*rank + 2)}
		dst := make([]int32, 3)
		if err := collective.AllToAll(ctx, c, dst, src); err != nil {
			return err
		}
		if rank == 2 {
			fmt.Println(dst)
		}
		return nil
	})
	// Output: [2 12 22]
}

func ExampleSend() {
	connected(3, func(ctx context.Context, rank int, c *collective.Comm) error {
		switch rank { // rank 1 does not take part
		case 0:
			return collective.Send(ctx, c, 2, []float32{1, 2, 3})
		case 2:
			x := make([]float32, 3)
			defer fmt.Println(x)
			return collective.Recv(ctx, c, 0, x)
		}
		return nil
	})
	// Output: [1 2 3]
}

// Gradients of one layer are reduced while those of the next are computed.
func ExampleComm_Start() {
	connected(2, func(ctx context.Context, rank int, c *collective.Comm) error {
		layers := [][]float32{{1, 2}, {3}, {4, 5}}
		var pending []*collective.Pending
		for _, grad := range layers {
			pending = append(pending, c.Start(ctx, func(ctx context.Context, c *collective.Comm) error {
				return collective.AllReduce(ctx, c, collective.Sum, grad)
			}))
		}
		for _, p := range pending {
			if err := p.Wait(ctx); err != nil {
				return err
			}
		}
		if rank == 0 {
			fmt.Println(layers)
		}
		return nil
	})
	// Output: [[2 4] [6] [8 10]]
}
