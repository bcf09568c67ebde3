package shm

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a segment of the peer. The Conn's mu protects uses.
type mapping struct {
	mem  []byte // all of it, read-only
	uses int    // the Conn's own, until Close or until the peer drops the segment; and each Block's

	mu   sync.Mutex // protects what follows
	warm []uint64   // a bit for each page that has been brought into the page table
}

// mapPeer maps a segment whose descriptor and size the peer has sent. It refuses one that the peer
// could change in a way that makes reading a fault. The caller closes the descriptor.
func mapPeer(fd int, size int64) (*mapping, error) {
	if err := checkSegment(fd, size); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a segment of %s (ulimit -v, RLIMIT_AS; vm.max_map_count): %w", amount(size), err)
	}
	pages := (len(mem) + os.Getpagesize() - 1) / os.Getpagesize()
	return &mapping{mem: mem, uses: 1, warm: make([]uint64, (pages+63)/64)}, nil
}

// checkSegment refuses everything but a memfd whose size is final and that cannot get holes.
func checkSegment(fd int, size int64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return fmt.Errorf("its descriptor is of something else than memory that can be sealed: F_GET_SEALS: %w", err)
	case seals&unix.F_SEAL_SHRINK == 0 || seals&unix.F_SEAL_GROW == 0:
		return fmt.Errorf("the size of its segment is not sealed (seals %#x)", seals)
	case seals&(unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_WRITE) == 0:
		return fmt.Errorf("its segment is not sealed against writers (seals %#x)", seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat its descriptor: %w", err)
	}
	if size <= 0 || size > maxMapped || int64(int(size)) != size || st.Size != size {
		return fmt.Errorf("its segment has %d bytes, not %d as it says", st.Size, size)
	}
	return nil
}

// check refuses a ref that is not within its segment; m is nil if the segment has not arrived.
func (m *mapping) check(r Ref) error {
	size := int64(maxMapped)
	if m != nil {
		size = int64(len(m.mem))
	}
	if r.Offset < 0 || r.Len < 1 || r.Offset > size || r.Len > size-r.Offset {
		return fmt.Errorf("%+v is not within a segment of %d bytes", r, size)
	}
	return nil
}

// slice is r's bytes.
func (m *mapping) slice(r Ref) []byte { return m.mem[r.Offset : r.Offset+r.Len : r.Offset+r.Len] }

// prefault maps the pages of r into the page table. That is faster than a fault for every few
// pages, and a page that does not exist, as in a segment with holes, is an error here where it
// would be a signal later.
func (m *mapping) prefault(r Ref) error {
	page := int64(os.Getpagesize())
	from, to := int(r.Offset/page), int((r.Offset+r.Len+page-1)/page)
	m.mu.Lock()
	cold := !allSet(m.warm, from, to)
	m.mu.Unlock()
	if !cold {
		return nil
	}
	mem := m.mem[int64(from)*page : min(int64(to)*page, int64(len(m.mem)))]
	if n := notResident(mem, page); n > 0 { // holes, or swapped out: it is this process that takes the memory now
		if err := CheckMemory(n); err != nil {
			return err
		}
	}
	err := again(func() error { return unix.Madvise(mem, unix.MADV_POPULATE_READ) })
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: before Linux 5.14
		return fmt.Errorf("read %s of the peer's memory: %w", amount(r.Len), err)
	}
	m.mu.Lock()
	setAll(m.warm, from, to)
	m.mu.Unlock()
	return nil
}

// notResident returns how many bytes of mem are not in the host's memory, or 0 if the system does
// not report it.
func notResident(mem []byte, page int64) (n int64) {
	if len(mem) == 0 {
		return 0
	}
	pages := make([]byte, (int64(len(mem))+page-1)/page)
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), uintptr(unsafe.Pointer(&pages[0])))
	if e != 0 {
		return 0
	}
	for _, p := range pages {
		if p&1 == 0 {
			n += page
		}
	}
	return n
}

// allSet reports whether the bits from ≤ i < to are set.
func allSet(set []uint64, from, to int) bool {
	for i := from; i < to; {
		n := min(64-i%64, to-i)
		if bits.TrailingZeros64(^(set[i/64] >> (i % 64))) < n {
			return false
		}
		i += n
	}
	return true
}

func setAll(set []uint64, from, to int) {
	for i := from; i < to; {
		n := min(64-i%64, to-i)
		set[i/64] |= ^uint64(0) >> (64 - n) << (i % 64)
		i += n
	}
}

// unmap ends mappings that are no longer used.
func unmap(ms []*mapping) {
	for _, m := range ms {
		_ = unix.Munmap(m.mem)
	}
}
