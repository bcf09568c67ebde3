// Package shm is memory that processes of one host share: segments without names, passed over a unix socket, read in
// place. It knows nothing of groups.
//
//	arena, err := shm.NewArena(nil)
//	b, err := arena.Alloc(n)                // memory as any other; fill it
//	ref, _ := arena.Find(b)                 // how to name it to the peer
//	err = conn.Lend(ctx, arena, ref)        // conn is a Conn over a unix socket; now tell the peer of ref
//	err = conn.Returned(ctx, ref)           // the peer has read it
//
// and at the peer, which got ref by a message of yours:
//
//	blocks, err := conn.Map(ctx, ref)       // blocks[0].Data are the same pages, read-only
//	blocks[0].Release()
//
// A Conn carries segments, each once, and what was released. A loan itself costs no message, and wakes nobody: Lend counts it, and the
// lender tells the peer of the ref by whatever else they talk over, after Lend, once for each loan. The peer maps a ref once
// for each time that it was told of it.
//
// # What is shared, and what cannot go wrong
//
// A segment is a memfd: it is in no file system, so two jobs never meet, and it is gone with the last process that has
// it mapped, also after kill -9. It does not count against the size of /dev/shm. Its size is sealed before anybody else
// sees it: a peer that truncates it, which would be a SIGBUS for all others, fails. Only its owner can write to it; a
// peer that writes to a Block faults at once, and can neither map it writable nor write to its descriptor.
//
// Memory is taken when it is allocated, and within what the host, the control groups and Options.Limit leave: a full
// host is ErrFull, not a signal later. Where little is left, the processes that share a limit take memory one at a time, by a lock on the
// directory where control groups are mounted, so that two of them do not take the same memory. Other memory of these processes, such as
// the heap of Go, is not reserved: 1/64 of each limit is left to it, 1 MiB at least and 256 MiB at most. What was freed is reused first, which
// costs no page fault.
//
// # Who owns what
//
// An Arena owns, for each segment, one descriptor and one mapping, and no goroutine. A Conn owns its socket, two
// goroutines (one reads; one writes, so that neither Lend nor Release waits for the peer), and one mapping for each
// segment that the peer has sent; it has no descriptors of them. A slice from Alloc is the caller's until Free; Data of a Block
// until Release. Neither is memory of Go's: nothing is freed because nobody refers to it any more.
//
// # What is left when a peer has ended
//
// What it lent. The mappings are this process's, so a ref that the peer told of before it was killed can be mapped after that, with what it
// wrote, until Close of the Conn. Close is also what ends the mappings, and with the last of them the memory: whoever does
// not need what a peer has left closes the Conn when it is Done.
//
// # Frozen is not dead
//
// If a Conn ends while something is lent over it, nobody knows whether the peer still reads. That memory is never
// written to again by the arena: its segment is retired, which means that nothing of it is reused, and that it is
// given back when whatever else of it is in use was freed.
//
// It works on Linux 5.1 and later. Elsewhere it compiles, and all of it is ErrUnsupported.
package shm

import "errors"

// ErrUnsupported is the error on systems other than Linux, and on kernels without memfds that can be sealed against
// writers to come (before 5.1).
var ErrUnsupported = errors.New("shm: this system has no memory that can be shared and sealed")

// ErrFull is the error where memory is wanted that is not there. Its text says how much was wanted, how much is left, and which
// limit it is: the arena's, a control group's, the host's, or one of the process's resources.
var ErrFull = errors.New("shm: not enough memory")

// ErrClosed is the error of what is used after its Close.
var ErrClosed = errors.New("shm: closed")

// DefaultSegment is the size of segments unless Options says otherwise.
const DefaultSegment = 64 << 20

// Options are an arena's. Nil, and zero in each field, is the default.
type Options struct {
	// Segment is how large segments are, in bytes; 0 is DefaultSegment. It is address space: memory is taken as it is allocated.
	// An allocation that is larger gets a segment of its own. The peers of a Conn can have 4096 segments.
	Segment int64

	// Limit is how much memory the arena may take, in bytes; 0 is as much as the host gives.
	Limit int64
}

// Ref names bytes of a segment to a peer. It means nothing to any other process.
type Ref struct {
	Arena   uint64 // chance, so that refs of several arenas can travel over one Conn
	Segment uint32
	Offset  int64
	Len     int64 // at least 1
}

// Stats is what an arena has. All but the counts are bytes.
type Stats struct {
	Segments int
	Retired  int   // of Segments: those of which nothing is reused, see the package's comment
	Mapped   int64 // the size of all segments
	Taken    int64 // of Mapped: memory that was allocated once, and is the arena's until its segment goes
	InUse    int64 // of Taken: allocations, each rounded up to 64 bytes, until they are freed and no peer holds them
	Lent     int64 // of InUse: allocations of which a peer holds something
}
