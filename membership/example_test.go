package membership_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// job returns the configuration of a worker of a job of two.
func job(id string) membership.Config {
	return membership.Config{Job: "train", ID: id, Addr: "host-" + id + ":7000", Min: 2}
}

// members returns workers a and b of a job in a store of this process, and their view. Error
// handling is omitted.
func members(ctx context.Context) (a, b *membership.Member, va, vb membership.View) {
	s := store.New(new(store.Memory)) // or store.Open(ctx, "muster://host:7070")
	a, _ = membership.Join(ctx, s, job("a"))
	b, _ = membership.Join(ctx, s, job("b"))
	va, _ = a.Next(ctx)
	vb, _ = b.Next(ctx)
	return a, b, va, vb
}

func ExampleJoin() {
	ctx := context.Background()
	s := store.New(new(store.Memory))
	m, err := membership.Join(ctx, s, job("a"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	_, err = membership.Join(ctx, s, job("a"))
	fmt.Println(err)
	// Output: membership: join of worker "a" in job "train": id in use: by worker "a" at host-a:7000
}

func ExampleMember_Next() {
	ctx := context.Background()
	s := store.New(new(store.Memory))
	a, _ := membership.Join(ctx, s, job("a"))
	defer a.Close()

	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err := a.Next(short)
	fmt.Println(err)

	b, _ := membership.Join(ctx, s, job("b"))
	defer b.Close()
	v, _ := b.Next(ctx)
	fmt.Println("rank", v.Rank, "of", v.Workers)
	// Output:
	// membership: next of worker "a" in job "train": context deadline exceeded: 1 of 2 workers are registered: "a" at host-a:7000
	// rank 1 of ["a" at host-a:7000 "b" at host-b:7000]
}

func ExampleView_Config() {
	ctx := context.Background()
	a, b, va, vb := members(ctx)
	defer a.Close()
	defer b.Close()
	var ranks sync.WaitGroup
	for _, v := range []membership.View{va, vb} {
		ranks.Go(func() {
			g, err := pgroup.Create(v.Context(ctx), v.Config())
			if err != nil {
				fmt.Println(err)
				return
			}
			defer g.Close()
			sum, _ := pgroup.AllReduce(ctx, g, pgroup.Sum, 1)
			if g.Rank() == 0 {
				fmt.Println(sum, "of", g.Size())
			}
			_ = g.Shutdown(ctx)
		})
	}
	ranks.Wait()
	// Output: [2] of 2
}

func ExampleView_Over() {
	ctx := context.Background()
	a, b, va, vb := members(ctx)
	defer a.Close()
	go func() { // the other worker, which is killed
		g, _ := pgroup.Create(ctx, vb.Config())
		_ = g.Close()
		_ = b.Close()
	}()
	err := func() error {
		g, err := pgroup.Create(va.Context(ctx), va.Config())
		if err != nil {
			return err
		}
		defer g.Close()
		return g.Barrier(va.Context(ctx))
	}()
	fmt.Println(va.Over(err), va.Over(errors.New("the loss is NaN")))
	// Output: true false
}

func ExampleMember_StartCheckpoint() {
	ctx := context.Background()
	a, b, _, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	started, _ := a.StartCheckpoint(ctx, 7, "/ckpt/7")
	for _, m := range []*membership.Member{a, b} {
		c, _ := m.Checkpoint(ctx, started.ID) // which a has sent to the others, by Broadcast
		complete, _ := c.End(ctx)
		fmt.Println(c.Path, complete)
	}
	// Output:
	// /ckpt/7 false
	// /ckpt/7 true
}

func ExampleMember_NewestCheckpoint() {
	ctx := context.Background()
	a, b, _, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	for epoch, savers := range map[int64][]*membership.Member{7: {a, b}, 8: {a}} {
		started, _ := a.StartCheckpoint(ctx, epoch, fmt.Sprint("/ckpt/", epoch))
		for _, m := range savers {
			c, _ := m.Checkpoint(ctx, started.ID)
			_, _ = c.End(ctx)
		}
	}
	c, err := b.NewestCheckpoint(ctx) // b has not ended that of epoch 8
	fmt.Println(c.Path, err)
	// Output: /ckpt/7 <nil>
}

func ExampleRemove() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	defer b.Close() // if its process had been killed, this would not run
	_ = membership.Remove(ctx, view.Store, "train", "b")
	over := view.Context(ctx)
	<-over.Done()
	fmt.Println(context.Cause(over))
	// Output: membership: view 1 of job "train" ended on rank 0 of 2, worker "a": lost rank 1, worker "b" at host-b:7000
}
