package etcdstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Those who wait watch from the revision at which they looked, so they miss nothing. A member that hangs may keep a watch open and say
// nothing: they also look again, now and then, which another member answers.

// How often those who wait look again.
const (
	lookFirst = time.Second
	lookMost  = 5 * time.Second
)

var errCompacted = &store.Error{Code: wire.CodeCompacted, Err: store.ErrCompacted}

// stir is called with a watch's events, and reports whether they are what was waited for.
type stir func(events []*clientv3.Event) (done bool)

// watch watches from a revision until found says that it is enough, or ctx ends. It takes up a watch that ends where that was.
func (e *Engine) watch(ctx context.Context, key string, from int64, found stir, opts ...clientv3.OpOption) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		last, err := e.watchOnce(ctx, key, from, found, opts)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case is(err, rpctypes.ErrGRPCCompacted):
			return errCompacted
		case !transient(err) && !errors.Is(err, errWatchEnded):
			return err
		}
		if from = max(from, last+1); rest(ctx, jitter(pause)) != nil {
			return context.Cause(ctx)
		}
	}
}

var errWatchEnded = errors.New("the watch has ended")

// watchOnce returns nil when found said so. last is the last revision that was told.
func (e *Engine) watchOnce(ctx context.Context, key string, from int64, found stir, opts []clientv3.OpOption) (last int64, err error) {
	t, err := e.members.now(ctx)
	if err != nil {
		return last, err
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	for resp := range t.client.Watch(ctx, key, append(slices.Clip(opts), clientv3.WithRev(from))...) {
		if err := resp.Err(); err != nil {
			if transient(err) {
				e.members.leave(t, err)
			}
			return last, err
		}
		if len(resp.Events) > 0 {
			last = resp.Events[len(resp.Events)-1].Kv.ModRevision
			if found(resp.Events) {
				return last, nil
			}
		}
	}
	return last, errWatchEnded
}

// await waits until something at or below key changes after a revision, or it is time to look again.
func (e *Engine) await(ctx context.Context, key string, after int64, look time.Duration, opts ...clientv3.OpOption) error {
	short, cancel := context.WithTimeout(ctx, jitter(look))
	defer cancel()
	err := e.watch(short, key, after+1, func([]*clientv3.Event) bool { return true }, opts...)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if short.Err() != nil || errors.Is(err, store.ErrCompacted) {
		return nil
	}
	return err
}

// wait answers when all keys are there at one moment. It watches one that is missing.
func (e *Engine) wait(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	for look := lookFirst; ; look = min(2*look, lookMost) {
		missing, rev, err := e.all(ctx, req.Keys, rep)
		if err == nil && len(missing) > 0 {
			err = e.await(ctx, e.root.entry(missing[0]), rev, look, clientv3.WithFilterDelete())
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
			return e.missing(ctx, req.Keys, rep)
		case err != nil || len(missing) == 0:
			return err
		}
	}
}

// all reads keys at one moment. If some are missing they are returned, and rep is left alone.
func (e *Engine) all(ctx context.Context, keys []string, rep *wire.Reply) (missing []string, rev int64, err error) {
	var own wire.Reply
	for some := range slices.Chunk(keys, mostOps) {
		var gets []op
		for _, key := range some {
			gets = append(gets, opGet(e.root.entry(key), at(rev)))
		}
		resp, err := e.txn(ctx, nil, gets, nil)
		if err != nil {
			return nil, 0, err
		}
		if rev == 0 {
			rev = resp.Header.Revision
		}
		for i, key := range some {
			kv := found(resp.Responses[i])
			if kv == nil {
				missing = append(missing, key)
				continue
			}
			v, reads, _ := decodeValue(kv.Value)
			own.Values = append(own.Values, v)
			if reads > 0 {
				own.Code = wire.CodeCounted
			}
		}
	}
	if len(missing) > 0 {
		return missing, rev, nil
	}
	if own.Code != wire.CodeOK {
		own.Values = nil
	}
	*rep = own
	return nil, rev, nil
}

// mostMissing is how many missing keys an error names.
const mostMissing = 100

// missing answers a wait whose time is over with the keys that are missing.
func (e *Engine) missing(ctx context.Context, keys []string, rep *wire.Reply) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.Grace)
	defer cancel()
	missing, _, err := e.all(ctx, keys, rep)
	if err != nil {
		return context.DeadlineExceeded
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	missing = slices.Compact(missing)
	*rep = wire.Reply{Code: wire.CodeTimeout, Keys: missing[:min(len(missing), mostMissing)]}
	return nil
}

// changes answers with what changed below a prefix after a revision.
func (e *Engine) changes(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if req.Rev == 0 {
		return e.ping(ctx, req, rep)
	}
	prefix, after := e.root.entry(req.Key), int64(req.Rev)
	resp, err := e.get(ctx, e.root.mark())
	if err != nil {
		return err
	}
	if after > resp.Header.Revision {
		return refuse(rep, wire.CodeCompacted, "revision %d is not yet: list again, and watch from the revision of what was listed", after)
	}
	var told []*clientv3.Event
	err = e.watch(ctx, prefix, after+1, func(events []*clientv3.Event) bool {
		told = append(told, slices.DeleteFunc(events, untold)...)
		return len(told) > 0
	}, clientv3.WithPrefix())
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return refuse(rep, wire.CodeTimeout, "")
	case errors.Is(err, store.ErrCompacted):
		return refuse(rep, wire.CodeCompacted, "list again, and watch from the revision of what was listed")
	case err != nil:
		return err
	}
	return e.tell(ctx, told, rep)
}

// untold are events that are no change: a read that was counted.
func untold(ev *clientv3.Event) bool {
	_, _, taken := decodeValue(ev.Kv.Value)
	return ev.Type == clientv3.EventTypePut && taken
}

func (e *Engine) tell(ctx context.Context, events []*clientv3.Event, rep *wire.Reply) error {
	hows := map[int64]wire.Change{}
	for _, ev := range events {
		how, rev := wire.ChangeSet, ev.Kv.ModRevision
		var value []byte
		if ev.Type == clientv3.EventTypePut {
			value, _, _ = decodeValue(ev.Kv.Value)
		} else {
			var known bool
			if how, known = hows[rev]; !known {
				var err error
				if how, err = e.howDeleted(ctx, rev); err != nil {
					return err
				}
				hows[rev] = how
			}
		}
		rep.Keys = append(rep.Keys, strings.TrimPrefix(string(ev.Kv.Key), e.root.entry("")))
		rep.Values = append(rep.Values, value)
		rep.Nums = append(rep.Nums, rev, int64(how))
		rep.Rev = uint64(rev)
	}
	return nil
}

// howDeleted tells a delete from the end of a lease: the mark was changed with it, or not.
func (e *Engine) howDeleted(ctx context.Context, rev int64) (wire.Change, error) {
	resp, err := e.get(ctx, e.root.mark(), at(rev))
	if is2(err, rpctypes.ErrGRPCCompacted) {
		return wire.ChangeExpire, nil
	}
	if err != nil {
		return 0, err
	}
	if len(resp.Kvs) > 0 && resp.Kvs[0].ModRevision == rev && string(resp.Kvs[0].Value) == howDelete {
		return wire.ChangeDelete, nil
	}
	return wire.ChangeExpire, nil
}
