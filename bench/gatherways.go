package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	open  func(m *gatherer, d *drill, bytes int) error
}

func gatherWay(name string) *way {
	if i := slices.IndexFunc(gatherWays, func(w way) bool { return w.name == name }); i >= 0 {
		return &gatherWays[i]
	}
	return nil
}

// The ways that others are compared with.
const (
	oneCopy   = "memcpy, 1 rank alone"
	allCopies = "memcpy, givers at once"
	bareStar  = "bare barrier"
	bareShare = "bare: copy in, barrier"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

func large(bytes int) bool { return bytes >= mib }
func small(bytes int) bool { return bytes < mib }

// gatherWays are the ways of muster and of the bare lower bounds. Between two gathers, all memory
// is returned to its owner.
var gatherWays = []way{
	{name: bareStar, sizes: small, open: func(m *gatherer, d *drill, _ int) error { d.call = m.star.barrier; return nil }},
	{name: "muster barrier", sizes: small, open: openBarrier},
	{name: "muster barriers, one after the other", sizes: small, open: chained(openBarrier)},
	{name: oneCopy, sizes: large, open: func(m *gatherer, d *drill, n int) error { return m.openCopy(d, n, m.rank == 0, 1) }},
	{name: "memcpy of all, by rank 0", sizes: large, open: func(m *gatherer, d *drill, n int) error { return m.openCopy(d, n, m.rank == 0, m.size-1) }},
	{name: allCopies, sizes: large, open: openCopies},
	{name: bareShare, open: openBareShare},
	{name: "born in the arena", open: tensorsWay(near, born, nothing)},
	{name: "born, one after the other", sizes: small, open: chained(tensorsWay(near, born, nothing))},
	{name: "born, read in place", open: tensorsWay(near, born, touched)},
	{name: "copied in", open: tensorsWay(near, ordinary, nothing)},
	{name: "copied in, read in place", open: tensorsWay(near, ordinary, touched)},
	{name: "copied in, copied out", open: tensorsWay(near, ordinary, copied)},
	{name: "copied in, fresh segments", sizes: large, open: func(m *gatherer, d *drill, n int) error { return m.openFresh(d, n, true) }},
	{name: "the first gather of all", sizes: small, open: func(m *gatherer, d *drill, n int) error { return m.openFresh(d, n, false) }},
	{name: "over TCP", open: tensorsWay(far, ordinary, nothing)},
	{name: "over a directory", open: tensorsWay(files, ordinary, nothing)},
	{name: mapWays[0], sizes: never, open: mapsWay(near, born)},
	{name: mapWays[1], sizes: never, open: mapsWay(near, ordinary)},
	{name: mapWays[2], sizes: never, open: mapsWay(far, ordinary)},
	{name: fileWays[0], sizes: never, open: func(m *gatherer, d *drill, n int) error { return m.openWrite(d, n, tmpfs) }},
	{name: fileWays[1], sizes: never, open: func(m *gatherer, d *drill, n int) error { return m.openConcatTo(d, n, tmpfs) }},
	{name: fileWays[2], sizes: never, open: func(m *gatherer, d *drill, n int) error { return m.openWrite(d, n, m.dir) }},
	{name: fileWays[3], sizes: never, open: func(m *gatherer, d *drill, n int) error { return m.openConcatTo(d, n, m.dir) }},
}

// mapWays are gathers of many tensors, and fileWays write the gathered tensors to a file. They have
// sizes of their own.
var (
	mapWays  = []string{"map, born in the arena", "map, copied in", "map, over TCP"}
	fileWays = []string{"write to tmpfs", "ConcatTo, tmpfs", "write to disk", "ConcatTo, disk"}
)

func never(int) bool { return false }

// tmpfs is a directory whose files are in memory.
const tmpfs = "/dev/shm"

func openBarrier(m *gatherer, d *drill, _ int) error {
	d.call = func() error { return m.near.Barrier(context.Background()) }
	return nil
}

// room returns n bytes of memory that has been written to.
func room(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 1 << 10 {
		b[i] = 1
	}
	return b
}

// openCopy copies n bytes the given number of times on the ranks for which here is true.
func (m *gatherer) openCopy(d *drill, n int, here bool, times int) error {
	if !here {
		d.call = func() error { return nil }
		return nil
	}
	from, to := room(n), room(n)
	d.call = func() error {
		for range times {
			copy(to, from)
		}
		return nil
	}
	return nil
}

func openCopies(m *gatherer, d *drill, n int) error {
	if err := m.openCopy(d, n, m.rank != 0, 1); err != nil {
		return err
	}
	work := d.call
	d.call = func() error { return errors.Join(work(), m.star.barrier()) }
	return nil
}

// openBareShare is the lower bound of a gather through memory: all ranks but rank 0 copy to memory
// that rank 0 can read, and notify it.
func openBareShare(m *gatherer, d *drill, n int) error {
	arena, err := m.arena(d)
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
		if m.rank != 0 {
			copy(to, from)
		}
		return m.star.barrier()
	}
	return nil
}

func (m *gatherer) arena(d *drill) (*shm.Arena, error) {
	a, err := shm.NewArena(nil)
	if err == nil {
		d.after = append(d.after, a.Close)
	}
	return a, err
}

// between says where the ranks assume that the others run.
type between int

const (
	near  between = iota // on one host
	far                  // each on a host of its own
	files                // with a common directory
)

// gatherer opens a Gatherer. It is closed at the end of the drill.
func (m *gatherer) gatherer(d *drill, where between, arena *shm.Arena) (*gather.Gatherer, error) {
	g, o := m.near, &gather.Options{Arena: arena}
	switch where {
	case far:
		g, o.Listen = m.far, "127.0.0.1"
	case files:
		o.Dir = filepath.Join(m.dir, "gather")
	}
	ga, err := gather.Open(context.Background(), g, o)
	if err == nil {
		d.after = append(d.after, ga.Close)
	}
	return ga, err
}

