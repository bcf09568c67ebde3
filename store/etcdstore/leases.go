package etcdstore

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/wire"
)

// A store.Lease is a lease of etcd's whose id is the revision of a change that was made for it: it grows, and none comes twice. Its time at
// etcd is no longer than that of the session, and a goroutine of the engine keeps it alive while its owner's time runs: so it ends
// soon after its process does, whatever its own time is.

// lease is one of the session's.
type lease struct {
	s    *session
	id   clientv3.LeaseID
	ttl  time.Duration // its own, since it was last kept alive
	kept chan struct{} // told when it is
	ctx  context.Context
	end  context.CancelFunc

	mu    sync.Mutex                    // protects the fields below
	under map[clientv3.LeaseID]struct{} // leases of entries that also have a TTL of their own
	over  bool
}

func (e *Engine) grant(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if req.TTL <= 0 {
		return refuse(rep, wire.CodeInvalid, "a lease needs a time to live")
	}
	s, err := e.open(ctx)
	if err != nil {
		return err
	}
	var made wire.Reply
	mark := opPut(e.root.mark(), howSet, 0)
	err = e.change(ctx, &made, func(context.Context, []*pb.ResponseOp) (*plan, error) { return &plan{then: []op{mark}}, nil })
	if err != nil || made.Code != wire.CodeOK {
		*rep = made
		return err
	}
	l, err := s.newLease(ctx, clientv3.LeaseID(made.Rev), req.TTL)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.leases[uint64(l.id)] = l
	s.mu.Unlock()
	rep.N = int64(l.id)
	return nil
}

// newLease makes a lease with an id, or one of etcd's choice, and has it kept alive until ttl has passed since it last was.
func (s *session) newLease(ctx context.Context, id clientv3.LeaseID, ttl time.Duration) (*lease, error) {
	e, at := s.e, min(seconds(ttl), s.e.o.Session)
	var granted time.Duration
	err := e.again(ctx, func(ctx context.Context, t *term) error {
		resp, err := pb.NewLeaseClient(t.client.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(at / time.Second)})
		if id != 0 && is2(err, rpctypes.ErrGRPCLeaseExist) { // an attempt before this one
			granted = at
			return nil
		}
		if err == nil {
			id, granted = clientv3.LeaseID(resp.ID), time.Duration(resp.TTL)*time.Second
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	l := &lease{s: s, id: id, ttl: ttl, kept: make(chan struct{}, 1), under: map[clientv3.LeaseID]struct{}{}}
	l.ctx, l.end = context.WithCancel(s.ctx)
	e.run(func() { e.keepAlive(l.ctx, id, granted, l.end) })
	e.run(l.pass)
	return l, nil
}

// pass ends l when its time has passed since it was last kept alive.
func (l *lease) pass() {
	t := time.NewTimer(l.ttl)
	defer t.Stop()
	for {
		select {
		case <-l.kept:
			t.Reset(l.ttl)
		case <-t.C:
			_ = l.revoke(l.s.ctx)
			return
		case <-l.ctx.Done():
			if l.s.ctx.Err() == nil && !l.closing() { // etcd says that it has ended
				l.forget()
			}
			return
		}
	}
}

// forget takes l out of its session.
func (l *lease) forget() {
	l.close()
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.leases[uint64(l.id)] == l {
		delete(l.s.leases, uint64(l.id))
	}
}

// close has nothing more put under l, and returns what is.
func (l *lease) close() []clientv3.LeaseID {
	defer l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return slices.Collect(maps.Keys(l.under))
}

// closing reports whether somebody ends l. Until etcd has, it is this session's all the same: another call may end it too.
func (l *lease) closing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// revoke ends l, and what is under it.
func (l *lease) revoke(ctx context.Context) error {
	for _, id := range l.close() {
		if err := l.s.e.endLease(ctx, id); err != nil {
			return err
		}
	}
	if err := l.s.e.endLease(ctx, l.id); err != nil {
		return err
	}
	l.forget()
	return nil
}

// leaseOf finds a lease of this session; nil, and why in rep.
func (e *Engine) leaseOf(ctx context.Context, id uint64, rep *wire.Reply) (*lease, error) {
	s, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	l := s.leases[id]
	s.mu.Unlock()
	if l != nil {
		return l, nil
	}
	over, err := e.ended(ctx, clientv3.LeaseID(id))
	switch {
	case err != nil:
		return nil, err
	case over:
		return nil, refuse(rep, wire.CodeNotFound, "lease %d has ended, or never was", id)
	}
	return nil, refuse(rep, wire.CodeDenied, "lease %d is another session's", id)
}

func (e *Engine) keep(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	l, err := e.leaseOf(ctx, req.Lease, rep)
	if l == nil {
		return err
	}
	over, err := e.ended(ctx, l.id)
	switch {
	case err != nil:
		return err
	case over:
		l.forget()
		return refuse(rep, wire.CodeNotFound, "lease %d has ended", req.Lease)
	}
	select {
	case l.kept <- struct{}{}:
	default:
	}
	return nil
}

func (e *Engine) revoke(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	l, err := e.leaseOf(ctx, req.Lease, rep)
	if l == nil {
		return err
	}
	return l.revoke(ctx)
}

// putOn puts an entry under a store.Lease; with a TTL too, under a lease of its own, which ends with that one.
func (e *Engine) putOn(ctx context.Context, req *wire.Request, rep *wire.Reply, next func(lease int64) planner) error {
	l, err := e.leaseOf(ctx, req.Lease, rep)
	if l == nil {
		return err
	}
	if req.TTL == 0 || req.TTL >= l.ttl && l.ttl <= e.o.Session {
		return e.change(ctx, rep, next(int64(l.id)))
	}
	own, err := l.s.newLease(ctx, 0, req.TTL)
	if err != nil {
		return err
	}
	l.mu.Lock()
	over := l.over
	if !over {
		l.under[own.id] = struct{}{}
	}
	l.mu.Unlock()
	if over {
		_ = own.revoke(ctx)
		return refuse(rep, wire.CodeNotFound, "lease %d has ended", req.Lease)
	}
	return e.change(ctx, rep, next(int64(own.id)))
}
