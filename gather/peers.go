package gather

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
)

// What a connection is for. The rank that gives dials, for one list of ranks: so a verb that fails, and breaks its connections, is
// nothing to other lists.
const (
	forMemory byte = 'm' // passes shared memory
	forStream byte = 's' // brings bytes
)

// giver is a rank in a circle, which has dialled this one.
type giver struct {
	circle uint64 // generation of the circle's group
	rank   int
}

// intake is the connections that ranks have dialled which give to this one.
type intake struct {
	mu      sync.Mutex // protects the fields below
	closed  bool
	memory  map[giver]*shm.Conn
	streams map[giver]*fetcher
}

func (in *intake) init() {
	in.memory, in.streams = map[giver]*shm.Conn{}, map[giver]*fetcher{}
}

// accept takes a connection over; an older one for the same has failed, and goes.
func (in *intake) accept(c *link.Conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	from := giver{c.ID, c.Rank}
	unix, isUnix := c.Conn.(*net.UnixConn)
	switch {
	case in.closed:
		_ = c.Close()
	case c.Kind == forMemory && isUnix:
		if old := in.memory[from]; old != nil {
			_ = old.Close()
		}
		in.memory[from] = shm.NewConn(unix)
	case c.Kind == forStream:
		if old := in.streams[from]; old != nil {
			_ = old.conn.Close()
		}
		in.streams[from] = newFetcher(c.Conn)
	default:
		_ = c.Close()
	}
}

// memoryOf is the connection that a rank's shared memory comes over.
func (in *intake) memoryOf(from giver) (*shm.Conn, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c := in.memory[from]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("rank %d offers shared memory, and has not connected for it", from.rank)
}

func (in *intake) streamOf(from giver) (*fetcher, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if f := in.streams[from]; f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("rank %d offers a stream, and has not connected for it", from.rank)
}

func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	for c := range maps.Values(in.memory) {
		_ = c.Close()
	}
	for f := range maps.Values(in.streams) {
		_ = f.conn.Close()
	}
}

// outlet is a circle's connections to its first rank, made when they are needed. The stream has a goroutine that serves it.
type outlet struct {
	wg sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	closed bool
	alone  bool             // the two can share no memory
	memory *shm.Conn        // nil: not made, or broken
	known  map[segment]bool // that the first rank has mapped over memory
	stream net.Conn         // like memory
}

// segment names one of those that a rank lends.
type segment struct {
	arena  uint64
	number uint32
}

// knows reports whether the first rank has mapped what all refs are in.
func (out *outlet) knows(refs []shm.Ref) bool {
	out.mu.Lock()
	defer out.mu.Unlock()
	return !slices.ContainsFunc(refs, func(r shm.Ref) bool { return !out.known[segment{r.Arena, r.Segment}] })
}

// learn notes that the first rank has mapped what refs are in, over c.
func (out *outlet) learn(c *shm.Conn, refs []shm.Ref) {
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.memory != c {
		return
	}
	for _, r := range refs {
		out.known[segment{r.Arena, r.Segment}] = true
	}
}

// memoryOut is a connection to lend the first rank shared memory over; nil without an error if the two cannot share any.
func (v *verb) memoryOut(ctx context.Context) (*shm.Conn, error) {
	out := &v.out
	out.mu.Lock()
	c, alone := out.memory, out.alone
	out.mu.Unlock()
	if alone || c != nil && c.Err() == nil {
		return c, nil
	}
	conn, err := v.dial(ctx, forMemory)
	if err != nil {
		return nil, err
	}
	unix, ok := conn.Conn.(*net.UnixConn)
	out.mu.Lock()
	defer out.mu.Unlock()
	switch {
	case out.closed:
		_ = conn.Close()
		return nil, pgroup.ErrClosed
	case !ok:
		_ = conn.Close()
		out.alone = true
		return nil, nil
	}
	if out.memory != nil {
		_ = out.memory.Close()
	}
	out.memory, out.known = shm.NewConn(unix), map[segment]bool{}
	return out.memory, nil
}

// streamOut makes sure that the first rank can fetch from this one.
func (v *verb) streamOut(ctx context.Context) error {
	out := &v.out
	out.mu.Lock()
	there := out.stream != nil
	out.mu.Unlock()
	if there {
		return nil
	}
	conn, err := v.dial(ctx, forStream)
	if err != nil {
		return err
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.closed {
		_ = conn.Close()
		return pgroup.ErrClosed
	}
	out.stream = conn.Conn
	out.wg.Go(func() {
		_ = v.ga.exports.serve(conn, conn.Rank) // whoever reads there says what it lacks
		out.lose(conn.Conn)
	})
	return nil
}

func (v *verb) dial(ctx context.Context, kind byte) (*link.Conn, error) {
	return v.ga.mesh.Dial(ctx, v.ranks[0], link.Purpose{Kind: kind, ID: v.group.Generation()})
}

// lose forgets a stream that has ended; the next verb dials another.
func (out *outlet) lose(conn net.Conn) {
	_ = conn.Close()
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.stream == conn {
		out.stream = nil
	}
}

// reset ends the connections, after a verb that failed: the first rank may have asked for what it will not read, and what was
// lent to it may never be returned. Memory that is out on loan then is not used again.
func (out *outlet) reset() {
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.memory != nil {
		_ = out.memory.Close()
		out.memory, out.known = nil, nil
	}
	if out.stream != nil {
		_ = out.stream.Close()
		out.stream = nil
	}
}

func (out *outlet) close() {
	out.mu.Lock()
	out.closed = true
	out.mu.Unlock()
	out.reset()
	out.wg.Wait()
}
