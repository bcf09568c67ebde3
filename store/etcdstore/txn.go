package etcdstore

import (
	"context"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Requests are made of etcd's messages themselves. The client's own builders copy each condition up to five times: a tenth of what a vote
// costs its process.

type (
	cond = *pb.Compare   // what a transaction needs to be so
	op   = *pb.RequestOp // what it does
)

// span says which keys, and how much of them, instead of one key.
type span func(r *pb.RangeRequest)

// prefixed is all keys that begin with the key.
func prefixed(r *pb.RangeRequest) { r.RangeEnd = []byte(end(string(r.Key))) }

// upTo is the keys from the key to another one, without that.
func upTo(to string) span { return func(r *pb.RangeRequest) { r.RangeEnd = []byte(to) } }

func atMost(n int64) span { return func(r *pb.RangeRequest) { r.Limit = n } }
func at(rev int64) span   { return func(r *pb.RangeRequest) { r.Revision = rev } }

func keysOnly(r *pb.RangeRequest)  { r.KeysOnly = true }
func countOnly(r *pb.RangeRequest) { r.CountOnly = true }

// byValue begins with the largest value.
func byValue(r *pb.RangeRequest) {
	r.SortOrder, r.SortTarget = pb.RangeRequest_DESCEND, pb.RangeRequest_VALUE
}

// newestFirst begins with what was changed last.
func newestFirst(r *pb.RangeRequest) {
	r.SortOrder, r.SortTarget = pb.RangeRequest_DESCEND, pb.RangeRequest_MOD
}

func ranged(key string, spans []span) *pb.RangeRequest {
	r := &pb.RangeRequest{Key: []byte(key)}
	for _, s := range spans {
		s(r)
	}
	return r
}

func opGet(key string, spans ...span) op {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: ranged(key, spans)}}
}

// opPut puts a value, under a lease unless that is 0.
func opPut(key, value string, lease clientv3.LeaseID) op {
	r := &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: int64(lease)}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

func opDelete(key string, spans ...span) op {
	r := ranged(key, spans)
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: r.Key, RangeEnd: r.RangeEnd}}}
}

func opTxn(when []cond, then, orElse []op) op {
	r := &pb.TxnRequest{Compare: when, Success: then, Failure: orElse}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
}

// condition is one on a key, or on all there are of several.
func condition(key string, spans []span, target pb.Compare_CompareTarget, result pb.Compare_CompareResult) cond {
	r := ranged(key, spans)
	return &pb.Compare{Key: r.Key, RangeEnd: r.RangeEnd, Target: target, Result: result}
}

func created(key string, result pb.Compare_CompareResult, rev int64, spans []span) cond {
	c := condition(key, spans, pb.Compare_CREATE, result)
	c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: rev}
	return c
}

func absent(key string, spans ...span) cond  { return created(key, pb.Compare_EQUAL, 0, spans) }
func present(key string, spans ...span) cond { return created(key, pb.Compare_GREATER, 0, spans) }

// createdAt is that a key is there, and the one that was created at a revision.
func createdAt(key string, rev int64) cond { return created(key, pb.Compare_EQUAL, rev, nil) }

func changed(key string, result pb.Compare_CompareResult, rev int64, spans []span) cond {
	c := condition(key, spans, pb.Compare_MOD, result)
	c.TargetUnion = &pb.Compare_ModRevision{ModRevision: rev}
	return c
}

// changedAt is that a key is as it was put at a revision; that it is not there with 0.
func changedAt(key string, rev int64) cond { return changed(key, pb.Compare_EQUAL, rev, nil) }

// unchanged is that nothing that begins with prefix has been put since a revision.
func unchanged(prefix string, since int64) cond {
	return changed(prefix, pb.Compare_LESS, since+1, []span{prefixed})
}

func valueIs(key, value string, spans ...span) cond {
	c := condition(key, spans, pb.Compare_VALUE, pb.Compare_EQUAL)
	c.TargetUnion = &pb.Compare_Value{Value: []byte(value)}
	return c
}

func valueBelow(key, value string, spans ...span) cond {
	c := condition(key, spans, pb.Compare_VALUE, pb.Compare_LESS)
	c.TargetUnion = &pb.Compare_Value{Value: []byte(value)}
	return c
}

// anySize leaves the limits of messages to etcd.
var anySize = []grpc.CallOption{grpc.MaxCallSendMsgSize(maxMessage), grpc.MaxCallRecvMsgSize(math.MaxInt32)}

// get reads keys, or ranges of them, at one moment.
func (e *Engine) get(ctx context.Context, key string, spans ...span) (resp *pb.RangeResponse, err error) {
	r := ranged(key, spans)
	err = e.again(ctx, func(ctx context.Context, t *term) error {
		resp, err = t.kv.Range(ctx, r, anySize...)
		return clientv3.ContextError(ctx, err)
	})
	return resp, err
}

// txn carries out a transaction that may be carried out twice.
func (e *Engine) txn(ctx context.Context, when []cond, then, orElse []op) (resp *pb.TxnResponse, err error) {
	r := &pb.TxnRequest{Compare: when, Success: then, Failure: orElse}
	err = e.again(ctx, func(ctx context.Context, t *term) error {
		resp, err = t.kv.Txn(ctx, r, anySize...)
		return clientv3.ContextError(ctx, err)
	})
	return resp, err
}
