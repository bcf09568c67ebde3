package etcdlog

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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
	Part   int
	Logger *slog.Logger // nil is silent
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
