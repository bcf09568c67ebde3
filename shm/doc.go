// Package shm has memory that processes of one host share: segments without names, which are passed
// over a unix socket and read in place. It knows nothing of groups.
//
//	arena, err := shm.NewArena(nil)
//	b, err := arena.Alloc(n)                // memory as any other; fill it
//	ref, _ := arena.Find(b)                 // how to name it to the peer
//	err = conn.Share(ctx, arena, ref)       // conn is a Conn over a unix socket; now send the peer ref
//	err = conn.WaitReleased(ctx, ref)       // the peer has read it
//
// and at the peer, which received ref in a message of the caller's:
//
//	blocks, err := conn.Map(ctx, ref)       // blocks[0].Data are the same pages, read-only
//	blocks[0].Release()
//
// A Conn carries segments, each once, and what was released. To share a ref costs no message, and
// wakes no process: Share counts it, and the caller sends the ref by whatever connection the two
// have, after Share, once for each time that it shared it. The peer maps a ref once for each time
// that it received it.
//
// # What is shared, and which failures are excluded
//
// A segment is a memfd: it is in no file system, so two jobs never share one by accident, and it
// ends with the last process that has it mapped, even after kill -9. It does not count against the
// size of /dev/shm. Its size is sealed before another process sees it: a peer that tries to
// truncate it, which would be a SIGBUS for all others, gets an error. Only its owner can write to
// it; a peer that writes to a Block faults at once, and can neither map it writable nor write to
// its descriptor.
//
// Memory is reserved when it is allocated, within what the host, the control groups and
// Options.Limit leave: a full host is ErrFull, not a signal later. Where little is left, the
// processes that share a limit reserve memory one at a time, by a lock on the directory where
// control groups are mounted, so that two of them do not take the same memory. Other memory of
// these processes, such as the heap of Go, is not reserved: 1/64 of each limit is left for it, 1
// MiB at least and 256 MiB at most. What was freed is reused first, which costs no page fault.
//
// # Ownership
//
// An Arena owns, for each segment, one descriptor and one mapping, and no goroutine. A Conn owns
// its socket, two goroutines (one reads; one writes, so that neither Share nor Release waits for
// the peer), and one mapping for each segment that the peer has sent; it has no descriptors of
// them. A slice from Alloc is the caller's until Free; Data of a Block until Release. Neither is in
// Go's heap: the garbage collector frees none of it.
//
// # After the end of a peer
//
// What the peer has shared stays readable. The mappings are this process's, so a ref that the peer
// sent before it was killed can be mapped after that, with what it wrote, until Close of the Conn.
// Close also ends the mappings, and with the last of them the memory: a caller that does not need
// what a peer has left closes the Conn when it is Done.
//
// # A frozen peer may still read
//
// If a Conn ends while something is shared over it, it is unknown whether the peer still reads. The
// arena never writes to that memory again: its segment is retired, which means that nothing of it
// is reused, and that it is given back to the host when the rest of it was freed.
//
// Package shm works on Linux 5.1 and later. Elsewhere it compiles, and all of it returns
// ErrUnsupported.
package shm

import "errors"

// ErrUnsupported is the error on systems other than Linux, and on kernels without memfds that can
// be sealed against writers to come (before 5.1).
var ErrUnsupported = errors.New("shm: this system has no memory that can be shared and sealed")

// ErrFull is the error where memory is wanted that is not there. Its text says how much was wanted,
// how much is left, and which limit it is: the arena's, a control group's, the host's, or one of
// the process's resources.
var ErrFull = errors.New("shm: not enough memory")

// ErrClosed is the error of what is used after its Close.
var ErrClosed = errors.New("shm: closed")

// DefaultSegment is the size of segments unless Options says otherwise.
const DefaultSegment = 64 << 20

// Options are an arena's. Nil, and zero in each field, is the default.
type Options struct {
	// Segment is how large segments are, in bytes; 0 is DefaultSegment. It is address space: memory
	// is taken as it is allocated. An allocation that is larger gets its own segment. The
	// peers of a Conn can have 4096 segments.
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
	Shared   int64 // of InUse: allocations of which a peer holds something
}