// birth says where a rank's tensors are allocated.
type birth bool

const (
	born     birth = true // in the arena of the gather
	ordinary birth = false
)

// allocator returns the arena for tensors, or nil for Go's memory.
func (m *gatherer) allocator(d *drill, b birth) (*shm.Arena, error) {
	if b == ordinary {
		return nil, nil
	}
	return m.arena(d)
}

// tensor returns a tensor of n bytes, whose first byte depends on the rank.
func (m *gatherer) tensor(d *drill, a *shm.Arena, n int) (t *tensor.Tensor, err error) {
	if a == nil {
		t, err = tensor.Wrap(room(n), tensor.F32, n/4)
	} else if t, err = tensor.NewIn(a, tensor.F32, n/4); err == nil {
		data := t.Data
		d.after = append(d.after, func() error { a.Free(data); return nil })
	}
	if err == nil {
		t.Data[0] = byte(m.rank)
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

func tensorsWay(where between, b birth, u use) func(*gatherer, *drill, int) error {
	return func(m *gatherer, d *drill, n int) error {
		arena, err := m.allocator(d, b)
		if err != nil {
			return err
		}
		t, err := m.tensor(d, arena, n)
		if err != nil {
			return err
		}
		ga, err := m.gatherer(d, where, arena)
		if err != nil {
			return err
		}
		var out []byte
		if m.rank == 0 {
			out = room(n)
		}
		d.call = func() error { return m.tensors(ga, t, u, out) }
		return nil
	}
}

// chained returns a way without the barriers between its calls.
func chained(open func(*gatherer, *drill, int) error) func(*gatherer, *drill, int) error {
	return func(m *gatherer, d *drill, n int) error {
		d.chain = true
		return open(m, d, n)
	}
}

// tensors runs one gather, until rank 0 has used the result and released it.
func (m *gatherer) tensors(ga *gather.Gatherer, t *tensor.Tensor, u use, out []byte) error {
	res, err := ga.Tensors(context.Background(), m.list, t)
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

// openFresh makes a new Gatherer for each gather. With links, the Gatherer has gathered a small
// tensor before, so that only its segments are new.
func (m *gatherer) openFresh(d *drill, n int, links bool) error {
	t, err1 := m.tensor(d, nil, n)
	little, err2 := m.tensor(d, nil, 4*kib)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	own := new(drill) // for each call
	d.after = append(d.after, func() error { return own.close() })
	var ga *gather.Gatherer
	d.before = func() (err error) {
		// after the barrier, rank 0 has used the result
		if err = errors.Join(m.star.barrier(), own.close()); err != nil {
			return err
		}
		if ga, err = m.gatherer(own, near, nil); err != nil || !links {
			return err
		}
		return m.tensors(ga, little, nothing, nil)
	}
	d.call = func() error { return m.tensors(ga, t, nothing, nil) }
	return nil
}

// mapsWay gathers n tensors of each rank, of 256 bytes to 4 KiB.
func mapsWay(where between, b birth) func(*gatherer, *drill, int) error {
	return func(m *gatherer, d *drill, n int) error {
		arena, err := m.allocator(d, b)
		if err != nil {
			return err
		}
		ts := make(map[string]*tensor.Tensor, n)
		for i := range n {
			if ts[fmt.Sprintf("model.layers.%d.weight", i)], err = m.tensor(d, arena, 256*(1+i%16)); err != nil {
				return err
			}
		}
		ga, err := m.gatherer(d, where, arena)
		if err != nil {
			return err
		}
		d.call = func() error { return m.maps(ga, ts) }
		return nil
	}
}

func (m *gatherer) maps(ga *gather.Gatherer, ts map[string]*tensor.Tensor) error {
	res, err := ga.TensorMaps(context.Background(), m.list, ts)
	if err != nil {
		return err
	}
	for rank, got := range res.Present() {
		if len(got) != len(ts) {
			return fmt.Errorf("rank %d: %d tensors came of %d", rank, len(got), len(ts))
		}
	}
	res.Release()
	return nil
}

// rewound truncates f, so that it is as a new file.
func rewound(f *os.File) error {
	if f == nil {
		return nil
	}
	_, err := f.Seek(0, io.SeekStart)
	return errors.Join(err, f.Truncate(0))
}

// openConcatTo merges n bytes of each rank into one file.
func (m *gatherer) openConcatTo(d *drill, n int, folder string) error {
	arena, err := m.arena(d)
	if err != nil {
		return err
	}
	t, err := m.tensor(d, arena, n)
	if err != nil {
		return err
	}
	ga, err := m.gatherer(d, near, arena)
	if err != nil {
		return err
	}
	f, err := m.file(d, folder)
	if err != nil {
		return err
	}
	ts := map[string]*tensor.Tensor{"weight": t}
	d.before = func() error { return rewound(f) }
	d.call = func() error {
		return ga.ConcatTo(context.Background(), f, m.list, gather.Merge{Axis: map[string]int{"weight": 0}}, ts)
	}
	return nil
}

// openWrite makes rank 0 write as many bytes as all ranks have, and nothing else.
func (m *gatherer) openWrite(d *drill, n int, folder string) error {
	f, err := m.file(d, folder)
	if err != nil || f == nil {
		d.call = func() error { return nil }
		return err
	}
	data := room(n)
	d.before = func() error { return rewound(f) }
	d.call = func() error {
		for range m.size {
			if _, err := f.Write(data); err != nil {
				return err
			}
		}
		return nil
	}
	return nil
}
