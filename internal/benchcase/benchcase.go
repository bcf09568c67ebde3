// Package benchcase has the operations of a group and of its store that are measured:
// by `muster bench` on the machine of a user, and by the program in bench beside other systems.
package benchcase

import (
	"context"
	"fmt"
	"slices"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// Case is an operation to measure. Every rank of the group calls it, and as often as the others.
type Case struct {
	Name  string
	About string // for a help text

	// Timed reports whether the times of a rank count.
	Timed func(rank int) bool

	// Sized: the time depends on the size of the object.
	Sized bool

	// Independent: the ranks do not wait for each other, so their rates add up.
	Independent bool

	// Run is one call of the operation. A wrong result is an error.
	Run func(ctx context.Context, r *Rank) error
}

// Rank is what one rank measures with.
type Rank struct {
	Group  *pgroup.Group
	Object []byte // what is sent or set; every rank has one of this size

	// Store and Key are for the cases set and get.
	Store *store.Store
	Key   string
}

// All are the cases, in the order in which they are measured.
var All = []Case{
	{Name: "barrier", About: "all ranks", Timed: everyRank, Run: barrier},
	{Name: "all-gather", About: "an object of each rank to all ranks", Sized: true, Timed: everyRank, Run: allGather},
	{Name: "broadcast", About: "rank 0's object to the others, who are timed", Sized: true, Timed: otherRanks, Run: broadcast},
	{Name: "ping-pong", About: "an object from rank 0 to rank 1 and back", Sized: true, Timed: rank0, Run: pingPong},
	{
		Name: "set", About: "each rank its own key, over a connection to the launcher",
		Sized: true, Independent: true, Timed: everyRank, Run: set,
	},
	{Name: "get", About: "the same, after the set", Sized: true, Independent: true, Timed: everyRank, Run: get},
}

// Names are those of all cases.
func Names() (names []string) {
	for _, c := range All {
		names = append(names, c.Name)
	}
	return names
}

// Find returns the case of that name, and nil if there is none.
func Find(name string) *Case {
	i := slices.IndexFunc(All, func(c Case) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &All[i]
}

func everyRank(int) bool       { return true }
func otherRanks(rank int) bool { return rank > 0 }
func rank0(rank int) bool      { return rank == 0 }

func barrier(ctx context.Context, r *Rank) error { return r.Group.Barrier(ctx) }

func allGather(ctx context.Context, r *Rank) error {
	got, err := pgroup.AllGather(ctx, r.Group, r.Object)
	return r.check(err, len(got) == r.Group.Size() && len(got[len(got)-1]) == len(r.Object))
}

func broadcast(ctx context.Context, r *Rank) error {
	got, err := pgroup.Broadcast(ctx, r.Group, 0, r.Object)
	return r.check(err, len(got) == len(r.Object))
}

func pingPong(ctx context.Context, r *Rank) error {
	var got []byte
	var err error
	switch r.Group.Rank() {
	case 0:
		if err = pgroup.Send(ctx, r.Group, 1, r.Object); err == nil {
			got, err = pgroup.Recv[[]byte](ctx, r.Group, 1)
		}
	case 1:
		if got, err = pgroup.Recv[[]byte](ctx, r.Group, 0); err == nil {
			err = pgroup.Send(ctx, r.Group, 0, got)
		}
	default:
		return nil
	}
	return r.check(err, len(got) == len(r.Object))
}

func set(ctx context.Context, r *Rank) error { return r.Store.Set(ctx, r.Key, r.Object, nil) }

func get(ctx context.Context, r *Rank) error {
	got, err := r.Store.Get(ctx, r.Key)
	return r.check(err, len(got) == len(r.Object))
}

// check makes a wrong result an error.
func (r *Rank) check(err error, right bool) error {
	if err == nil && !right {
		return fmt.Errorf("rank %d got something else than was sent", r.Group.Rank())
	}
	return err
}
