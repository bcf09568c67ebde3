package etcdlog_test

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sort"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// memEtcd is an etcd in memory: the subset that a store uses. It has linearizable reads, also of earlier
// revisions, transactions that compare revisions, watches from a revision on, and compaction.
//
// A memTransport carries requests and responses, and injects faults: requests may be delayed, lost,
// carried out without an answer, or carried out after their caller has given up.
//
// Its methods may be called by several goroutines at once.
type memEtcd struct {
	mu        sync.Mutex // protects the fields below
	rev       int64
	compacted int64
	keys      map[string][]*mvccpb.KeyValue // versions of each key, in order; Version 0 is a deletion
	events    []*clientv3.Event             // changes since compacted, in order
	changed   chan struct{}                 // closed by the next change
}

// newMemEtcd returns an etcd without keys.
func newMemEtcd() *memEtcd {
	return &memEtcd{rev: 1, keys: map[string][]*mvccpb.KeyValue{}, changed: make(chan struct{})}
}

// memTransport carries the requests of a client to a memEtcd, and its answers back.
type memTransport interface {
	// Call carries a request and its answer: it calls do once, from any goroutine, and then returns
	// nil. When it returns an error, do may have been called, may be called later, or never.
	Call(ctx context.Context, do func()) error
	// Deliver returns nil when a watch response may reach the client. An error ends the watch.
	Deliver(ctx context.Context) error
}

// direct is a memTransport without faults.
type direct struct{}

func (direct) Call(_ context.Context, do func()) error { do(); return nil }

func (direct) Deliver(ctx context.Context) error { return ctx.Err() }

// Client returns a client that uses e over w. It has no connection, and need not be closed.
func (e *memEtcd) Client(w memTransport) *clientv3.Client {
	c := &memClient{etcd: e, transport: w}
	return &clientv3.Client{KV: clientv3.NewKVFromKVClient(c, nil), Watcher: c}
}

// Compact drops the history before a revision.
func (e *memEtcd) Compact(rev int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.compacted = max(e.compacted, min(rev, e.rev))
	e.events = slices.DeleteFunc(e.events, func(ev *clientv3.Event) bool { return ev.Kv.ModRevision <= e.compacted })
	for key, versions := range e.keys {
		first := 0
		for first+1 < len(versions) && versions[first+1].ModRevision <= e.compacted {
			first++
		}
		if e.keys[key] = versions[first:]; len(e.keys[key]) == 1 && versions[first].Version == 0 && versions[first].ModRevision <= e.compacted {
			delete(e.keys, key)
		}
	}
}

// Revision returns the revision of the last change.
func (e *memEtcd) Revision() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rev
}

// Keys returns the keys with a prefix, sorted.
func (e *memEtcd) Keys(prefix string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keysAt([]byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix)), e.rev)
}

// versionAt returns the version of a key at a revision, or nil.
func (e *memEtcd) versionAt(key string, rev int64) *mvccpb.KeyValue {
	versions := e.keys[key]
	i := sort.Search(len(versions), func(i int) bool { return versions[i].ModRevision > rev })
	if i == 0 || versions[i-1].Version == 0 {
		return nil
	}
	return versions[i-1]
}

// keysAt returns the keys in [key, end) that existed at a revision, sorted. An empty end means key
// alone.
func (e *memEtcd) keysAt(key, end []byte, rev int64) (keys []string) {
	for k := range e.keys {
		if in([]byte(k), key, end) && e.versionAt(k, rev) != nil {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func in(k, key, end []byte) bool {
	if len(end) == 0 {
		return bytes.Equal(k, key)
	}
	return bytes.Compare(k, key) >= 0 && (bytes.Equal(end, []byte{0}) || bytes.Compare(k, end) < 0)
}

func (e *memEtcd) header() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: e.rev} }

// get reads at the revision of the request, or at the current one.
func (e *memEtcd) get(r *pb.RangeRequest, current int64) *pb.RangeResponse {
	rev := cmp.Or(r.Revision, current)
	resp := &pb.RangeResponse{Header: e.header()}
	for _, k := range e.keysAt(r.Key, r.RangeEnd, rev) {
		if resp.Count++; r.CountOnly {
			continue
		}
		if r.Limit > 0 && int64(len(resp.Kvs)) >= r.Limit {
			resp.More = true
			continue
		}
		kv := copyOf(e.versionAt(k, rev))
		if r.KeysOnly {
			kv.Value = nil
		}
		resp.Kvs = append(resp.Kvs, kv)
	}
	return resp
}

// copyOf copies the fields: a message has others, which its methods change.
func copyOf(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version,
	}
}

// put and remove make changes at revision rev, which the caller then makes current.
func (e *memEtcd) put(r *pb.PutRequest, rev int64) {
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, ModRevision: rev, CreateRevision: rev, Version: 1}
	if before := e.versionAt(string(r.Key), rev); before != nil {
		kv.CreateRevision, kv.Version = before.CreateRevision, before.Version+1
	}
	e.change(mvccpb.PUT, kv)
}

