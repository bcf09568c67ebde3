package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
)

// way is one way to move bytes from all ranks to rank 0, or a part of such a way that is a lower
// bound for others.
type way struct {
	name  string
	sizes func(bytes int) bool // the sizes to measure; nil means all
	open  func(r *rank, d *drill, bytes int) error
}

func gatherWay(name string) *way {
	if i := slices.IndexFunc(gatherWays, func(w way) bool { return w.name == name }); i >= 0 {
		return &gatherWays[i]
	}
	return nil
}

// The ways that others are compared with.
const (
	bareStar  = "bare barrier"
	bareShare = "bare: copy in, barrier"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

func small(bytes int) bool { return bytes < mib }

// gatherWays are the ways of muster and of the bare lower bounds. Between two gathers, all memory
// is returned to its owner.
var gatherWays = []way{
	{name: bareStar, sizes: small, open: func(r *rank, d *drill, _ int) error { d.call = r.star.barrier; return nil }},
	{name: "muster barrier", sizes: small, open: func(r *rank, d *drill, _ int) error {
		d.call = func() error { return r.groups[near].Barrier(context.Background()) }
		return nil
	}},
	{name: bareShare, open: openBareShare},
	{name: "allocated in the arena", open: tensorsWay(near, inArena, nothing)},
	{name: "allocated in the arena, read in place", open: tensorsWay(near, inArena, touched)},
	{name: "copied in", open: tensorsWay(near, ordinary, nothing)},
	{name: "copied in, copied out", open: tensorsWay(near, ordinary, copied)},
	{name: "over TCP", open: tensorsWay(far, ordinary, nothing)},
	{name: "over a directory", open: tensorsWay(files, ordinary, nothing)},
}

// room returns n bytes of memory that has been written to.
func room(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 1 << 10 {
		b[i] = 1
	}
	return b
}

// openBareShare is the lower bound of a gather through memory: all ranks but rank 0 copy to memory
// that rank 0 can read, and notify it.
func openBareShare(r *rank, d *drill, n int) error {
	arena, err := r.arena(d)
	if err != nil {
		return err
	}
	to, err := arena.Alloc(n)
	if err != nil {
		return err
	}
	d.after = append(d.after, func() error { arena.Free(to); return nil })
	from := room(n)
	d.call = func() error {
		if r.rank != 0 {
			copy(to, from)
		}
		return r.star.barrier()
	}
	return nil
}

func (r *rank) arena(d *drill) (*shm.Arena, error) {
	a, err := shm.NewArena(nil)
	if err == nil {
		d.after = append(d.after, a.Close)
	}
	return a, err
}

// files is where ranks assume that all have a common directory.
const files = far + 1

// gatherer opens a Gatherer. It is closed at the end of the drill.
func (r *rank) gatherer(d *drill, where int, arena *shm.Arena) (*gather.Gatherer, error) {
	g, o := r.groups[near], &gather.Options{Arena: arena}
	var err error
	switch where {
	case far:
		o.Listen = "127.0.0.1"
		if g, err = r.group(far); err != nil {
			return nil, err
		}
	case files:
		o.Dir = filepath.Join(r.dir, "gather")
	}
	ga, err := gather.Open(context.Background(), g, o)
	if err == nil {
		d.after = append(d.after, ga.Close)
	}
	return ga, err
}

// Where a rank's tensors are allocated.
const (
	inArena  = true // that of the gather
	ordinary = false
)

// allocator returns the arena for tensors, or nil for Go's memory.
func (r *rank) allocator(d *drill, arena bool) (*shm.Arena, error) {
	if !arena {
		return nil, nil
	}
	return r.arena(d)
}

// tensor returns a tensor of n bytes, whose first byte depends on the rank.
func (r *rank) tensor(d *drill, a *shm.Arena, n int) (t *tensor.Tensor, err error) {
	if a == nil {
		t, err = tensor.Wrap(room(n), tensor.F32, n/4)
	} else if t, err = tensor.NewIn(a, tensor.F32, n/4); err == nil {
		data := t.Data
		d.after = append(d.after, func() error { a.Free(data); return nil })
	}
	if err == nil {
		t.Data[0] = byte(r.rank)
	}
	return t, err
}

// use is what rank 0 does with the data that it receives from another rank.
type use func(data, room []byte)

func nothing([]byte, []byte)   {}
func copied(data, room []byte) { copy(room, data) }

func touched(data, room []byte) {
	sum := room[0]
	for i := 0; i < len(data); i += os.Getpagesize() {
		sum += data[i]
	}
	room[0] = sum
}

func tensorsWay(where int, arena bool, u use) func(*rank, *drill, int) error {
	return func(r *rank, d *drill, n int) error {
		a, err := r.allocator(d, arena)
		if err != nil {
			return err
		}
		t, err := r.tensor(d, a, n)
		if err != nil {
			return err
		}
		ga, err := r.gatherer(d, where, a)
		if err != nil {
			return err
		}
		var out []byte
		if r.rank == 0 {
			out = room(n)
		}
		d.call = func() error { return r.tensors(ga, t, u, out) }
		return nil
	}
}

// all returns all ranks.
func (r *rank) all() (list []int) {
	for i := range r.size {
		list = append(list, i)
	}
	return list
}

// tensors runs one gather, until rank 0 has used the result and released it.
func (r *rank) tensors(ga *gather.Gatherer, t *tensor.Tensor, u use, out []byte) error {
	res, err := gather.Tensors(context.Background(), ga, r.all(), t)
	if err != nil {
		return err
	}
	for rank, got := range res.Present() {
		if len(got.Data) != len(t.Data) || got.Data[0] != byte(rank) {
			return fmt.Errorf("rank %d: what came is not what it gave", rank)
		}
		if rank != 0 {
			u(got.Data, out)
		}
	}
	res.Release()
	return nil
}
