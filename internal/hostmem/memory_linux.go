package hostmem

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/spin"
)

// Ref names a memory to the other processes of its host.
type Ref struct {
	PID   int    // of the process that made it
	File  int    // its descriptor there
	Token []byte // what the memory begins with
}

const (
	fileName = "muster-group"
	tokenLen = 16
	seals    = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
)

// Create makes the memory of a group, on one of its ranks. It is a memfd, so it is in no file system,
// and ends with the last process that has it mapped. Memory is taken from the host as it is used:
// at most 8 MiB for each rank, and 17 KiB. timeout is that of calls whose context has no deadline.
func Create(rank, ranks int, timeout time.Duration) (*Memory, Ref, error) {
	if ranks > MaxRanks {
		return nil, Ref{}, fmt.Errorf("hostmem: %d ranks, the limit is %d", ranks, MaxRanks)
	}
	fd, err := unix.MemfdCreate(fileName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(fileName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, Ref{}, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	shape := standard(ranks)
	if err = checkFileSize(shape.size()); err == nil {
		err = unix.Ftruncate(fd, int64(shape.size()))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	var m *Memory
	if err == nil {
		m, err = mapped(fd, rank, shape, timeout)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, Ref{}, fmt.Errorf("hostmem: create: %w", err)
	}
	token := make([]byte, tokenLen)
	_, _ = rand.Read(token)
	copy(m.mem, token)
	m.words[wordRanks] = m.identity()
	m.file = fd
	return m, Ref{PID: os.Getpid(), File: fd, Token: token}, nil
}

// checkFileSize returns an error where ftruncate would raise the signal of RLIMIT_FSIZE.
func checkFileSize(size int) error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &lim); err == nil && uint64(size) > lim.Cur { // #nosec G115 -- positive
		return fmt.Errorf("%d bytes exceed the largest file of the process (ulimit -f)", size)
	}
	return nil
}

// Open maps the memory of another process of the same user, through /proc: root could open that of
// others, who could then write into its memory. The size of the file is sealed: no process can shrink
// it, which would be a SIGBUS for all others.
func Open(ref Ref, rank, ranks int, timeout time.Duration) (*Memory, error) {
	path := fmt.Sprintf("/proc/%d/fd/%d", ref.PID, ref.File)
	link, err := os.Readlink(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("hostmem: open: in another PID namespace, or of another user? %w", err)
	case !strings.HasPrefix(link, "/memfd:"+fileName):
		return nil, fmt.Errorf("hostmem: open: %s is %q: in another PID namespace?", path, link)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("hostmem: open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	shape := standard(ranks)
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil {
		err = unix.Fstat(fd, &stat)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("hostmem: open %s: %w", path, err)
	case int(stat.Uid) != os.Geteuid():
		return nil, fmt.Errorf("hostmem: open %s: it is of user %d, and this process of user %d", path, stat.Uid, os.Geteuid())
	case got&seals != seals || stat.Size != int64(shape.size()):
		return nil, errCorrupt
	}
	m, err := mapped(fd, rank, shape, timeout)
	if err != nil {
		return nil, fmt.Errorf("hostmem: open %s: %w", path, err)
	}
	if len(ref.Token) != tokenLen || !bytes.Equal(m.mem[:tokenLen], ref.Token) || m.words[wordRanks] != m.identity() {
		m.unmap()
		return nil, errCorrupt
	}
	return m, nil
}

func (s shape) identity() uint64 { return uint64(s.ranks) | version<<32 }

// checkAddresses returns an error where the mapping would leave little address space to the process,
// which ends when the runtime gets none.
func checkAddresses(size int) error {
	lim := unix.Rlimit{Cur: unix.RLIM_INFINITY}
	if _ = unix.Getrlimit(unix.RLIMIT_AS, &lim); lim.Cur == unix.RLIM_INFINITY {
		return nil
	}
	var used uint64 // pages
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		_, _ = fmt.Sscan(string(b), &used)
	}
	if used *= uint64(os.Getpagesize()); uint64(size) > (lim.Cur-min(used, lim.Cur))/8 { // #nosec G115 -- positive
		return fmt.Errorf("%d bytes exceed an eighth of the address space that is left (ulimit -v)", size)
	}
	return nil
}

func mapped(fd, rank int, s shape, timeout time.Duration) (*Memory, error) {
	if err := checkAddresses(s.size()); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(fd, 0, s.size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(b, unix.MADV_DONTDUMP) // a dump would take memory for all of it
	m := &Memory{shape: s, rank: rank, limit: min(maxWait, timeout/4), mem: b, words: unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8), file: -1}
	m.unmap = func() {
		m.closeFile()
		_ = unix.Munmap(b)
	}
	return m, nil
}

// closeFile closes the descriptor that other ranks open, if this rank has it.
func (m *Memory) closeFile() {
	if m.file >= 0 {
		_ = unix.Close(m.file)
		m.file = -1
	}
}

func (m *Memory) futex(bell int) *uint32 { return (*uint32)(unsafe.Pointer(&m.words[bell])) }

func (m *Memory) bell(bell int) uint32 { return atomic.LoadUint32(m.futex(bell)) }

// sleep returns when the bell no longer has the value, after d, or for no reason.
func (m *Memory) sleep(bell int, value uint32, d time.Duration) { spin.Sleep(m.futex(bell), value, d) }

func (m *Memory) wake(bell int) {
	atomic.AddUint32(m.futex(bell), 1)
	spin.Wake(m.futex(bell))
}