func (e *memEtcd) remove(r *pb.DeleteRangeRequest, rev int64) (n int64) {
	for _, k := range e.keysAt(r.Key, r.RangeEnd, rev) {
		e.change(mvccpb.DELETE, &mvccpb.KeyValue{Key: []byte(k), ModRevision: rev})
		n++
	}
	return n
}

func (e *memEtcd) change(how mvccpb.Event_EventType, kv *mvccpb.KeyValue) {
	e.keys[string(kv.Key)] = append(e.keys[string(kv.Key)], kv)
	e.events = append(e.events, &clientv3.Event{Type: how, Kv: kv})
}

// txn carries out a transaction, at one revision.
func (e *memEtcd) txn(r *pb.TxnRequest) *pb.TxnResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	resp := &pb.TxnResponse{Succeeded: true}
	for _, c := range r.Compare {
		resp.Succeeded = resp.Succeeded && e.compare(c)
	}
	ops := r.Success
	if !resp.Succeeded {
		ops = r.Failure
	}
	before := len(e.events)
	for _, op := range ops {
		own := &pb.ResponseOp{}
		switch {
		case op.GetRequestRange() != nil:
			current := e.rev
			if len(e.events) > before { // a transaction reads its own changes
				current++
			}
			own.Response = &pb.ResponseOp_ResponseRange{ResponseRange: e.get(op.GetRequestRange(), current)}
		case op.GetRequestPut() != nil:
			e.put(op.GetRequestPut(), e.rev+1)
			own.Response = &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}
		case op.GetRequestDeleteRange() != nil:
			n := e.remove(op.GetRequestDeleteRange(), e.rev+1)
			own.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Deleted: n}}
		default:
			panic("memetcd: no such operation in a transaction")
		}
		resp.Responses = append(resp.Responses, own)
	}
	if len(e.events) > before {
		e.rev++
		close(e.changed)
		e.changed = make(chan struct{})
	}
	resp.Header = e.header()
	return resp
}

// compare evaluates a comparison of a key's revision of modification or creation, which is 0 for a
// key that does not exist; no others are used.
func (e *memEtcd) compare(c *pb.Compare) bool {
	kv := cmp.Or(e.versionAt(string(c.Key), e.rev), new(mvccpb.KeyValue))
	rev, want := kv.ModRevision, c.GetModRevision()
	switch c.Target {
	case pb.Compare_CREATE:
		rev, want = kv.CreateRevision, c.GetCreateRevision()
	case pb.Compare_MOD:
	default:
		panic("memetcd: it compares revisions only")
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return rev == want
	case pb.Compare_GREATER:
		return rev > want
	}
	panic("memetcd: no such comparison")
}

// memClient is a pb.KVClient and a clientv3.Watcher.
type memClient struct {
	pb.KVClient // both panic on methods other than those below
	clientv3.Watcher
	etcd      *memEtcd
	transport memTransport
}

// call sends a request through the transport.
func call[T any](ctx context.Context, c *memClient, do func() (*T, error)) (*T, error) {
	var resp *T // do may write it after call has returned
	var err error
	if failed := c.transport.Call(ctx, func() { resp, err = do() }); failed != nil {
		return nil, failed
	}
	return resp, err
}

// Range implements pb.KVClient.
func (c *memClient) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return call(ctx, c, func() (*pb.RangeResponse, error) {
		c.etcd.mu.Lock()
		defer c.etcd.mu.Unlock()
		if r.Revision > 0 && r.Revision < c.etcd.compacted {
			return nil, rpctypes.ErrGRPCCompacted
		}
		return c.etcd.get(r, c.etcd.rev), nil
	})
}

// Txn implements pb.KVClient.
func (c *memClient) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return call(ctx, c, func() (*pb.TxnResponse, error) { return c.etcd.txn(r), nil })
}

// Watch implements clientv3.Watcher, from a revision on. It owns a goroutine until ctx or the watch ends.
func (c *memClient) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	responses := make(chan clientv3.WatchResponse)
	next := op.Rev()
	go func() {
		defer close(responses)
		for {
			resp, more := c.etcd.since(next, op.KeyBytes(), op.RangeBytes())
			if resp == nil {
				select {
				case <-more:
					continue
				case <-ctx.Done():
					return
				}
			}
			if c.transport.Deliver(ctx) != nil {
				return
			}
			select {
			case responses <- *resp:
			case <-ctx.Done():
				return
			}
			if resp.Canceled {
				return
			}
			next = resp.Header.Revision + 1
		}
	}()
	return responses
}

// since returns a response with the changes since a revision, always of whole revisions. If there
// are none, it returns a channel that the next change closes.
func (e *memEtcd) since(rev int64, key, end []byte) (*clientv3.WatchResponse, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if rev <= e.compacted {
		return &clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Canceled: true, CompactRevision: e.compacted + 1}, nil
	}
	resp := &clientv3.WatchResponse{Header: e.header()}
	for _, ev := range e.events[sort.Search(len(e.events), func(i int) bool { return e.events[i].Kv.ModRevision >= rev }):] {
		if in(ev.Kv.Key, key, end) {
			resp.Events = append(resp.Events, ev)
		}
	}
	if len(resp.Events) == 0 {
		return nil, e.changed
	}
	return resp, nil
}
