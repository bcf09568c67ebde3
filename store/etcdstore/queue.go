package etcdstore

import (
	"bytes"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/muster-pg/muster/wire"
)

// push puts a value behind those that a queue's head tells of.
func (e *Engine) push(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	queue, value := req.Key, bytes.Clone(req.Value)
	return e.editQueue(ctx, queue, rep, func(_ context.Context, h wire.QueueHead, head string) (*plan, error) {
		then := []op{opPut(e.root.entry(wire.QueuedKey(queue, h.Next)), encodeValue(value, 0, false), 0)}
		h.Next++
		p := &plan{then: append(then, opPut(head, encodeValue(wire.AppendQueueHead(nil, h), 0, false), 0)), how: howSet}
		p.rep.N = h.Len()
		return p, nil
	})
}

// pop takes the first value out with its number. It is read before: as long as the head is the same, nobody else takes it.
func (e *Engine) pop(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	queue := req.Key
	return e.editQueue(ctx, queue, rep, func(ctx context.Context, h wire.QueueHead, head string) (*plan, error) {
		if h.Len() == 0 {
			return refusal(wire.CodeNotFound, ""), nil
		}
		resp, err := e.get(ctx, e.root.entry(wire.QueuedKey(queue, h.First)), upTo(e.root.entry(wire.QueuedKey(queue, h.Next))), atMost(1))
		if err != nil {
			return nil, err
		}
		if len(resp.Kvs) == 0 { // somebody has deleted the values
			return &plan{then: []op{opDelete(head)}, how: howDelete, rep: wire.Reply{Code: wire.CodeNotFound}}, nil
		}
		kv := resp.Kvs[0]
		p := &plan{then: []op{opDelete(string(kv.Key))}, how: howDelete}
		p.rep.Value, _, _ = decodeValue(kv.Value)
		h.First = lastNumber(kv.Key)
		p.rep.N = h.Len()
		if h.First++; h.Len() == 0 {
			p.then = append(p.then, opDelete(head))
		} else {
			p.then = append(p.then, opPut(head, encodeValue(wire.AppendQueueHead(nil, h), 0, false), 0))
		}
		return p, nil
	})
}

// editQueue changes a queue by what its head is: how plans that. Changes of one process to one queue come one after the other.
func (e *Engine) editQueue(ctx context.Context, queue string, rep *wire.Reply, how func(ctx context.Context, h wire.QueueHead, head string) (*plan, error)) error {
	if n := len(wire.QueuedKey(queue, 0)); n > wire.MaxKey {
		return refuse(rep, wire.CodeTooLarge, "a key of %d bytes, the limit is %d", n, wire.MaxKey)
	}
	key := e.root.entry(wire.QueueKey(queue))
	l, err := e.lock(ctx, key)
	if err != nil {
		return err
	}
	defer e.unlock(key, l)
	l.left = nil
	return e.change(ctx, rep, func(ctx context.Context, seen []*pb.ResponseOp) (*plan, error) {
		var old *mvccpb.KeyValue
		var err error
		if len(seen) > 0 {
			old = found(seen[0])
		} else if old, err = e.entry(ctx, key); err != nil {
			return nil, err
		}
		var h wire.QueueHead
		rev := int64(0)
		if old != nil {
			v, _, _ := decodeValue(old.Value)
			var ok bool
			if h, ok = wire.ParseQueueHead(v); !ok {
				return refusal(wire.CodeInvalid, "the entry at the queue's key is no queue: delete it"), nil
			}
			rev = old.ModRevision
		}
		p, err := how(ctx, h, key)
		if err == nil {
			p.when, p.orElse = []cond{changedAt(key, rev)}, []op{opGet(key)}
		}
		return p, err
	})
}
