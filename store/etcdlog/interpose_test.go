package etcdlog_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// interposer stands between a process and its etcd. Its commit gets the operations of each
// transaction, and decides what happens to them.
type interposer struct {
	clientv3.KV
	commit func(changes []clientv3.Op, do func(ctx context.Context) (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error)
}

// errCut is the error of a transaction whose answer was lost.
var errCut = status.Error(codes.Unavailable, "cut by the test")

// Txn implements clientv3.KV.
func (i *interposer) Txn(ctx context.Context) clientv3.Txn { return &interposed{of: i, ctx: ctx} }

type interposed struct {
	of     *interposer
	ctx    context.Context
	ifs    []clientv3.Cmp
	thens  []clientv3.Op
	others []clientv3.Op
}

func (x *interposed) If(cs ...clientv3.Cmp) clientv3.Txn { x.ifs = cs; return x }

func (x *interposed) Then(ops ...clientv3.Op) clientv3.Txn { x.thens = ops; return x }

func (x *interposed) Else(ops ...clientv3.Op) clientv3.Txn { x.others = ops; return x }

func (x *interposed) Commit() (*clientv3.TxnResponse, error) {
	var changes []clientv3.Op
	for _, op := range x.thens {
		if !op.IsGet() {
			changes = append(changes, op)
		}
	}
	do := func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return x.of.KV.Txn(ctx).If(x.ifs...).Then(x.thens...).Else(x.others...).Commit()
	}
	if len(changes) == 0 {
		return do(x.ctx)
	}
	return x.of.commit(changes, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		if ctx == nil {
			ctx = x.ctx
		}
		return do(ctx)
	})
}

// late delays the first attempt of every transaction. The client makes another attempt meanwhile;
// release carries out the delayed one.
type late struct {
	mu      sync.Mutex
	seen    map[string]bool
	delayed []func(ctx context.Context) (*clientv3.TxnResponse, error)
}

// of delays the transactions of c.
func (l *late) of(c *clientv3.Client) {
	l.seen = map[string]bool{}
	c.KV = &interposer{KV: c.KV, commit: func(changes []clientv3.Op, do func(ctx context.Context) (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error) {
		var name strings.Builder
		for _, op := range changes {
			name.WriteString(string(op.KeyBytes()) + string(op.RangeBytes()) + string(op.ValueBytes()))
		}
		if strings.Contains(name.String(), "/leader") || strings.HasSuffix(name.String(), "/beat") {
			return do(nil)
		}
		l.mu.Lock()
		first := !l.seen[name.String()]
		if l.seen[name.String()] = true; first {
			l.delayed = append(l.delayed, do)
		}
		l.mu.Unlock()
		if first {
			return nil, errCut
		}
		return do(nil)
	}}
}

// count returns the number of delayed attempts.
func (l *late) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.delayed)
}

// release carries out the first n delayed attempts.
func (l *late) release(t testing.TB, n int) {
	t.Helper()
	l.mu.Lock()
	delayed := l.delayed[:n]
	l.mu.Unlock()
	for _, do := range delayed {
		if _, err := do(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
}
