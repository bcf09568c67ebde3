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
//
// A rank that dials again has given up the connection before. But what it has offered over that may still have to be had: a rank whose
// offer is all there is done with the verb, and may be at the next, while this one is late. So the connection that was used last is kept until
// the rank offers something over another.
type intake struct {
	mu      sync.Mutex // protects the fields below
	closed  bool
	memory  map[giver][]*lender // that which was used last, and the newest; their numbers grow
	streams map[giver]*fetcher  // the newest
}

// lender is a connection that memory of a rank comes over.
type lender struct {
	*shm.Conn
	number uint64
	used   bool
}

func (in *intake) init() {
	in.memory, in.streams = map[giver][]*lender{}, map[giver]*fetcher{}
}

// accept takes a connection over.
func (in *intake) accept(c *link.Conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	from := giver{c.ID, c.Rank}
	unix, isUnix := c.Conn.(*net.UnixConn)
	switch {
	case in.closed:
		_ = c.Close()
	case c.Kind == forMemory && isUnix:
		in.acceptMemory(from, &lender{Conn: shm.NewConn(unix), number: c.Number})
	case c.Kind == forStream:
		in.acceptStream(from, newFetcher(c.Conn, c.Number))
	default:
		_ = c.Close()
	}
}

func (in *intake) acceptMemory(from giver, l *lender) {
	all := in.memory[from]
	if n := len(all); n > 0 && all[n-1].number > l.number {
		_ = l.Close()
		return
	}
	all = slices.DeleteFunc(all, func(old *lender) bool {
		if !old.used {
			_ = old.Close()
		}
		return !old.used
	})
	in.memory[from] = append(all, l)
}

func (in *intake) acceptStream(from giver, f *fetcher) {
	old := in.streams[from]
	if old != nil && old.number > f.number {
		old, f = f, old
	}
	if old != nil {
		_ = old.conn.Close()
	}
	in.streams[from] = f
}

// memoryOf is the connection that a rank's shared memory comes over. Those before it are not needed any more.
func (in *intake) memoryOf(from giver, number uint64) (*shm.Conn, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	all := in.memory[from]
	i := slices.IndexFunc(all, func(l *lender) bool { return l.number == number })
	if i < 0 {
		return nil, linkError{fmt.Errorf("rank %d offers shared memory over a connection that is not there", from.rank)}
	}
	for _, old := range all[:i] {
		_ = old.Close()
	}
	in.memory[from] = all[i:]
	all[i].used = true
	return all[i].Conn, nil
}

// streamOf is the stream that a rank's offer is fetched over. A rank that has given the verb up may have dialed another already, for the next
// one: that is not to be used, and broken, for this one.
func (in *intake) streamOf(from giver, number uint64) (*fetcher, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if f := in.streams[from]; f != nil && f.number == number {
		return f, nil
	}
	return nil, linkError{fmt.Errorf("rank %d offers a stream over a connection that is not there", from.rank)}
}

func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	for _, all := range in.memory {
		for _, l := range all {
			_ = l.Close()
		}
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
	alone  bool       // the two can share no memory
	memory *line      // nil: not made, or broken
	stream *link.Conn // like memory
	dialed uint64     // how often
}

// line is a connection that memory is lent to the first rank over. One verb at a time uses it.
type line struct {
	*shm.Conn
	number uint64
	known  map[segment]bool // that the first rank has mapped
}

// segment names one of those that a rank lends.
type segment struct {
	arena  uint64
	number uint32
}

// knows reports whether the first rank has mapped what all refs are in.
func (l *line) knows(refs []shm.Ref) bool {
	return !slices.ContainsFunc(refs, func(r shm.Ref) bool { return !l.known[segment{r.Arena, r.Segment}] })
}

// learn notes that the first rank has mapped what refs are in.
func (l *line) learn(refs []shm.Ref) {
	for _, r := range refs {
		l.known[segment{r.Arena, r.Segment}] = true
	}
}

// memoryOut is a connection to lend the first rank shared memory over; nil without an error if the two cannot share any.
func (v *verb) memoryOut(ctx context.Context) (*line, error) {
	out := &v.out
	out.mu.Lock()
	l, alone := out.memory, out.alone
	out.mu.Unlock()
	if alone || l != nil && l.Err() == nil {
		return l, nil
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
	out.memory = &line{shm.NewConn(unix), conn.Number, map[segment]bool{}}
	return out.memory, nil
}

// streamOut is the number of a stream that the first rank can fetch from this one over.
func (v *verb) streamOut(ctx context.Context) (number uint64, err error) {
	out := &v.out
	out.mu.Lock()
	conn := out.stream
	out.mu.Unlock()
	if conn != nil {
		return conn.Number, nil
	}
	if conn, err = v.dial(ctx, forStream); err != nil {
		return 0, err
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.closed {
		_ = conn.Close()
		return 0, pgroup.ErrClosed
	}
	out.stream = conn
	out.wg.Go(func() {
		_ = v.ga.exports.serve(conn, conn.ID) // the first rank reports what it lacks
		out.lose(conn)
	})
	return conn.Number, nil
}

func (v *verb) dial(ctx context.Context, kind byte) (*link.Conn, error) {
	v.out.mu.Lock()
	v.out.dialed++
	p := link.Purpose{Kind: kind, ID: v.group.Generation(), Number: v.out.dialed}
	v.out.mu.Unlock()
	c, err := v.ga.mesh.Dial(ctx, v.ranks[0], p)
	if err != nil {
		return nil, linkError{err}
	}
	return c, nil
}

// lose forgets a stream that has ended; the next verb dials another.
func (out *outlet) lose(conn *link.Conn) {
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
		out.memory = nil
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
