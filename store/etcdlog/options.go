package etcdlog

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
)

// Options configures a replicated store. The zero value is valid.
type Options struct {
	// Root is the prefix of all keys of this store; default "muster/". Another root is another
	// store.
	Root string
	// FailureTimeout is for how long a leader may change nothing in etcd before a standby takes
	// over; default 700 ms.
	FailureTimeout time.Duration
	// OutageTimeout is for how long a leader retries requests that etcd does not answer before it
	// stops leading; default 5 s.
	OutageTimeout time.Duration
	// MaxValueBytes is the largest value that is put into one key; default 1 MiB. It must stay
	// below etcd's --max-request-bytes (default 1.5 MiB).
	MaxValueBytes int
	// OnStatus, if not nil, is called about once a second while this process is a standby, with the
	// leader and this process's own lag. Standbys is empty if etcd did not answer. OnStatus must
	// not block, and owns s.
	OnStatus func(s *store.ReplicationStatus)
	Logger   *slog.Logger // default: discards
}

func (o *Options) withDefaults() Options {
	own := Options{}
	if o != nil {
		own = *o
	}
	own.Root = cmp.Or(own.Root, "muster/")
	own.FailureTimeout = cmp.Or(own.FailureTimeout, 700*time.Millisecond)
	own.OutageTimeout = cmp.Or(own.OutageTimeout, 5*time.Second)
	own.MaxValueBytes = cmp.Or(own.MaxValueBytes, 1<<20)
	own.Logger = cmp.Or(own.Logger, slog.New(slog.DiscardHandler))
	return own
}

// keyspace is the part of an etcd below Options.Root: its keys, and requests with time limits.
type keyspace struct {
	kv      clientv3.KV
	watcher clientv3.Watcher
	Options
}

// get reads keys within d, so that a member of etcd that does not answer costs no more than that.
func (p *keyspace) get(ctx context.Context, d time.Duration, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return p.kv.Get(ctx, key, options...)
}

// read reads a page of the log, or a part of a checkpoint. A request that is not answered is
// repeated with twice the time, up to readLimit: a checkpoint has many parts, and one lost answer
// must not make a standby start again with the first.
func (p *keyspace) read(ctx context.Context, key string, options ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	for limit := attemptTimeout; ; limit *= 2 {
		resp, err = p.get(ctx, limit, key, options...)
		if err == nil || limit > readTimeout || ctx.Err() != nil || !transient(err) || is(err, rpctypes.ErrGRPCCompacted) {
			return resp, err
		}
	}
}

// txn makes a transaction within attemptTimeout.
func (p *keyspace) txn(ctx context.Context, cmps []clientv3.Cmp, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return p.kv.Txn(ctx).If(cmps...).Then(ops...).Commit()
}

func newKeyspace(client *clientv3.Client, o *Options) *keyspace {
	return &keyspace{kv: client.KV, watcher: client.Watcher, Options: o.withDefaults()}
}

func (p *keyspace) leaderKey() string { return p.Root + "leader" }
func (p *keyspace) beatKey() string   { return p.Root + "beat" }
func (p *keyspace) stateKey() string  { return p.Root + "state" }
func (p *keyspace) logPrefix() string { return p.Root + "log/" }
