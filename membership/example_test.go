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

func ExampleMember_Leave() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	_ = b.Leave(ctx)
	over := view.Context(ctx)
	<-over.Done()
	fmt.Println(context.Cause(over))
	// Output: membership: view 1 of job "train" ended on rank 0 of 2, worker "a": left by rank 1, worker "b" at host-b:7000
}

func ExampleMember_Close() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	_ = b.Close() // without a Leave
	over := view.Context(ctx)
	<-over.Done()
	fmt.Println(errors.Is(context.Cause(over), pgroup.ErrLost))
	_, err := b.Next(ctx)
	fmt.Println(err)
	// Output:
	// true
	// membership: next of worker "b" (rank 1) in job "train": closed
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

func ExampleView_Context() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	within := view.Context(ctx)
	fmt.Println(within.Err())
	_ = b.Close()
	<-within.Done()
	fmt.Println(errors.Is(context.Cause(within), membership.ErrOver))
	// Output:
	// <nil>
	// true
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

func ExampleView_Size() {
	a, b, view, _ := members(context.Background())
	defer a.Close()
	defer b.Close()
	fmt.Println(view.Size())
	// Output: 2
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

func ExampleMember_Checkpoint() {
	ctx := context.Background()
	a, b, _, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	_, err := a.Checkpoint(ctx, "7-X")
	fmt.Println(errors.Is(err, membership.ErrNotFound))
	// Output: true
}

func ExampleCheckpoint_End() {
	ctx := context.Background()
	a, b, _, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	c, _ := a.StartCheckpoint(ctx, 7, "/ckpt/7")
	complete, err := c.End(ctx)
	fmt.Println(complete, err)
	// Output: false <nil>
}

func ExampleCheckpoint_Missing() {
	ctx := context.Background()
	a, b, _, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	c, _ := a.StartCheckpoint(ctx, 7, "/ckpt/7")
	_, _ = c.End(ctx)
	missing, _ := c.Missing(ctx)
	fmt.Println(missing)
	// Output: ["b" at host-b:7000]
}

func ExampleCheckpoint_Wait() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	c, _ := a.StartCheckpoint(ctx, 7, "/ckpt/7")
	_, _ = c.End(ctx)
	_ = b.Leave(ctx) // before it has saved its part
	err := c.Wait(view.Context(ctx))
	fmt.Println(view.Over(err))
	// Output: true
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

func ExampleView_Exclude() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	_ = view.Exclude(ctx, 1) // b, for example because no other worker can connect to it
	_, err := b.Next(ctx)
	fmt.Println(errors.Is(err, membership.ErrExcluded))
	// Output: true
}

func ExampleView_Finish() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	before, _ := view.Finished(ctx)
	_ = view.Finish(ctx)
	after, _ := view.Finished(ctx)
	fmt.Println(before, after)
	// Output: false true
}

func ExampleView_Finished() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	finished, err := view.Finished(ctx)
	fmt.Println(finished, err)
	// Output: false <nil>
}

func ExampleMember_WaitFinished() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	go func() { _ = view.Finish(ctx) }() // on another worker
	fmt.Println(b.WaitFinished(ctx, view))
	// Output: <nil>
}

func ExampleView_Newcomers() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	fmt.Println(view.Newcomers(membership.View{}), view.Newcomers(view))
	// Output: [0 1] []
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

func ExampleFinishedRuns() {
	ctx := context.Background()
	a, b, view, _ := members(ctx)
	defer a.Close()
	defer b.Close()
	before, _ := membership.FinishedRuns(ctx, view.Store, "train")
	_ = view.Finish(ctx)
	now, _ := membership.FinishedRuns(ctx, view.Store, "train")
	fmt.Println(len(before), len(now))
	// Output: 0 1
}
