package main

import (
	"context"
	"fmt"

	"github.com/muster-pg/muster/pgroup"
)

// benchCase is something to measure. op is called on every rank, as often on each.
type benchCase struct {
	name     string
	about    string
	measured func(rank int) bool // whose times count
	sized    bool                // what it takes depends on the size of an object
	apart    bool                // the ranks do not wait for each other: their rates add up
	op       func(ctx context.Context, b *benchProcess) error
}

func everyRank(int) bool   { return true }
func receivers(r int) bool { return r > 0 }
func root(r int) bool      { return r == 0 }

var benchCases = []benchCase{
	{name: "barrier", about: "all ranks", measured: everyRank, op: func(ctx context.Context, b *benchProcess) error {
		return b.group.Barrier(ctx)
	}},
	{name: "all-gather", about: "an object of each rank to all ranks", sized: true, measured: everyRank, op: func(ctx context.Context, b *benchProcess) error {
		got, err := pgroup.AllGather(ctx, b.group, b.object)
		return b.check(err, len(got) == b.group.Size() && len(got[len(got)-1]) == len(b.object))
	}},
	{name: "broadcast", about: "rank 0's object to the others, who are timed", sized: true, measured: receivers, op: func(ctx context.Context, b *benchProcess) error {
		got, err := pgroup.Broadcast(ctx, b.group, 0, b.object)
		return b.check(err, len(got) == len(b.object))
	}},
	{name: "ping-pong", about: "an object from rank 0 to rank 1 and back", sized: true, measured: root, op: pingPong},
	{name: "set", about: "each rank its own key, over a connection to the launcher", sized: true, measured: everyRank, apart: true, op: func(ctx context.Context, b *benchProcess) error {
		return b.store.Set(ctx, b.key, b.object, nil)
	}},
	{name: "get", about: "the same, after the set", sized: true, measured: everyRank, apart: true, op: func(ctx context.Context, b *benchProcess) error {
		got, err := b.store.Get(ctx, b.key)
		return b.check(err, len(got) == len(b.object))
	}},
}

// pingPong is a round trip, as rank 0 sees it.
func pingPong(ctx context.Context, b *benchProcess) error {
	var got []byte
	var err error
	switch b.group.Rank() {
	case 0:
		if err = pgroup.Send(ctx, b.group, 1, b.object); err == nil {
			got, err = pgroup.Recv[[]byte](ctx, b.group, 1)
		}
	case 1:
		if got, err = pgroup.Recv[[]byte](ctx, b.group, 0); err == nil {
			err = pgroup.Send(ctx, b.group, 0, got)
		}
	default:
		return nil
	}
	return b.check(err, len(got) == len(b.object))
}

// check makes a wrong result an error.
func (b *benchProcess) check(err error, right bool) error {
	if err == nil && !right {
		return fmt.Errorf("rank %d got something else than was sent", b.group.Rank())
	}
	return err
}

func benchCaseNames() (names []string) {
	for _, c := range benchCases {
		names = append(names, c.name)
	}
	return names
}
