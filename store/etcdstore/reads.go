package etcdstore

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/wire"
)

// mostOps is how many operations go into one transaction: etcd takes 128.
const mostOps = 100

// delete deletes keys, so many at once.
func (e *Engine) delete(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	keys := slices.Clone(req.Keys)
	slices.Sort(keys)
	for some := range slices.Chunk(slices.Compact(keys), mostOps) {
		p := &plan{how: howDelete}
		for _, key := range some {
			p.then = append(p.then, opDelete(e.root.entry(key)))
		}
		p.count = func(ctx context.Context, rep *wire.Reply, resp *pb.TxnResponse, rev int64) error {
			return e.countDeleted(ctx, rep, resp, some, rev)
		}
		var part wire.Reply
		if err := e.change(ctx, &part, func(context.Context, []*pb.ResponseOp) (*plan, error) { return p, nil }); err != nil || part.Code != wire.CodeOK {
			part.N += rep.N
			*rep = part
			return err
		}
		rep.N += part.N
		rep.Rev = part.Rev
	}
	return nil
}

// countDeleted counts what a transaction has deleted. If its answer was lost, what was there before tells.
func (e *Engine) countDeleted(ctx context.Context, rep *wire.Reply, resp *pb.TxnResponse, keys []string, rev int64) error {
	if resp != nil {
		for _, r := range resp.Responses {
			rep.N += r.GetResponseDeleteRange().GetDeleted()
		}
		return nil
	}
	for _, key := range keys {
		before, err := e.get(ctx, e.root.entry(key), at(rev-1), countOnly)
		if err != nil {
			return unknown(err) // compacted: it is deleted, and nobody knows any more how many there were
		}
		rep.N += before.Count
	}
	return nil
}

// take reads entries, and counts that where reads are counted: all of them, or none if one is missing.
func (e *Engine) take(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	keys := slices.Clone(req.Keys)
	if len(keys) > mostOps {
		return refuse(rep, wire.CodeTooLarge, "%d keys with counted reads, the limit is %d", len(keys), mostOps)
	}
	unique := slices.Clone(keys)
	slices.Sort(unique)
	unique = slices.Compact(unique)
	var gets []op
	for _, key := range unique {
		gets = append(gets, opGet(e.root.entry(key)))
	}
	return e.change(ctx, rep, func(ctx context.Context, seen []*pb.ResponseOp) (*plan, error) {
		if seen == nil {
			resp, err := e.txn(ctx, nil, gets, nil)
			if err != nil {
				return nil, err
			}
			seen = resp.Responses
		}
		entries := make(map[string]*mvccpb.KeyValue, len(unique))
		for i, key := range unique {
			entries[key] = found(seen[i])
		}
		return e.taking(keys, entries, gets), nil
	})
}

// taking plans a read of each of keys. One that is there twice is read twice.
func (e *Engine) taking(keys []string, entries map[string]*mvccpb.KeyValue, gets []op) *plan {
	p := &plan{orElse: gets}
	reads := map[string]uint32{}
	for _, key := range keys {
		kv := entries[key]
		if kv == nil {
			if !slices.Contains(p.rep.Keys, key) {
				p.rep.Keys = append(p.rep.Keys, key)
			}
			continue
		}
		v, left, _ := decodeValue(kv.Value)
		if left > 0 && reads[key] == left { // its last read is one of these
			p.rep.Keys = append(p.rep.Keys, key)
			continue
		}
		reads[key]++
		p.rep.Values = append(p.rep.Values, bytes.Clone(v))
	}
	if len(p.rep.Keys) > 0 {
		p.rep.Code, p.rep.Values = wire.CodeNotFound, nil
		return p
	}
	for key, n := range reads {
		e.takeOne(p, e.root.entry(key), entries[key], n)
	}
	return p
}

// takeOne adds to p what n reads do to an entry.
func (e *Engine) takeOne(p *plan, key string, kv *mvccpb.KeyValue, n uint32) {
	v, left, _ := decodeValue(kv.Value)
	p.when = append(p.when, changedAt(key, kv.ModRevision))
	switch left {
	case 0:
	case n:
		p.then, p.how = append(p.then, opDelete(key)), howTaken
	default:
		p.then = append(p.then, opPut(key, encodeValue(v, left-n, true), clientv3.LeaseID(kv.Lease)))
	}
}

// What one answer to OpList or OpChanges holds at most.
const (
	pageKeys  = 1000
	pageBytes = 1 << 20
)

// list answers a page. It asks for a few entries first, since nobody knows how large they are.
func (e *Engine) list(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	limit, values := int64(pageKeys), req.Delta >= 0
	switch {
	case req.Delta > 0:
		limit = min(limit, req.Delta)
	case req.Delta < 0:
		limit = min(limit, -max(req.Delta, -limit))
	}
	prefix := e.root.entry(req.Key)
	from, to := prefix, end(prefix)
	if len(req.Keys) > 0 {
		from = max(from, e.root.entry(req.Keys[0])+"\x00")
	}
	leases := map[int64]time.Duration{}
	for bytes, some := 0, int64(16); from < to && int64(len(rep.Keys)) < limit && bytes < pageBytes; some *= 4 {
		opts := []span{upTo(to), atMost(min(some, limit-int64(len(rep.Keys))))}
		if !values {
			opts = append(opts, keysOnly, atMost(limit-int64(len(rep.Keys))))
		}
		resp, err := e.get(ctx, from, opts...)
		if err != nil {
			return err
		}
		rep.Rev, rep.N = uint64(resp.Header.Revision), 0
		for _, kv := range resp.Kvs {
			n, err := e.listed(ctx, kv, values, leases, rep)
			if err != nil {
				return err
			}
			bytes += n
			from = string(kv.Key) + "\x00"
		}
		if !resp.More {
			return nil
		}
		rep.N = 1
		if bytes > 0 {
			some = max(some, int64(len(rep.Keys))*pageBytes/int64(bytes)/8)
		}
	}
	return nil
}

// listed adds an entry to a page, and returns its size.
func (e *Engine) listed(ctx context.Context, kv *mvccpb.KeyValue, values bool, leases map[int64]time.Duration, rep *wire.Reply) (size int, err error) {
	left, known := leases[kv.Lease]
	if kv.Lease != 0 && values && !known {
		if left, err = e.timeToLive(ctx, clientv3.LeaseID(kv.Lease)); err != nil {
			return 0, err
		}
		left = max(left, 1)
		leases[kv.Lease] = left
	}
	key := strings.TrimPrefix(string(kv.Key), e.root.entry(""))
	rep.Keys = append(rep.Keys, key)
	rep.Nums = append(rep.Nums, kv.ModRevision, int64(left))
	size = len(key)
	if values {
		v, _, _ := decodeValue(kv.Value)
		rep.Values = append(rep.Values, v)
		size += len(v)
	}
	return size, nil
}
