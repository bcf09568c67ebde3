package etcdstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// members are those of a cluster. All calls and watches of an engine are at one of them; when that does not answer, all move on to the next:
// one that hangs, or was cut off, does not say so, and an open watch least of all.
type members struct {
	o         *Options
	endpoints []string
	life      context.Context

	turn chan struct{} // has one while a client is being made

	mu      sync.Mutex // protects the fields below
	clients []*clientv3.Client
	at      int
	term    *term
}

// term is the time that an engine spends at one member.
type term struct {
	client *clientv3.Client
	kv     pb.KVClient
	ctx    context.Context
	end    context.CancelFunc
}

func newMembers(life context.Context, endpoints []string, o *Options) *members {
	return &members{
		o: o, endpoints: endpoints, life: life, turn: make(chan struct{}, 1),
		clients: make([]*clientv3.Client, len(endpoints)), at: rand.IntN(len(endpoints)),
	}
}

// now is the term that goes on.
func (m *members) now(ctx context.Context) (*term, error) {
	if t := m.current(); t != nil {
		return t, nil
	}
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if t := m.current(); t != nil {
		return t, nil
	}
	m.mu.Lock()
	at, client := m.at, m.clients[m.at]
	m.mu.Unlock()
	if client == nil {
		config := m.o.config(m.endpoints[at : at+1])
		config.Context = m.life
		if until, ok := ctx.Deadline(); ok {
			config.DialTimeout = max(1, min(config.DialTimeout, time.Until(until)))
		}
		var err error
		if client, err = clientv3.New(config); err != nil { // it asks for a token, if there is a user
			m.next(nil)
			return nil, err
		}
	}
	t := &term{client: client, kv: clientv3.RetryKVClient(client)}
	t.ctx, t.end = context.WithCancel(m.life)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clients[at], m.term = client, t
	return t, nil
}

func (m *members) current() *term {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term
}

// leave ends a term after an error, if another member may do better.
func (m *members) leave(t *term, err error) {
	if len(m.endpoints) > 1 && !is(err, rpctypes.ErrGRPCLeaderChanged) && !is(err, rpctypes.ErrGRPCRequestTooManyRequests) {
		m.next(t)
	}
}

// next moves on, unless somebody else has.
func (m *members) next(t *term) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.term != t {
		return
	}
	if t != nil {
		t.end()
	}
	m.term, m.at = nil, (m.at+1)%len(m.endpoints)
}

func (m *members) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.clients {
		if c != nil {
			_ = c.Close()
		}
	}
}

// again calls try until it has an answer, ctx ends, or etcd has not been reached for the time that mending may take. Each attempt
// has a time of its own.
func (e *Engine) again(ctx context.Context, try func(ctx context.Context, t *term) error) error {
	for began, pause := time.Now(), time.Millisecond; ; {
		err := e.once(ctx, try)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !transient(err):
			return err
		case time.Since(began) > e.o.Mend:
			return unavailable(err)
		}
		if err := rest(ctx, jitter(pause)); err != nil {
			return err
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// once is one attempt. A member that has not answered it is left.
func (e *Engine) once(ctx context.Context, try func(ctx context.Context, t *term) error) error {
	attempt, cancel := context.WithTimeout(ctx, min(e.o.Attempt, max(e.o.Mend, time.Millisecond)))
	defer cancel()
	t, err := e.members.now(attempt)
	if err != nil {
		return err
	}
	if err = try(attempt, t); err == nil || ctx.Err() != nil {
		return err
	}
	if attempt.Err() != nil { // which servers tell in words of their own
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if transient(err) {
		e.members.leave(t, err)
	}
	return err
}
