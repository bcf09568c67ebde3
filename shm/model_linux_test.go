package shm_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/shm"
)

// model is an arena, and a naive model of it.
type model struct {
	t    testing.TB
	a    *shm.Arena
	live []allocation
	next byte
}

// allocation has each of its bytes set to mark.
type allocation struct {
	b    []byte
	ref  shm.Ref
	mark byte
}

const smallSegment = 1 << 16

func newModel(t testing.TB) *model {
	return &model{t: t, a: newArena(t, &shm.Options{Segment: smallSegment})}
}

// alloc allocates, and checks that the first free block that fits was used, and that no new memory
// was taken if there was one.
func (m *model) alloc(n int) {
	size := int64(n+63) / 64 * 64
	before := m.free()
	took := m.a.Stats().Taken
	b := alloc(m.t, m.a, n)
	if n == 0 {
		return
	}
	ref, ok := m.a.Find(b)
	require.True(m.t, ok)
	i := slices.IndexFunc(before, func(s shm.Span) bool { return s.Len >= size })
	if i >= 0 {
		require.Equal(m.t, took, m.a.Stats().Taken)
		require.Equal(m.t, shm.Span{Segment: ref.Segment, Off: ref.Offset, Len: before[i].Len, Free: true}, before[i])
	} else {
		require.Greater(m.t, m.a.Stats().Taken, took)
	}
	m.next++
	for i := range b {
		b[i] = m.next
	}
	m.live = append(m.live, allocation{b, ref, m.next})
}

func (m *model) release(i int) {
	if len(m.live) == 0 {
		return
	}
	l := m.live[i%len(m.live)]
	m.live = slices.Delete(m.live, i%len(m.live), i%len(m.live)+1)
	for _, c := range l.b {
		require.Equal(m.t, l.mark, c, "%+v has been written to by others", l.ref)
	}
	m.a.Free(l.b)
}

// free returns the free blocks of the naive model: the longest runs between allocations, up to the
// end of the taken memory.
func (m *model) free() (free []shm.Span) {
	all, _ := shm.Layout(m.a)
	tops := map[uint32]int64{}
	for _, s := range all {
		tops[s.Segment] = max(tops[s.Segment], s.Off+s.Len)
	}
	for id, top := range tops {
		taken := make([]bool, top/64)
		for _, l := range m.live {
			if l.ref.Segment == id {
				for at := l.ref.Offset; at < l.ref.Offset+l.ref.Len; at += 64 {
					if taken[at/64] {
						m.t.Fatalf("%+v has memory that another allocation has too", l.ref)
					}
					taken[at/64] = true
				}
			}
		}
		for i := 0; i < len(taken); {
			from := i
			for i < len(taken) && !taken[i] {
				i++
			}
			if i > from {
				free = append(free, shm.Span{Segment: id, Off: int64(from) * 64, Len: int64(i-from) * 64, Free: true})
			}
			i++
		}
	}
	slices.SortFunc(free, func(a, b shm.Span) int {
		return cmp.Or(cmp.Compare(a.Segment, b.Segment), cmp.Compare(a.Off, b.Off))
	})
	return free
}

// check compares the arena with the model.
func (m *model) check() {
	_, free := shm.Layout(m.a)
	require.Equal(m.t, m.free(), free)
	var inUse int64
	for _, l := range m.live {
		inUse += (l.ref.Len + 63) / 64 * 64
	}
	require.Equal(m.t, inUse, m.a.Stats().InUse)
}

// step runs one operation, selected by what; any value is valid.
func (m *model) step(what, size byte) {
	switch what % 8 {
	case 0, 1:
		m.alloc(int(size))
	case 2, 3:
		m.alloc(int(size) * 64)
	case 4:
		m.alloc(int(size) * 500)
	case 5, 6:
		m.release(int(size))
	case 7:
		if size%16 == 0 {
			m.a.Trim()
		}
		m.release(int(size))
	}
	m.check()
}

// TestModel compares the arena with a naive one, over random operations.
func TestModel(t *testing.T) {
	for seed := range testcluster.Form[uint64](1, 100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newModel(t)
		for range 300 {
			m.step(byte(rng.Uint32()), byte(rng.Uint32()))
		}
		for len(m.live) > 0 {
			m.release(int(rng.Uint32() >> 1))
			m.check()
		}
		m.a.Trim()
		require.Zero(t, m.a.Stats())
	}
}

// FuzzArena is TestModel over the fuzzer's operations.
func FuzzArena(f *testing.F) {
	f.Add([]byte("0a2b4c6d6e"))
	f.Add([]byte{4, 200, 4, 200, 0, 1, 5, 0, 7, 16, 7, 16, 2, 255})
	f.Fuzz(func(t *testing.T, ops []byte) {
		m := newModel(t)
		for ; len(ops) > 1; ops = ops[2:] {
			m.step(ops[0], ops[1])
		}
	})
}
