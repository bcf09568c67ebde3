package transport

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring makes the sends and receives of many sockets in one system call, with io_uring. None of them
// waits (MSG_DONTWAIT), so the kernel carries them out before submit returns, and keeps no buffer
// afterwards. A ring is therefore no way to wait for sockets: that is epoll's part.
//
// It needs Linux 5.18, whose io_uring continues after a request that fails (SUBMIT_ALL). Its memory
// is mapped, and shared with the kernel: the kernel reads requests between sqHead and sqTail, and
// writes results between cqHead and cqTail. See io_uring_setup(2).
type ring struct {
	fd             int
	rings, sqeMem  []byte // the mappings
	sqHead, sqTail *uint32
	cqHead, cqTail *uint32
	sqMask, cqMask uint32
	sqes           []ringRequest
	cqes           []ringResult

	n       int // number of requests that are prepared
	results []outcome
}

// outcome is the result of a transfer: a number of bytes, or a negative errno.
type outcome int32

func (o outcome) bytes() (int, error) {
	if o < 0 {
		return 0, syscall.Errno(-o)
	}
	return int(o), nil
}

// ringRequest is struct io_uring_sqe.
type ringRequest struct {
	op, flags   uint8
	ioprio      uint16
	fd          int32
	offset      uint64
	addr        uint64
	len         uint32
	msgFlags    uint32
	userData    uint64
	unusedHere1 [3]uint64
}

// ringResult is struct io_uring_cqe.
type ringResult struct {
	userData uint64
	result   int32
	flags    uint32
}

// ringParams is struct io_uring_params; the offsets are within the mapping of both queues.
type ringParams struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
	unused                                               [3]uint32
	sq                                                   struct {
		head, tail, mask, entries, flags, dropped, array, unused uint32
		user                                                     uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, unused uint32
		user                                                     uint64
	}
}

const (
	ringSubmitAll = 1 << 7     // IORING_SETUP_SUBMIT_ALL
	ringGetEvents = 1          // IORING_ENTER_GETEVENTS
	ringOffSQEs   = 0x10000000 // IORING_OFF_SQES
	ringNop       = 0          // IORING_OP_NOP
	ringSend      = 26         // IORING_OP_SEND
	ringRecv      = 27         // IORING_OP_RECV
)

// newRing returns a ring for at most n requests at once; n is a power of two. It fails if the kernel
// is too old, or does not allow io_uring.
func newRing(n int) (*ring, error) {
	p := ringParams{flags: ringSubmitAll}
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(n), uintptr(unsafe.Pointer(&p)), 0)
	if e != 0 {
		return nil, os.NewSyscallError("io_uring_setup", e)
	}
	r := &ring{fd: int(fd), results: make([]outcome, 0, n)}
	if err := r.mapQueues(&p); err != nil {
		r.close()
		return nil, err
	}
	r.add(ringRequest{op: ringNop})
	if _, err := r.submit()[0].bytes(); err != nil {
		r.close()
		return nil, os.NewSyscallError("io_uring_enter", err)
	}
	return r, nil
}

func (r *ring) mapQueues(p *ringParams) (err error) {
	size := max(p.sq.array+p.sqEntries*4, p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(ringResult{})))
	const shared = unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(r.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, shared); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	if r.sqeMem, err = unix.Mmap(r.fd, ringOffSQEs, int(p.sqEntries)*int(unsafe.Sizeof(ringRequest{})), unix.PROT_READ|unix.PROT_WRITE, shared); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	at := func(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[offset])) }
	r.sqHead, r.sqTail, r.sqMask = at(p.sq.head), at(p.sq.tail), *at(p.sq.mask)
	r.cqHead, r.cqTail, r.cqMask = at(p.cq.head), at(p.cq.tail), *at(p.cq.mask)
	r.sqes = unsafe.Slice((*ringRequest)(unsafe.Pointer(&r.sqeMem[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*ringResult)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	for i := range p.sqEntries { // the order of the requests is that of their places
		*at(p.sq.array + 4*i) = i
	}
	return nil
}

// add prepares a request. There must be space for it.
func (r *ring) add(q ringRequest) {
	q.userData = uint64(r.n)
	r.sqes[(*r.sqTail+uint32(r.n))&r.sqMask] = q
	r.n++
}

// transfer prepares a send or a receive. The caller keeps b alive and unchanged until submit has
// returned.
func (r *ring) transfer(op uint8, fd int, b []byte) {
	r.add(ringRequest{
		op: op, fd: int32(fd), addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), len: uint32(len(b)),
		msgFlags: unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL,
	})
}

// submit carries out the prepared requests, and returns their results, which are valid until the
// next submit. A request that the kernel does not accept has the result EAGAIN.
func (r *ring) submit() []outcome {
	if r.n == 0 {
		return nil
	}
	r.results = r.results[:r.n]
	for i := range r.results {
		r.results[i] = -outcome(unix.EAGAIN)
	}
	atomic.StoreUint32(r.sqTail, *r.sqTail+uint32(r.n))
	waiting, _ := r.enter(r.n, r.n)
	// What was not accepted is taken back: the kernel reads requests only in enter.
	atomic.StoreUint32(r.sqTail, atomic.LoadUint32(r.sqHead))
	r.n = 0
	for waiting -= r.reap(); waiting > 0; waiting -= r.reap() {
		if _, err := r.enter(0, waiting); err != nil && !errors.Is(err, unix.EINTR) {
			// Another part of the process has closed the descriptor.
			panic(os.NewSyscallError("io_uring_enter", err))
		}
	}
	return r.results
}

// enter passes n requests to the kernel, waits for wait results, and returns how many requests it
// has accepted.
func (r *ring) enter(n, wait int) (accepted int, err error) {
	got, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(n), uintptr(wait), ringGetEvents, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(got), nil
}

// reap takes the results that are there, and returns how many.
func (r *ring) reap() (n int) {
	head, tail := *r.cqHead, atomic.LoadUint32(r.cqTail)
	for ; head != tail; head++ {
		q := r.cqes[head&r.cqMask]
		r.results[q.userData] = outcome(q.result)
		n++
	}
	atomic.StoreUint32(r.cqHead, head)
	return n
}

func (r *ring) close() {
	for _, mem := range [][]byte{r.rings, r.sqeMem} {
		if mem != nil {
			_ = unix.Munmap(mem)
		}
	}
	_ = unix.Close(r.fd)
}
