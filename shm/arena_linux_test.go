package shm_test

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/fstest"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
)

var _ tensor.Allocator = (*shm.Arena)(nil)

func TestAlloc(t *testing.T) {
	a := newArena(t, &shm.Options{Segment: 1 << 20})
	for _, n := range []int{1, 63, 64, 65, 4096, 1 << 20, 1<<20 + 1, 5 << 20} {
		b := alloc(t, a, n)
		require.Equal(t, n, cap(b))
		require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%64)
		fill(b, uint64(n))
		ref, ok := a.Find(b)
		require.True(t, ok)
		require.EqualValues(t, n, ref.Len)
	}
	none := alloc(t, a, 0)
	require.NotNil(t, none)
	_, ok := a.Find(none)
	require.False(t, ok)
	a.Free(none)
	a.Free(nil)
	_, err := a.Alloc(-1)
	require.ErrorContains(t, err, "Alloc(-1)")
	_, err = a.Alloc(int(^uint(0) >> 1))
	require.ErrorContains(t, err, "no memory has that many bytes")
}

func TestOptions(t *testing.T) {
	_, err := shm.NewArena(&shm.Options{Segment: -1})
	require.ErrorContains(t, err, "Options.Segment is -1")
	_, err = shm.NewArena(&shm.Options{Limit: -1})
	require.ErrorContains(t, err, "Options.Limit is -1")
	a := newArena(t, &shm.Options{Segment: 1})
	alloc(t, a, 1)
	require.EqualValues(t, os.Getpagesize(), a.Stats().Mapped)
	require.EqualValues(t, os.Getpagesize(), a.Stats().Taken)
	b := newArena(t, nil)
	alloc(t, b, 1)
	require.EqualValues(t, shm.DefaultSegment, b.Stats().Mapped)
	require.Less(t, b.Stats().Taken, int64(2<<20), "memory is taken as it is allocated")
}

func TestFind(t *testing.T) {
	a, other := newArena(t, nil), newArena(t, nil)
	b := alloc(t, a, 1000)
	next := alloc(t, a, 1000)
	whole, ok := a.Find(b)
	require.True(t, ok)
	part, ok := a.Find(b[10:20])
	require.True(t, ok)
	require.Equal(t, shm.Ref{Arena: whole.Arena, Segment: whole.Segment, Offset: whole.Offset + 10, Len: 10}, part)
	for name, no := range map[string][]byte{
		"of Go": make([]byte, 10), "empty": b[5:5], "nil": nil, "beyond": unsafe.Slice(&b[0], 1001), "padding": unsafe.Slice(&b[999], 3)[1:],
		"never taken": unsafe.Slice(&b[0], 1<<25)[1<<24:], "two": unsafe.Slice(&b[0], 2000),
	} {
		_, ok := a.Find(no)
		require.False(t, ok, name)
	}
	_, ok = other.Find(b)
	require.False(t, ok)
	a.Free(b)
	_, ok = a.Find(b)
	require.False(t, ok, "freed")
	require.NoError(t, a.Close())
	_, ok = a.Find(next)
	require.False(t, ok, "closed")
	a.Free(next)
}

func TestFreeMisuse(t *testing.T) {
	a, other := newArena(t, nil), newArena(t, nil)
	b, keep := alloc(t, a, 1000), alloc(t, a, 1000)
	panics := func(want string, arena *shm.Arena, b []byte) {
		t.Helper()
		require.PanicsWithValue(t, "shm: Free of "+want, func() { arena.Free(b) })
	}
	panics("1000 bytes that are not of this arena", other, b)
	panics("10 bytes that are not of this arena", a, make([]byte, 10))
	panics("990 bytes at 10 of an allocation of 1000: give all of it", a, b[10:])
	panics("999 bytes at 0 of an allocation of 1000: give all of it", a, b[:999])
	a.Free(b)
	panics("1000 bytes that were freed already", a, b)
	panics("10 bytes that Alloc did not give", a, unsafe.Slice(&b[0], 1<<25)[1<<24:][:10])
	fill(keep, 1)
	require.EqualValues(t, 1024, a.Stats().InUse)
}

// faults returns how many page faults without I/O this process has had.
func faults(t testing.TB) int64 {
	t.Helper()
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Minflt
}

// TestReuseTakesNoPage checks that the second gather of the same sizes takes no page: the arena
// allocates nothing, and there are no page faults.
func TestReuseTakesNoPage(t *testing.T) {
	a := newArena(t, nil)
	sizes := []int{32 << 20, 1 << 20, 100, 7 << 20, 40 << 20, 3}
	round := func() {
		var all [][]byte
		for _, n := range sizes {
			b := alloc(t, a, n)
			for i := 0; i < n; i += 4096 {
				b[i]++
			}
			all = append(all, b)
		}
		for _, b := range all {
			a.Free(b)
		}
	}
	before := faults(t)
	round()
	took, first := a.Stats().Taken, faults(t)-before
	before = faults(t)
	const rounds = 20
	for range rounds {
		round()
	}
	require.Equal(t, took, a.Stats().Taken)
	require.Zero(t, a.Stats().InUse)
	again := faults(t) - before
	t.Logf("faults: %d in the first round, %d in %d more", first, again, rounds)
	require.Less(t, again, took/4096/4, "writing to each page %d times", rounds)
}

