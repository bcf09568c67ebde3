package tcpstore

import (
	"context"
	"strings"
	"sync"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// barriers are the barriers that some clients have reached and others have not. They are not
// entries of the store: an arrival belongs to a connection of this server, and ends with it. So a
// name can be used again, and a client that gives up or disconnects does not count.
type barriers struct {
	mu   sync.Mutex          // protects the fields below
	open map[string]*meeting // by name
}

// meeting is one use of a barrier.
type meeting struct {
	come int64         // clients that have arrived; protected by the barriers' mu
	full chan struct{} // closed when all clients have arrived
}

// arrive counts one more client. If all have arrived, the barrier is complete.
func (b *barriers) arrive(name string, size int64) *meeting {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.open[name]
	if m == nil {
		m = &meeting{full: make(chan struct{})}
	}
	m.come++
	switch {
	case m.come >= size:
		delete(b.open, name)
		close(m.full)
	case m.come == 1:
		if b.open == nil {
			b.open = map[string]*meeting{}
		}
		b.open[strings.Clone(name)] = m
	}
	return m
}

// leave counts one client less, unless the barrier is complete.
func (b *barriers) leave(name string, m *meeting) (left bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[name] != m {
		return false
	}
	if m.come--; m.come == 0 {
		delete(b.open, name)
	}
	return true
}

// barrier answers once N clients have arrived.
func (p *peer) barrier(_ context.Context, req *tcpwire.Request) error {
	if !p.waiting.over() {
		return errWaits
	}
	all := &p.protocol.barriers
	m := all.arrive(req.Key, req.N)
	select {
	case <-m.full:
		return p.answer(req.Op, tcpwire.Reply{N: tcpwire.StopWaiting})
	default:
	}
	name := strings.Clone(req.Key)
	return p.later(req.Op, func(ctx context.Context) (int64, error) {
		p.startWait("barrier " + name)
		select {
		case <-m.full:
		case <-ctx.Done():
			if all.leave(name, m) {
				return 0, ctx.Err()
			}
		}
		return tcpwire.StopWaiting, nil
	})
}
