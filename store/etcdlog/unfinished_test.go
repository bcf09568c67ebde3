package etcdlog_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/store/etcdlog/internal/memetcd"
)

// direct is a memetcd.Way without faults.
type direct struct{}

func (direct) Call(_ context.Context, do func()) error { do(); return nil }

func (direct) Deliver(ctx context.Context) error { return ctx.Err() }

// watching is a client's watcher that signals when it is used.
type watching struct {
	clientv3.Watcher
	begun chan struct{}
}

func (w *watching) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	select {
	case w.begun <- struct{}{}:
	default:
	}
	return w.Watcher.Watch(ctx, key, opts...)
}

// TestStandbyBeginsDuringTakeover checks a standby that loads the log after the next leader has
// taken over, and before that leader has removed the unfinished batch of the previous one: the
// standby drops that batch, too.
func TestStandbyBeginsDuringTakeover(t *testing.T) {
	t.Parallel()
	e, o := memetcd.New(), &etcdlog.Options{Root: newRoot(), MaxValueBytes: 100, OutageTimeout: 50 * time.Millisecond, FailureTimeout: 200 * time.Millisecond}
	later := *o // of the leaders after the first
	later.OutageTimeout = testTimeout
	first, value := e.Client(direct{}), bytes.Repeat([]byte("value"), 100)
	var broken, written atomic.Bool
	first.KV = &interposer{KV: first.KV, commit: func(changes []clientv3.Op, do func(context.Context) (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error) {
		if broken.Load() && (written.Load() || strings.HasSuffix(string(changes[0].KeyBytes()), "/beat")) {
			return nil, errCut
		}
		written.Store(broken.Load()) // the first part of the batch
		return do(nil)
	}}
	m := lead(t, first, o)
	require.NoError(t, store.New(m).Set(bounded(t), "key", []byte("acknowledged"), nil))

	second := e.Client(direct{})
	takesOver, goOn := make(chan struct{}), make(chan struct{})
	second.KV = &interposer{KV: second.KV, commit: func(changes []clientv3.Op, do func(context.Context) (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error) {
		for _, op := range changes {
			if strings.HasSuffix(string(op.KeyBytes()), "/state") {
				close(takesOver)
				<-goOn
			}
		}
		return do(nil)
	}}
	secondLeads := standing(t, second, &later)
	broken.Store(true)
	require.ErrorIs(t, store.New(m).Set(bounded(t), "key", value, nil), store.ErrUnknown)
	<-takesOver
	third := e.Client(direct{})
	w := &watching{third.Watcher, make(chan struct{}, 1)}
	third.Watcher = w
	thirdLeads := standing(t, third, &later)
	<-w.begun // the standby has loaded
	close(goOn)
	x := secondLeads()
	require.NoError(t, x.Set(bounded(t), "later", value, nil))
	x.end(t)
	now := thirdLeads()
	has(t, now.Store, "key", []byte("acknowledged"))
	has(t, now.Store, "later", value)
}