// TestMemoryIsThere checks that memory is taken by Alloc, and not when it is written to.
func TestMemoryIsThere(t *testing.T) {
	a := newArena(t, nil)
	b := alloc(t, a, 32<<20)
	resident := make([]byte, len(b)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&resident[0])))
	require.Zero(t, errno)
	require.False(t, slices.ContainsFunc(resident, func(r byte) bool { return r&1 == 0 }))
	before := faults(t)
	shm.Touch(b)
	require.Less(t, faults(t)-before, int64(len(resident)/2))
}

func TestLimit(t *testing.T) {
	a := newArena(t, &shm.Options{Segment: 1 << 20, Limit: 4 << 20})
	one, three := alloc(t, a, 1<<20), alloc(t, a, 3<<20)
	_, err := a.Alloc(1)
	require.ErrorIs(t, err, shm.ErrFull)
	require.EqualError(t, err, "shm: not enough memory: 4096 bytes wanted, 0 bytes left: Options.Limit of 4.0 MiB")
	_, err = a.Alloc(5 << 20)
	require.EqualError(t, err, "shm: not enough memory: 5.0 MiB wanted, 0 bytes left: Options.Limit of 4.0 MiB")
	a.Free(one)
	alloc(t, a, 100)
	a.Free(three)
	_, err = a.Alloc(4 << 20)
	require.ErrorIs(t, err, shm.ErrFull)
	require.Less(t, a.Stats().Taken, int64(2<<20), "what was in the way was given back")
	alloc(t, a, 3<<20)
}

// shrinking is a host with less memory at each check.
type shrinking struct {
	left []int // MiB
}

func (s *shrinking) Open(name string) (fs.File, error) {
	if name != "proc/meminfo" {
		return nil, fs.ErrNotExist
	}
	text := fmt.Sprintf("MemTotal: 65536 kB\nMemAvailable: %d kB\n", s.left[0]<<10)
	s.left = s.left[min(1, len(s.left)-1):]
	return fstest.MapFS{name: {Data: []byte(text)}}.Open(name)
}

// TestHostIsFull checks the state after the host runs out of memory during an allocation: memory
// that was taken before remains usable.
func TestHostIsFull(t *testing.T) {
	a := newArena(t, &shm.Options{Segment: 256 * mib})
	looks := slices.Repeat([]int{200}, 2+64/4) // before all of it, and before each step of 4 MiB
	shm.SetHost(a, &shrinking{append(looks, 30)})
	_, err := a.Alloc(150 * mib)
	require.EqualError(t, err, "shm: not enough memory: 86.0 MiB wanted, 29.0 MiB left: the host's memory of 64.0 MiB")
	require.Equal(t, shm.Stats{Segments: 1, Mapped: 256 * mib, Taken: 64 * mib}, a.Stats())
	b := alloc(t, a, 64*mib)
	require.EqualValues(t, 64*mib, a.Stats().Taken)
	a.Free(b)
	require.Len(t, alloc(t, a, 80*mib), 80*mib, "16 MiB are new")
	shm.SetHost(a, &shrinking{[]int{1}})
	_, err = a.Alloc(1)
	require.ErrorContains(t, err, "4096 bytes wanted, 0 bytes left: the host's memory")
	require.ErrorIs(t, err, shm.ErrFull)
}

// TestFullGivesBack checks that empty segments are freed if an allocation needs their memory.
func TestFullGivesBack(t *testing.T) {
	a := newArena(t, &shm.Options{Segment: 1 * mib})
	a.Free(alloc(t, a, mib))
	// for a step, for the whole allocation, after freeing
	shm.SetHost(a, &shrinking{[]int{1, 1, 10}})
	require.Len(t, alloc(t, a, 2*mib), 2*mib)
	require.Equal(t, 1, a.Stats().Segments)
	_, err := newArena(t, &shm.Options{Segment: 1}).Alloc(1)
	require.NoError(t, err)
}

func TestTrim(t *testing.T) {
	a := newArena(t, &shm.Options{Segment: 1 << 20})
	one, two := alloc(t, a, 1<<20), alloc(t, a, 1<<20)
	before := open(t)
	a.Trim()
	require.Equal(t, 2, a.Stats().Segments)
	a.Free(one)
	a.Trim()
	require.Equal(t, 1, a.Stats().Segments)
	require.Equal(t, before-1, open(t))
	a.Free(two)
	a.Trim()
	require.Zero(t, a.Stats())
	require.Equal(t, before-2, open(t))
	alloc(t, a, 10)
}

// TestCloseWhileAllocating closes an arena while goroutines allocate.
func TestCloseWhileAllocating(t *testing.T) {
	a := newArena(t, &shm.Options{Segment: 1 << 18})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				b, err := a.Alloc(1 << 19)
				if err != nil {
					assert.ErrorIs(t, err, shm.ErrClosed)
					return
				}
				b[0] = 1
				a.Free(b)
			}
		})
	}
	require.NoError(t, a.Close())
	all.Wait()
	require.Zero(t, a.Stats())
}
