package pgroup_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// inGroup runs body on each of n ranks, here in one process. A real program calls FromEnv and
// Create instead.
func inGroup(n int, body func(ctx context.Context, g *pgroup.Group) error) {
	withConfig(n, pgroup.Config{}, body)
}

func withConfig(n int, cfg pgroup.Config, body func(ctx context.Context, g *pgroup.Group) error) {
	s := store.New(new(store.Memory))
	defer s.Close()
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() {
			ctx := context.Background()
			own := cfg
			own.Rank, own.Size, own.Store = rank, n, s
			g, err := pgroup.Create(ctx, own)
			if err != nil {
				log.Print(err)
				return
			}
			if err := body(ctx, g); err != nil {
				log.Print(err)
			}
			_ = g.Shutdown(ctx)
		})
	}
	wg.Wait()
}

// Rank 0 hosts at an address that the others connect to.
func ExampleCreate() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	var wg sync.WaitGroup
	for rank := range 3 {
		wg.Go(func() {
			cfg := pgroup.Config{Rank: rank, Size: 3, Address: l.Addr().String()}
			if rank == 0 {
				cfg.Address, cfg.Listener = "", l
			}
			g, err := pgroup.Create(context.Background(), cfg)
			if err != nil {
				log.Print(err)
				return
			}
			defer g.Close()
			if err := g.Shutdown(context.Background()); err == nil && rank == 0 {
				fmt.Println("all of", g.Size(), "came and went")
			}
		})
	}
	wg.Wait()
	// Output: all of 3 came and went
}

func ExampleFromEnv() {
	launched := pgroup.Config{Rank: 1, Size: 4, Address: "127.0.0.1:29500"}
	for _, kv := range launched.Environ() { // a launcher sets this for the process that it starts
		name, value, _ := strings.Cut(kv, "=")
		_ = os.Setenv(name, value)
		defer os.Unsetenv(name)
	}
	cfg, err := pgroup.FromEnv()
	fmt.Println(cfg.Rank, "of", cfg.Size, "at", cfg.Address, err)
	// Output: 1 of 4 at 127.0.0.1:29500 <nil>
}

func ExampleBroadcast() {
	inGroup(4, func(ctx context.Context, g *pgroup.Group) error {
		var id [128]byte // like NCCL's
		if g.Rank() == 0 {
			id[0] = 42
		}
		id, err := pgroup.Broadcast(ctx, g, 0, id)
		if g.Rank() == 3 {
			fmt.Println(id[0])
		}
		return err
	})
	// Output: 42
}

func ExampleGather() {
	type layer struct {
		Name  string
		Shape []int
	}
	inGroup(3, func(ctx context.Context, g *pgroup.Group) error {
		layers, err := pgroup.Gather(ctx, g, 0, layer{fmt.Sprint("block.", g.Rank()), []int{g.Rank(), 4}})
		if g.Rank() == 0 {
			fmt.Println(layers)
		}
		return err
	})
	// Output: [{block.0 [0 4]} {block.1 [1 4]} {block.2 [2 4]}]
}

func ExampleAllGather() {
	inGroup(4, func(ctx context.Context, g *pgroup.Group) error {
		ranks, err := pgroup.AllGather(ctx, g, g.Rank())
		if g.Rank() == 2 {
			fmt.Println(ranks)
		}
		return err
	})
	// Output: [0 1 2 3]
}

func ExampleScatter() {
	inGroup(3, func(ctx context.Context, g *pgroup.Group) error {
		var shards []string
		if g.Rank() == 0 {
			shards = []string{"a–h", "i–p", "q–z"}
		}
		mine, err := pgroup.Scatter(ctx, g, 0, shards)
		if g.Rank() == 1 {
			fmt.Println(mine)
		}
		return err
	})
	// Output: i–p
}

func ExampleAllToAll() {
	inGroup(3, func(ctx context.Context, g *pgroup.Group) error {
		out := []string{"to 0", "to 1", "to 2"}
		for i := range out {
			out[i] = fmt.Sprint(g.Rank(), " ", out[i])
		}
		in, err := pgroup.AllToAll(ctx, g, out)
		if g.Rank() == 1 {
			fmt.Printf("%q\n", in)
		}
		return err
	})
	// Output: ["0 to 1" "1 to 1" "2 to 1"]
}

func ExampleAllReduce() {
	inGroup(4, func(ctx context.Context, g *pgroup.Group) error {
		loss, err := pgroup.AllReduce(ctx, g, pgroup.Avg, float64(g.Rank()))
		if g.Rank() == 0 {
			fmt.Println(loss[0])
		}
		return err
	})
	// Output: 1.5
}

func ExampleSend() {
	inGroup(2, func(ctx context.Context, g *pgroup.Group) error {
		if g.Rank() == 0 {
			return pgroup.Send(ctx, g, 1, "hello")
		}
		text, err := pgroup.Recv[string](ctx, g, 0)
		fmt.Println(text)
		return err
	})
	// Output: hello
}

func ExampleRecv() {
	inGroup(1, func(ctx context.Context, g *pgroup.Group) error {
		if err := pgroup.Send(ctx, g, 0, "three"); err != nil {
			return err
		}
		if _, err := pgroup.Recv[int](ctx, g, 0); err != nil {
			fmt.Println(err)
		}
		text, err := pgroup.Recv[string](ctx, g, 0) // it is still there
		fmt.Println(text)
		return err
	})
	// Output:
	// pgroup: group "world": rank 0 sent string, rank 0 wants int
	// three
}

