package torchstore

import (
	"context"
	"strings"
	"sync"

	"github.com/muster-pg/muster/wire/tcpstore"
)

// barriers are those that some have come to and others have not. They are no entries of the store: who has come is a connection of this
// server, and gone when it is. So a name can be used again, and a client that gives up, or is gone, does not count.
type barriers struct {
	mu   sync.Mutex          // protects the fields below
	open map[string]*meeting // by name
}

// meeting is one use of a barrier.
type meeting struct {
	come int64         // protected by the barriers' mu
	full chan struct{} // closed when all have come
}

// arrive counts one more. If those are all, the meeting is over.
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

// leave counts one less, unless all have come.
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

// barrier answers when as many have come as N says.
func (p *peer) barrier(_ context.Context, req *tcpstore.Request) error {
	if !p.waiting.over() {
		return errWaits
	}
	all := &p.protocol.barriers
	m := all.arrive(req.Key, req.N)
	select {
	case <-m.full:
		return p.answer(req.Op, tcpstore.Reply{N: tcpstore.StopWaiting})
	default:
	}
	name := strings.Clone(req.Key)
	return p.later(req.Op, func(ctx context.Context) (int64, error) {
		select {
		case <-m.full:
		case <-ctx.Done():
			if all.leave(name, m) {
				return 0, ctx.Err()
			}
		}
		return tcpstore.StopWaiting, nil
	})
}
