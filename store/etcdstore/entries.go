package etcdstore

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/wire"
)

// ping tells the revision of the last change: that of the mark, which is made if need be.
func (e *Engine) ping(ctx context.Context, _ *wire.Request, rep *wire.Reply) error {
	mark := e.root.mark()
	resp, err := e.txn(ctx, []cond{absent(mark)}, []op{opPut(mark, howSet, 0)}, []op{opGet(mark)})
	if err != nil {
		return err
	}
	rep.Rev = uint64(resp.Header.Revision)
	if !resp.Succeeded {
		rep.Rev = uint64(found(resp.Responses[0]).ModRevision)
	}
	return nil
}

func (e *Engine) getEntry(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if len(req.Key) > wire.MaxKey {
		return refuse(rep, wire.CodeTooLarge, "a key of %d bytes, the limit is %d", len(req.Key), wire.MaxKey)
	}
	resp, err := e.get(ctx, e.root.entry(req.Key))
	if err != nil {
		return err
	}
	if len(resp.Kvs) == 0 {
		return refuse(rep, wire.CodeNotFound, "")
	}
	v, reads, _ := decodeValue(resp.Kvs[0].Value)
	if reads > 0 {
		rep.Code = wire.CodeCounted
		return nil
	}
	rep.Value = v
	return nil
}

func (e *Engine) set(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	key, value := e.root.entry(req.Key), encodeValue(req.Value, req.Reads, false)
	return e.putFor(ctx, req, rep, func(lease int64) planner {
		return func(context.Context, []*pb.ResponseOp) (*plan, error) { return write(key, value, lease), nil }
	})
}

// putFor makes a change that puts an entry, under the lease that its TTL, or its store.Lease, needs.
func (e *Engine) putFor(ctx context.Context, req *wire.Request, rep *wire.Reply, next func(lease int64) planner) error {
	key := req.Key
	if len(key) > wire.MaxKey || len(req.Value) > wire.MaxValue {
		return refuse(rep, wire.CodeTooLarge, "%d bytes of key and %d of value: the limits are %d and %d", len(key), len(req.Value), wire.MaxKey, wire.MaxValue)
	}
	switch {
	case req.Lease != 0:
		return e.putOn(ctx, req, rep, next)
	case req.TTL == 0:
		return e.change(ctx, rep, next(0))
	}
	began := time.Now()
	id, granted, err := e.newLease(ctx, req.TTL)
	if err != nil {
		return err
	}
	err = e.change(ctx, rep, next(int64(id)))
	if err == nil && rep.Code == wire.CodeOK && granted-req.TTL < time.Since(began) { // it has lived a little before the entry was there
		_ = e.renew(ctx, id) // that it has ended already is what a TTL is for
	}
	if rep.Code != wire.CodeOK {
		_ = e.endLease(ctx, id)
	}
	return err
}

// write is a plan that puts a value; what it leaves there is known to who comes next.
func write(key, value string, lease int64) *plan {
	return &plan{
		then: []op{opPut(key, value, clientv3.LeaseID(lease))}, how: howSet,
		left: &mvccpb.KeyValue{Value: []byte(value), Lease: lease},
	}
}

// rewrite gives an entry that is there a new value, and leaves its lifetime and its reads; one that is not there is made, under lease.
func rewrite(key string, old *mvccpb.KeyValue, value []byte, lease int64) *plan {
	if old == nil {
		return write(key, encodeValue(value, 0, false), lease)
	}
	_, reads, _ := decodeValue(old.Value)
	return write(key, encodeValue(value, reads, false), old.Lease)
}

func refusal(code wire.Code, detail string) *plan {
	return &plan{rep: wire.Reply{Code: code, Detail: detail}}
}