func ExampleGroup_Barrier() {
	inGroup(2, func(ctx context.Context, g *pgroup.Group) error {
		if g.Rank() == 0 {
			fmt.Println("before")
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() == 1 {
			fmt.Println("after")
		}
		return nil
	})
	// Output:
	// before
	// after
}

func ExampleGroup_Sub() {
	inGroup(4, func(ctx context.Context, g *pgroup.Group) error {
		if g.Rank() == 3 {
			return nil // not a member, and does not call
		}
		trainers, err := g.Sub(ctx, "trainers", 0, 1, 2)
		if err != nil {
			return err
		}
		defer trainers.Close()
		sum, err := pgroup.AllReduce(ctx, trainers, pgroup.Sum, 6)
		if g.Rank() == 0 {
			fmt.Println(trainers.Name(), trainers.Size(), sum)
		}
		return errors.Join(err, trainers.Shutdown(ctx))
	})
	// Output: world/trainers 3 [18]
}

func ExampleGroup_Split() {
	inGroup(4, func(ctx context.Context, g *pgroup.Group) error {
		pair, err := g.Split(ctx, g.Rank()/2, g.Rank()) // 0 and 1, 2 and 3
		if err != nil {
			return err
		}
		defer pair.Close()
		got, err := pgroup.AllGather(ctx, pair, g.Rank())
		if g.Rank() == 3 {
			fmt.Println(pair.Rank(), got)
		}
		return errors.Join(err, pair.Shutdown(ctx))
	})
	// Output: 1 [2 3]
}

func ExampleGroup_Shrink() {
	inGroup(3, func(ctx context.Context, g *pgroup.Group) error {
		if g.Rank() == 1 {
			return g.Close() // as if its process had ended
		}
		rest, err := g.Shrink(ctx)
		if err != nil {
			return err
		}
		defer rest.Close()
		ranks, err := pgroup.AllGather(ctx, rest, g.Rank())
		if rest.Rank() == 0 {
			fmt.Println(ranks)
		}
		return errors.Join(err, rest.Shutdown(ctx))
	})
	// Output: [0 2]
}

func ExampleGroup_Channel() {
	inGroup(2, func(ctx context.Context, g *pgroup.Group) error {
		done := make(chan error)
		checkpoint := g.Channel("checkpoint")
		// beside the training
		go func() { done <- errors.Join(checkpoint.Barrier(ctx), checkpoint.Close()) }()
		_, err := pgroup.AllReduce(ctx, g, pgroup.Sum, 1.0)
		err = errors.Join(err, <-done)
		if g.Rank() == 0 {
			fmt.Println(err)
		}
		return nil
	})
	// Output: <nil>
}

func ExampleGroup_Store() {
	inGroup(2, func(ctx context.Context, g *pgroup.Group) error {
		if g.Rank() == 0 {
			return g.Store().Set(ctx, "vocabulary", []byte("32000"), nil)
		}
		v, err := g.Store().Wait(ctx, "vocabulary")
		if err == nil {
			fmt.Printf("%s\n", v[0])
		}
		return err
	})
	// Output: 32000
}

func ExampleGroup_Members() {
	inGroup(4, func(ctx context.Context, g *pgroup.Group) error {
		members, err := g.Members(ctx)
		if err == nil && g.Rank() == 3 {
			fmt.Println(len(members), "ranks on", g.NodeCount(), "node; local rank", g.LocalRank(), g.SameNode(0))
		}
		return err
	})
	// Output: 4 ranks on 1 node; local rank 3 true
}

func ExampleGroup_Expired() {
	inGroup(1, func(ctx context.Context, g *pgroup.Group) error {
		n, err := g.Expired(ctx)
		fmt.Println(n, "messages expired unread")
		return err
	})
	// Output: 0 messages expired unread
}

// Rank 1 takes as long as it needs, while it says how far it is; if it hung, the others would get an
// error that names it, at most a minute later.
func ExampleGroup_Phase() {
	load := func(shard int64) {}
	cfg := pgroup.Config{Stall: time.Minute}
	withConfig(2, cfg, func(ctx context.Context, g *pgroup.Group) error {
		if g.Rank() == 1 {
			p := g.Phase("loading shards", 48)
			defer p.End()
			for shard := range int64(48) {
				load(shard)
				p.Done(shard + 1)
			}
		}
		err := g.Barrier(ctx)
		if g.Rank() == 0 {
			fmt.Println("loaded", err)
		}
		return err
	})
	// Output: loaded <nil>
}

func ExampleGroup_PhaseWithStall() {
	load := func(int64) error { return nil }
	inGroup(1, func(_ context.Context, g *pgroup.Group) error {
		p := g.PhaseWithStall("loading shards", 48, 15*time.Second)
		defer p.End()
		for shard := range int64(48) {
			if err := load(shard); err != nil {
				return err
			}
			p.Done(shard + 1)
		}
		fmt.Println("loaded")
		return nil
	})
	// Output: loaded
}

func ExampleGroup_Shutdown() {
	inGroup(2, func(ctx context.Context, g *pgroup.Group) error {
		err := g.Shutdown(ctx) // no rank waits for another one from here on
		if g.Rank() == 0 {
			fmt.Println(err, errors.Is(g.Barrier(ctx), pgroup.ErrClosed))
		}
		return nil
	})
	// Output: <nil> true
}

func ExampleRankError() {
	inGroup(4, func(ctx context.Context, g *pgroup.Group) error {
		if g.Rank() >= 2 {
			return nil // they forgot the call
		}
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		err := g.Barrier(ctx)
		if re, ok := errors.AsType[*pgroup.RankError](err); ok && g.Rank() == 0 {
			fmt.Println("missing", re.Missing, "deadline", errors.Is(err, context.DeadlineExceeded))
		}
		return nil
	})
	// Output: missing [2 3] deadline true
}
