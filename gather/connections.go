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

// The kinds of connections. The sender dials, for one list of ranks: so a verb that fails, and
// closes its connections, does not affect other lists.
const (
	forMemory byte = 'm' // shares memory
	forStream byte = 's' // streams bytes
)

// senderID is a rank of a subgroup that has dialed this one.
type senderID struct {
	subgroup uint64 // generation of the subgroup's group
	rank     int
}

// inbound is the connections from ranks that send to this one.
//
// When a rank dials again, it no longer uses its previous connection. But this rank may not have
// read everything that was offered over it: a sender whose offer was ready has ended its verb, and
// may be in the next one before this rank. So the connection that was used last is kept until the
// sender offers something over another.
type inbound struct {
	mu     sync.Mutex // protects the fields below
	closed bool
	// the one that was used last, and the newest; their numbers grow
	memory  map[senderID][]*inboundMemory
	streams map[senderID]*fetcher // the newest
}

// inboundMemory is a connection over which a rank shares memory with this one.
type inboundMemory struct {
	*shm.Conn
	number uint64
	used   bool
}

func (in *inbound) init() {
	in.memory, in.streams = map[senderID][]*inboundMemory{}, map[senderID]*fetcher{}
}

// accept takes ownership of a new connection.
func (in *inbound) accept(c *link.Conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	from := senderID{c.ID, c.Rank}
	unix, isUnix := c.Conn.(*net.UnixConn)
	switch {
	case in.closed:
		_ = c.Close()
	case c.Kind == forMemory && isUnix:
		in.acceptMemory(from, &inboundMemory{Conn: shm.NewConn(unix), number: c.Number})
	case c.Kind == forStream:
		in.acceptStream(from, newFetcher(c.Conn, c.Number))
	default:
		_ = c.Close()
	}
}

func (in *inbound) acceptMemory(from senderID, l *inboundMemory) {
	all := in.memory[from]
	if n := len(all); n > 0 && all[n-1].number > l.number {
		_ = l.Close()
		return
	}
	all = slices.DeleteFunc(all, func(old *inboundMemory) bool {
		if !old.used {
			_ = old.Close()
		}
		return !old.used
	})
	in.memory[from] = append(all, l)
}

func (in *inbound) acceptStream(from senderID, f *fetcher) {
	old := in.streams[from]
	if old != nil && old.number > f.number {
		old, f = f, old
	}
	if old != nil {
		_ = old.conn.Close()
	}
	in.streams[from] = f
}

// memoryOf returns the connection with that number over which a rank shares memory. It closes
// earlier ones, which are no longer needed.
func (in *inbound) memoryOf(from senderID, number uint64) (*shm.Conn, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	all := in.memory[from]
	i := slices.IndexFunc(all, func(l *inboundMemory) bool { return l.number == number })
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

// streamOf returns the stream over which a rank's offer is fetched. A rank that has timed out may
// already have dialed another stream for the next verb. This verb must not use that one, since its
// failure would break it.
func (in *inbound) streamOf(from senderID, number uint64) (*fetcher, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if f := in.streams[from]; f != nil && f.number == number {
		return f, nil
	}
	return nil, linkError{fmt.Errorf("rank %d offers a stream over a connection that is not there", from.rank)}
}

func (in *inbound) close() {
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

// outbound is the connections of a subgroup to its first rank. They are made on demand. A goroutine
// serves the stream.
type outbound struct {
	wg sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	closed bool
	alone  bool            // the two cannot share memory
	memory *outboundMemory // nil: not made, or broken
	stream *link.Conn      // like memory
	dialed uint64          // number of dials
}

// outboundMemory is a connection over which memory is shared with the first rank. One verb at a
// time uses it.
type outboundMemory struct {
	*shm.Conn
	number uint64
	known  map[segment]bool // segments that the first rank has mapped
}

// segment identifies a segment of shared memory.
type segment struct {
	arena  uint64
	number uint32
}

// knows reports whether the first rank has mapped the segments of all refs.
func (l *outboundMemory) knows(refs []shm.Ref) bool {
	return !slices.ContainsFunc(refs, func(r shm.Ref) bool { return !l.known[segment{r.Arena, r.Segment}] })
}

// learn notes that the first rank has mapped the segments of refs.
func (l *outboundMemory) learn(refs []shm.Ref) {
	for _, r := range refs {
		l.known[segment{r.Arena, r.Segment}] = true
	}
}

// memoryOut returns the connection over which to share memory with the first rank. It returns nil
// without an error if the two cannot share memory.
func (v *verb) memoryOut(ctx context.Context) (*outboundMemory, error) {
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
	out.memory = &outboundMemory{shm.NewConn(unix), conn.Number, map[segment]bool{}}
	return out.memory, nil
}

// streamOut returns the number of the stream over which the first rank can fetch from this one.
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
		_ = v.ga.exports.serve(conn, conn.ID) // the first rank reports what it could not fetch
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

// lose removes a stream that has ended; the next verb dials another.
func (out *outbound) lose(conn *link.Conn) {
	_ = conn.Close()
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.stream == conn {
		out.stream = nil
	}
}

// reset closes the connections, after a verb that failed: the first rank may have asked for data
// that it will not read, and may never release what was shared with it. The arena does not reuse
// memory that is shared over a closed connection.
func (out *outbound) reset() {
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

func (out *outbound) close() {
	out.mu.Lock()
	out.closed = true
	out.mu.Unlock()
	out.reset()
	out.wg.Wait()
}
