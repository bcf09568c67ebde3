package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// ErrExists is the error of Restore if there is a store below the root.
var ErrExists = errors.New("there is a store already: name another root, or delete its keys")

// Restore creates a store below o.Root from a backup, as store.Restore does in a directory. If a
// store exists there, it is not changed, and the error is ErrExists. backup is a file that
// Store.Backup wrote.
func Restore(ctx context.Context, client *clientv3.Client, backup string, o *Options) error {
	dir, err := os.MkdirTemp("", "muster-restore-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := store.Restore(backup, dir); err != nil {
		return err
	}
	if err := newKeyspace(client, o).restore(ctx, durable.CheckpointOf(dir)); err != nil {
		e := &store.Error{Op: "restore", Key: backup, Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", store.ErrUnavailable, err)}
		if errors.Is(err, ErrExists) {
			e.Code, e.Err = wire.CodeConflict, err
		}
		return e
	}
	return nil
}

// restore puts the parts of a checkpoint, and root/state last: only that key makes them a store.
// Parts that a failed attempt leaves are deleted with the first checkpoint of a leader.
func (p *keyspace) restore(ctx context.Context, file string) error {
	_, incarnation, segment, err := durable.ReadCheckpoint(file)
	if err != nil {
		return err
	}
	empty := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(p.stateKey()), "=", 0), clientv3.Compare(clientv3.CreateRevision(p.leaderKey()), "=", 0),
	}
	change := func(ops ...clientv3.Op) error {
		return retry(ctx, &p.Options, func(ctx context.Context) error {
			resp, err := p.kv.Txn(ctx).If(empty...).Then(ops...).Commit()
			if err == nil && !resp.Succeeded {
				return ErrExists
			}
			return err
		})
	}
	s := state{Incarnation: incarnation, Segment: segment, Seq: 1, Checkpoint: rand.Uint64() | 1}
	s.Parts, err = p.upload(file, s.Checkpoint, change)
	if err != nil {
		return err
	}
	return retry(ctx, &p.Options, func(ctx context.Context) error {
		resp, err := p.kv.Txn(ctx).If(empty...).Then(clientv3.OpPut(p.stateKey(), encode(s))).Else(clientv3.OpGet(p.stateKey())).Commit()
		if err != nil || resp.Succeeded {
			return err
		}
		// An unanswered attempt may have succeeded: then the state is this one.
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) != 1 || string(kvs[0].Value) != encode(s) {
			return ErrExists
		}
		return nil
	})
}
