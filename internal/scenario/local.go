package scenario

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Memory is a store in this process. Its sessions are opened as those of clients are: by a hello.
var Memory = Engine{
	Name:  "Memory",
	Lacks: []Feature{Connections, Restarts, Rights},
	Start: func(t *testing.T, s Settings) func(string) Session {
		m := &store.Memory{Limits: s.Limits}
		t.Cleanup(func() { _ = m.Close() })
		return func(string) Session { return Local(t, m) }
	},
}

// Local opens a session of a store in this process.
func Local(t *testing.T, m *store.Memory) Session {
	l := &localSession{memory: m}
	l.ctx, l.end = context.WithCancel(context.Background())
	var rep wire.Reply
	if err := m.Do(l.ctx, &wire.Request{Op: wire.OpHello, Key: "a session"}, &rep); err != nil {
		t.Fatal(err)
	}
	l.id = uint64(rep.N)
	return Session{Engine: l, Crash: func() { l.finish(wire.Request{Op: wire.OpLost, TTL: reconnectTimeout}) }}
}

// localSession is a session that is not core.Local.
type localSession struct {
	memory *store.Memory
	id     uint64
	calls  atomic.Uint64 // the id of the last one
	once   sync.Once
	ctx    context.Context // until Close
	end    context.CancelFunc
}

// Do implements store.Engine. When the session ends, it leaves a waiting call to the store: a process
// that has crashed cancels nothing.
func (l *localSession) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if l.ctx.Err() != nil {
		return store.ErrClosed
	}
	own := *req
	own.Session, own.ID = l.id, l.calls.Add(1)
	if !req.Op.Waits() {
		return l.memory.Do(ctx, &own, rep)
	}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // inner has that too
			cancel(context.Cause(ctx))
		}
	})
	release := func() {}
	if at, ok := ctx.Deadline(); ok {
		inner, release = context.WithDeadline(inner, at)
	}
	var reply wire.Reply
	answered := make(chan error, 1)
	go func() {
		defer release()
		answered <- l.memory.Do(inner, &own, &reply)
	}()
	select {
	case err := <-answered:
		*rep = reply
		return err
	case <-l.ctx.Done():
		stop()
		return store.ErrClosed
	}
}

// Close implements store.Engine.
func (l *localSession) Close() error {
	l.finish(wire.Request{Op: wire.OpGoodbye})
	return nil
}

// finish ends the session by how.
func (l *localSession) finish(how wire.Request) {
	l.once.Do(func() {
		how.Session = l.id
		_ = l.memory.Do(context.Background(), &how, new(wire.Reply)) // the store may be closed
		l.end()
	})
}
