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

// Options has defaults for its zero value.
type Options struct {
	// Root is what all keys of this store begin with; default "muster/". What is below another root is another store.
	Root string
	// FailureTimeout is for how long a leader may change nothing in etcd until a standby takes over; default 700 ms.
	FailureTimeout time.Duration
	// Outage is for how long a leader tries to reach etcd before it gives up leading; default 5 s.
	Outage time.Duration
	// Part is how many bytes one key has at most; default 1 MiB. It must stay below etcd's --max-request-bytes (1.5 MiB).
	Part int
	// Follows, if it is not nil, is called about once a second while this process is a standby, with what it knows: who leads, and
	// its own Lag (no Standbys: etcd did not answer). It must not block, and owns s.
	Follows func(s *store.ReplicationStatus)
	// Compact has the leader compact etcd's history with each checkpoint, up to the one before. That drops the history of all keys of
	// the etcd, not only of those below Root: set it in an etcd of this store's own. Without it the etcd must compact itself
	// (--auto-compaction-retention).
	Compact bool
	Logger  *slog.Logger // nil is silent

	reports time.Duration // between those of a standby; default reports
}

func (o *Options) withDefaults() Options {
	own := Options{}
	if o != nil {
		own = *o
	}
	own.Root = cmp.Or(own.Root, "muster/")
	own.FailureTimeout = cmp.Or(own.FailureTimeout, 700*time.Millisecond)
	own.Outage = cmp.Or(own.Outage, 5*time.Second)
	own.Part = cmp.Or(own.Part, 1<<20)
	own.reports = cmp.Or(own.reports, reports)
	if own.Logger == nil {
		own.Logger = slog.New(slog.DiscardHandler)
	}
	return own
}

// place is a store's part of an etcd.
type place struct {
	kv      clientv3.KV
	watcher clientv3.Watcher
	Options
}

// get reads keys, in no longer than d: a member of etcd that has gone silent is to cost no more than that.
func (p *place) get(ctx context.Context, d time.Duration, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return p.kv.Get(ctx, key, options...)
}

// read reads a page of the log, or a part of a checkpoint. An attempt that brings no answer is made again, with more time: a checkpoint has
// many parts, and a standby is not to begin anew with the first because of one.
func (p *place) read(ctx context.Context, key string, options ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	for limit := attempt; ; limit *= 2 {
		resp, err = p.get(ctx, limit, key, options...)
		if err == nil || limit > reading || ctx.Err() != nil || !transient(err) || is(err, rpctypes.ErrGRPCCompacted) {
			return resp, err
		}
	}
}

// txn makes a transaction, in no longer than attempt.
func (p *place) txn(ctx context.Context, cmps []clientv3.Cmp, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	return p.kv.Txn(ctx).If(cmps...).Then(ops...).Commit()
}

func newPlace(client *clientv3.Client, o *Options) *place {
	return &place{kv: client.KV, watcher: client.Watcher, Options: o.withDefaults()}
}

func (p *place) leaderKey() string { return p.Root + "leader" }
func (p *place) beatKey() string   { return p.Root + "beat" }
func (p *place) stateKey() string  { return p.Root + "state" }
func (p *place) logPrefix() string { return p.Root + "log/" }
