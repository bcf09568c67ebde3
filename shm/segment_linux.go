package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// populateStep is how much is reserved in one call. A signal, such as a profiler's, interrupts
	// fallocate, which then undoes what it did: a large step would never end.
	populateStep = 4 << 20

	// checkStep is how much is reserved between two checks of the limits: other processes take
	// memory too. It is a multiple of populateStep.
	checkStep = 64 << 20

	// ample is how much has to be left beside what is reserved, so that processes need no lock:
	// checkStep for each of 64.
	ample = 4 << 30

	sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
)

// segment is a memfd that the arena has mapped. The arena's mu protects what is below mem, but
// holds.
type segment struct {
	arena *Arena
	id    uint32
	size  int64
	mem   []byte // all of it, writable

	top     int64    // end of the reserved memory
	blocks  []*block // [0, top), without holes, in order
	live    int      // blocks that are not free
	owned   int      // of these: not given to Free yet
	retired bool     // nothing of it is reused
	gone    bool     // given back: mem is nil
	conns   map[*Conn]struct{}

	holds sync.Mutex // protects what follows
	fd    int
	held  int // by the arena and by messages that are not sent yet; the last closes fd
}

// newSegment makes a segment that has no memory yet.
func newSegment(arena uint64, id uint32, size int64) (*segment, error) {
	if err := checkFileSize(size); err != nil {
		return nil, err
	}
	fd, err := memfd(fmt.Sprintf("muster-shm-%016x", arena))
	if err != nil {
		return nil, err
	}
	mem, err := mapWritable(fd, size)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &segment{id: id, size: size, mem: mem, conns: map[*Conn]struct{}{}, fd: fd, held: 1}, nil
}

// checkFileSize returns an error where ftruncate would raise the signal of RLIMIT_FSIZE.
func checkFileSize(size int64) error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &lim); err == nil && uint64(size) > lim.Cur {
		return full(size, int64(lim.Cur), "the process's largest file (ulimit -f, RLIMIT_FSIZE)")
	}
	return nil
}

func memfd(name string) (int, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	switch {
	case errors.Is(err, unix.ENOSYS):
		return -1, fmt.Errorf("%w: memfd_create: %w", ErrUnsupported, err)
	case errors.Is(err, unix.EMFILE):
		return -1, fmt.Errorf("shm: a segment needs a descriptor, and the process has no more (ulimit -n, RLIMIT_NOFILE): %w", err)
	case errors.Is(err, unix.ENOMEM):
		return -1, fmt.Errorf("%w: memfd_create: %w", ErrFull, err)
	case err != nil:
		return -1, fmt.Errorf("shm: memfd_create: %w", err)
	}
	return fd, nil
}

// mapWritable sets the size of fd, seals it, and maps it. After that no process can make it
// writable.
func mapWritable(fd int, size int64) ([]byte, error) {
	if err := again(func() error { return unix.Ftruncate(fd, size) }); err != nil {
		return nil, fmt.Errorf("shm: a segment of %s: ftruncate: %w", amount(size), err)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if errors.Is(err, unix.ENOMEM) {
		return nil, fmt.Errorf("%w: %s of address space wanted (ulimit -v, RLIMIT_AS; vm.max_map_count): mmap: %w", ErrFull, amount(size), err)
	}
	if err != nil {
		return nil, fmt.Errorf("shm: a segment of %s: mmap: %w", amount(size), err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed); err != nil {
		_ = unix.Munmap(mem)
		if errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("%w: F_SEAL_FUTURE_WRITE: %w", ErrUnsupported, err)
		}
		return nil, fmt.Errorf("shm: seal a segment: %w", err)
	}
	return mem, nil
}

// populate reserves the memory of [from, to), and returns how far it came. Where a limit of h is
// near, processes of the host reserve memory one at a time, a step each: what one has found to be
// left is not taken by another before it has used it.
func (s *segment) populate(from, to int64, h host) (int64, error) {
	memoryLock := &memoryLock{h: h}
	for n := int64(0); from < to; {
		if n%checkStep == 0 {
			memoryLock.needed = h.check(to-from+ample) != nil
		}
		step := min(populateStep, to-from)
		if err := memoryLock.take(to-from, func() error { return s.allocate(from, step) }); err != nil {
			return from, err
		}
		from += step
		n += step
	}
	return from, nil
}

// allocate reserves the memory of n bytes.
func (s *segment) allocate(from, n int64) error {
	if err := again(func() error { return unix.Fallocate(s.fd, 0, from, n) }); err != nil {
		return refused(n, "fallocate", err)
	}
	if err := writable(s.mem[from : from+n]); err != nil {
		return refused(n, "populate", err)
	}
	return nil
}

// refused is why the kernel did not give memory.
func refused(wanted int64, call string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EFAULT) {
		return fmt.Errorf("%w: the host does not give %s: %s: %w", ErrFull, amount(wanted), call, err)
	}
	return fmt.Errorf("shm: %s: %w", call, err)
}

// writable maps the pages of mem into the page table, so that writing to them costs no fault.
func writable(mem []byte) error {
	err := again(func() error { return unix.Madvise(mem, unix.MADV_POPULATE_WRITE) })
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14
		touch(mem)
		return nil
	}
	return err
}

// touch writes to each page of mem. fallocate was there before: this cannot fail.
func touch(mem []byte) {
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i] = 0
	}
}

// hold keeps the descriptor of a segment that is in its arena open.
func (s *segment) hold() {
	s.holds.Lock()
	defer s.holds.Unlock()
	s.held++
}

// unhold ends what hold, or newSegment, began.
func (s *segment) unhold() {
	s.holds.Lock()
	defer s.holds.Unlock()
	if s.held--; s.held == 0 {
		_ = unix.Close(s.fd)
	}
}

// again calls f until no signal interrupts it.
func again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
