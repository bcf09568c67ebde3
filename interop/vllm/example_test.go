package vllm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"sync"
	"time"

	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// inGroup runs body on each of n ranks, here in one process. Any of them could be a Python process.
func inGroup(n int, body func(ctx context.Context, g *vllm.Group) error) {
	s := store.New(new(store.Memory))
	defer s.Close()
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() {
			ctx := context.Background()
			g, err := vllm.Join(ctx, vllm.Config{Rank: rank, Size: n, Store: s})
			if err != nil {
				log.Print(err)
				return
			}
			if err := errors.Join(body(ctx, g), g.Barrier(ctx), g.Close()); err != nil {
				log.Print(err)
			}
		})
	}
	wg.Wait()
}

// Rank 0 hosts: Python ranks call StatelessProcessGroup.create with this address, other Go ranks
// dial it.
func ExampleJoin() {
	ctx := context.Background()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	engine := new(store.Memory)
	srv := &store.Server{Engine: engine, Protocol: &tcpstore.Protocol{}}
	defer srv.Close()
	go func() { _ = srv.Serve(l) }()

	done := make(chan struct{})
	go func() { // another process
		defer close(done)
		s, err := store.Dial(ctx, l.Addr().String(), nil)
		if err != nil {
			log.Print(err)
			return
		}
		defer s.Close()
		g, err := vllm.Join(ctx, vllm.Config{Rank: 1, Size: 2, Store: s})
		if err != nil {
			log.Print(err)
			return
		}
		defer g.Close()
		if err := g.Barrier(ctx); err != nil {
			log.Print(err)
		}
	}()

	g, err := vllm.Join(ctx, vllm.Config{Rank: 0, Size: 2, Store: store.New(engine)})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	fmt.Println("rank", g.Rank(), "of", g.Size(), "met the others:", g.Barrier(ctx))
	<-done
	// Output: rank 0 of 2 met the others: <nil>
}

// NCCL's communicators begin like this: rank 0's ID is sent to every rank. vLLM's
// group.broadcast_obj(unique_id, src=0) does the same.
func ExampleBroadcastObj() {
	inGroup(3, func(ctx context.Context, g *vllm.Group) error {
		var id vllm.NcclUniqueID
		if g.Rank() == 0 {
			id = vllm.NcclUniqueID{0: 0xca, 1: 0xfe} // ncclGetUniqueId's
		}
		id, err := vllm.BroadcastObj(ctx, g, 0, id)
		if g.Rank() == 2 {
			fmt.Printf("% x\n", id[:4])
		}
		return err
	})
	// Output: ca fe 00 00
}

func ExampleAllGatherObj() {
	inGroup(3, func(ctx context.Context, g *vllm.Group) error {
		hosts, err := vllm.AllGatherObj(ctx, g, fmt.Sprintf("host-%d", g.Rank()))
		if g.Rank() == 1 {
			fmt.Println(hosts)
		}
		return err
	})
	// Output: [host-0 host-1 host-2]
}

func ExampleSendObj() {
	inGroup(2, func(ctx context.Context, g *vllm.Group) error {
		if g.Rank() == 0 {
			return vllm.SendObj(ctx, g, 1, vllm.Dict{{Key: "layers", Value: 32}, {Key: "dtype", Value: "bfloat16"}})
		}
		config, err := vllm.RecvObj[vllm.Dict](ctx, g, 0)
		layers, _ := config.Get("layers")
		fmt.Println(layers)
		return err
	})
	// Output: 32
}

func ExampleGroup_Send() {
	inGroup(2, func(ctx context.Context, g *vllm.Group) error {
		if g.Rank() == 0 {
			return g.Send(ctx, 1, tensor.From([]float32{1, 2, 3, 4}, 2, 2))
		}
		t, err := g.Recv(ctx, 0)
		fmt.Println(t)
		return err
	})
	// Output: F32[2,2]
}

func ExampleGroup_AllReduce() {
	inGroup(3, func(ctx context.Context, g *vllm.Group) error {
		sum, err := g.AllReduce(ctx, tensor.From([]int32{int32(g.Rank()), 10}, 2), vllm.Sum)
		if err != nil || g.Rank() > 0 {
			return err
		}
		numbers, err := tensor.View[int32](sum)
		fmt.Println(numbers)
		return err
	})
	// Output: [3 30]
}

// A barrier that cannot be passed returns an error that names the missing ranks, the same on every
// Go rank.
func ExampleGroup_Barrier() {
	s := store.New(new(store.Memory))
	defer s.Close()
	ctx := context.Background()
	absent, err := vllm.Join(ctx, vllm.Config{Rank: 1, Size: 2, Store: s})
	if err != nil {
		log.Fatal(err)
	}
	defer absent.Close()
	g, err := vllm.Join(ctx, vllm.Config{Rank: 0, Size: 2, Store: s})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	failure, _ := errors.AsType[*pgroup.RankError](g.Barrier(ctx))
	fmt.Println("missing:", failure.Missing)
	// Output: missing: [1]
}

// One of several groups in a store, with its own prefix.
func ExampleJoin_shared() {
	ctx := context.Background()
	s := store.New(new(store.Memory))
	defer s.Close()
	g, err := vllm.Join(ctx, vllm.Config{Rank: 0, Size: 4, Store: store.Prefix(s, "tp/"), Shared: true})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	fmt.Println(g.Rank(), g.Size()) // it has not waited for the others
	// Output: 0 4
}
