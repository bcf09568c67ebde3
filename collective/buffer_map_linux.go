package collective

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
)

// newSharedBuffer allocates this rank's buffer, and returns the ref by which others map it. Both
// are nil if there is no shared memory.
func newSharedBuffer(allowed pgroup.SharedMemory) (*sharedBuffers, *shm.Ref) {
	if allowed.Check(bufferSize) != nil {
		return nil, nil
	}
	arena, err := shm.NewArena(nil)
	if err != nil {
		return nil, nil
	}
	mine, err := arena.Alloc(bufferSize)
	if err != nil {
		_ = arena.Close()
		return nil, nil
	}
	clear(mine)
	ref, _ := arena.Find(mine)
	return &sharedBuffers{arena: arena, mine: mine}, &ref
}

// discard frees a buffer that is not needed.
func (m *sharedBuffers) discard() {
	if m != nil {
		m.close()
	}
}

// connect maps the buffers of the other ranks of this host. It tries all even if one fails, since
// these ranks wait for it.
func (m *sharedBuffers) connect(ctx context.Context, c *core, ranks []int, me int, refs []*shm.Ref) (err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	m.me, m.all = me, make([][]byte, len(ranks))
	m.all[me] = m.mine
	for i, rank := range ranks {
		if i != me {
			err = errors.Join(err, m.exchange(ctx, c, i, rank, refs))
		}
	}
	return err
}

// connectTime bounds how long the ranks of a host take to map each other's buffers. If that fails,
// they use connections.
const connectTime = 10 * time.Second

// exchange maps the buffer of the rank with index i, which maps this rank's. The one with the
// higher index dials, and sends first.
func (m *sharedBuffers) exchange(ctx context.Context, c *core, i, rank int, refs []*shm.Ref) error {
	conn, err := c.memoryTo(ctx, rank, i < m.me)
	if err != nil {
		return err
	}
	m.conns = append(m.conns, conn)
	share := func() error { return conn.Share(ctx, m.arena, *refs[m.me]) }
	if i < m.me {
		if err := share(); err != nil {
			return err
		}
	}
	blocks, err := conn.Map(ctx, *refs[i])
	if err != nil {
		return err
	}
	m.mapped = append(m.mapped, blocks...)
	if refs[i].Offset%headStride != 0 { // its numbers would not be aligned
		return fmt.Errorf("rank %d shares memory at %d: another version of muster?", rank, refs[i].Offset)
	}
	if m.all[i] = blocks[0].Data; len(m.all[i]) < bufferSize {
		return fmt.Errorf("rank %d shares %d bytes, where %d are expected: another version of muster?", rank, len(m.all[i]), bufferSize)
	}
	if i > m.me {
		return share()
	}
	return nil
}

// memoryTo returns a connection that can pass memory, which this rank or the other one dials.
func (c *core) memoryTo(ctx context.Context, rank int, dial bool) (*shm.Conn, error) {
	conn := (*link.Conn)(nil)
	if dial {
		var err error
		if conn, err = c.mesh.Dial(ctx, rank, link.Purpose{Kind: forMemory, ID: c.group.Generation()}); err != nil {
			return nil, err
		}
	} else {
		select {
		case conn = <-c.conns.memory[rank]:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.over.Done():
			return nil, context.Cause(c.over)
		}
	}
	unix, ok := conn.Conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("rank %d cannot be reached over a unix socket", rank)
	}
	return shm.NewConn(unix), nil
}