func (e *Engine) add(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	key, delta := e.root.entry(req.Key), req.Delta
	return e.editFor(ctx, req, rep, func(old *mvccpb.KeyValue, lease int64) *plan {
		var n int64
		if old != nil {
			v, _, _ := decodeValue(old.Value)
			var err error
			if n, err = strconv.ParseInt(string(v), 10, 64); err != nil {
				return refusal(wire.CodeInvalid, "what is there is not a decimal number")
			}
		}
		if d := delta; d > 0 && n > math.MaxInt64-d || d < 0 && n < math.MinInt64-d {
			return refusal(wire.CodeInvalid, "the counter would overflow")
		}
		n += delta
		p := rewrite(key, old, strconv.AppendInt(nil, n, 10), lease)
		p.rep.N = n
		return p
	})
}

func (e *Engine) append(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	key, more := e.root.entry(req.Key), bytes.Clone(req.Value)
	return e.editFor(ctx, req, rep, func(old *mvccpb.KeyValue, lease int64) *plan {
		value := more
		if old != nil {
			v, _, _ := decodeValue(old.Value)
			value = slices.Concat(v, more)
		}
		if len(value) > wire.MaxValue {
			return refusal(wire.CodeTooLarge, "the value would have "+strconv.Itoa(len(value))+" bytes, the limit is "+strconv.Itoa(wire.MaxValue))
		}
		p := rewrite(key, old, value, lease)
		p.rep.N = int64(len(value))
		return p
	})
}

// swap makes the entry anew, without the lifetime that the old one had.
func (e *Engine) swap(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	key, from, to := e.root.entry(req.Key), bytes.Clone(req.Old), bytes.Clone(req.Value)
	return e.editFor(ctx, req, rep, func(old *mvccpb.KeyValue, lease int64) *plan {
		var now []byte
		if old != nil {
			now, _, _ = decodeValue(old.Value)
		}
		switch {
		case (old == nil) != (from == nil) || !bytes.Equal(now, from):
			p := refusal(wire.CodeConflict, "")
			p.rep.Value = now
			return p
		case to != nil:
			p := write(key, encodeValue(to, 0, false), lease)
			p.rep.Value = bytes.Clone(to)
			return p
		case old == nil:
			return &plan{}
		}
		return &plan{then: []op{opDelete(key)}, how: howDelete}
	})
}

// editFor changes an entry by what it is: how plans that, given the old one. Changes of one process to one key come one after the other,
// and each begins with what the one before has left.
func (e *Engine) editFor(ctx context.Context, req *wire.Request, rep *wire.Reply, how func(old *mvccpb.KeyValue, lease int64) *plan) error {
	key := e.root.entry(req.Key)
	l, err := e.lock(ctx, key)
	if err != nil {
		return err
	}
	defer e.unlock(key, l)
	hint := l.left
	l.left = nil
	var last atomic.Pointer[plan]
	err = e.putFor(ctx, req, rep, func(lease int64) planner {
		return func(ctx context.Context, seen []*pb.ResponseOp) (p *plan, err error) {
			if len(seen) == 0 && hint != nil {
				if p = how(hint, lease); len(p.then) > 0 {
					return e.editing(&last, key, hint, p), nil
				}
			}
			var old *mvccpb.KeyValue
			if len(seen) > 0 {
				old = found(seen[0])
			} else if old, err = e.entry(ctx, key); err != nil {
				return nil, err
			}
			return e.editing(&last, key, old, how(old, lease)), nil
		}
	})
	if p := last.Load(); err == nil && rep.Code == wire.CodeOK && p != nil && p.left != nil {
		p.left.ModRevision = int64(rep.Rev)
		l.left = p.left
	}
	return err
}

// entry is what is at a key of etcd's; nil if nothing is.
func (e *Engine) entry(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	resp, err := e.get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	return resp.Kvs[0], nil
}

// editing lets p be carried out only if old is still there.
func (e *Engine) editing(last *atomic.Pointer[plan], key string, old *mvccpb.KeyValue, p *plan) *plan {
	rev := int64(0)
	if old != nil {
		rev = old.ModRevision
	}
	p.when, p.orElse = []cond{changedAt(key, rev)}, []op{opGet(key)}
	last.Store(p)
	return p
}
