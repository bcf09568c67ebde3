package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// result answers with what the rank asked for of a record that is decided.
func (r *record) result(ctx context.Context, verdict *wire.Reply, rep *wire.Reply) error {
	if verdict.Code != wire.CodeOK {
		*rep = copyReply(verdict)
		return nil
	}
	rep.N = 1 + int64(decider(verdict))
	if r.c.Want == wire.WantNothing && !r.c.RootOnly {
		return nil
	}
	ctx, cancel := r.afterwards(ctx)
	defer cancel()
	var err error
	switch want := r.c.Want; {
	case want >= 0:
		rep.Value, err = r.given(ctx, int(want))
	case want == wire.WantPart:
		rep.Values, err = r.parts(ctx)
	case want == wire.WantAll:
		rep.Values, err = r.everything(ctx)
	case want == wire.WantFold && r.c.Fold.Valid():
		if rep.Value = slices.Clone(verdict.Value); rep.Value == nil {
			rep.Value, err = r.fold(ctx)
		}
	}
	if err == nil && r.c.RootOnly && r.c.Root != r.rank {
		err = r.tell(ctx, rep)
	}
	return err
}

// decider is whose vote decided a record that has succeeded; -1 if nobody knows.
func decider(verdict *wire.Reply) int {
	switch cast := castOf(verdict); {
	case cast == nil:
		return -1
	case cast.RootOnly:
		return cast.Root
	default:
		return cast.Rank
	}
}

// How much a reader reads until it tells the root how far it is. With a vote that waits it does so in any case.
const (
	quietRecords = 16
	quietBytes   = 1 << 20
)

// tell tells the root now and then how far this reader is.
func (r *record) tell(ctx context.Context, rep *wire.Reply) error {
	own := led{seq: r.c.Seq, bytes: len(rep.Value)}
	for _, v := range rep.Values {
		own.bytes += len(v)
	}
	bytes := 0
	r.mu.Lock()
	r.ch.quiet = append(r.ch.quiet, own)
	for _, l := range r.ch.quiet {
		bytes += l.bytes
	}
	silent := len(r.ch.quiet) < quietRecords && bytes < quietBytes
	if !silent {
		r.ch.quiet = nil
	}
	r.mu.Unlock()
	if silent {
		return nil
	}
	_, err := r.g.e.txn(ctx, []cond{r.held()}, []op{opPut(r.vote, r.ballot(), 0)}, nil)
	return err
}

// given is what a rank gave.
func (r *record) given(ctx context.Context, rank int) ([]byte, error) {
	kv, err := r.g.e.entry(ctx, r.payloadOf(rank))
	if err != nil || kv == nil {
		return []byte{}, err
	}
	return kv.Value, nil
}

// everything is what each rank gave.
func (r *record) everything(ctx context.Context) ([][]byte, error) {
	resp, err := r.g.e.get(ctx, r.payloads(), prefixed)
	if err != nil {
		return nil, err
	}
	values := make([][]byte, r.size())
	for _, kv := range resp.Kvs {
		values[lastNumber(kv.Key)] = kv.Value
	}
	for i := range values {
		if values[i] == nil {
			values[i] = []byte{}
		}
	}
	return values, nil
}

// parts are the rank's parts of what the root gave, or everybody.
func (r *record) parts(ctx context.Context) ([][]byte, error) {
	n := r.size()
	if r.c.RootOnly {
		payload, err := r.given(ctx, r.c.Root)
		if err != nil {
			return nil, err
		}
		parts, err := wire.ParseParts(payload, n)
		if err != nil {
			return nil, err
		}
		return parts[r.rank : r.rank+1], nil
	}
	all, err := r.everything(ctx)
	if err != nil {
		return nil, err
	}
	for i, payload := range all {
		parts, err := wire.ParseParts(payload, n)
		if err != nil {
			return nil, err
		}
		all[i] = parts[r.rank]
	}
	return all, nil
}

// fold folds what all gave in rank order, so that every run has the same bits.
func (r *record) fold(ctx context.Context) ([]byte, error) {
	all, err := r.everything(ctx)
	if err != nil {
		return nil, err
	}
	sum := all[0]
	for _, payload := range all[1:] {
		if len(payload) != len(sum) {
			return nil, fmt.Errorf("etcdstore: %d and %d bytes to fold", len(sum), len(payload))
		}
		core.Fold(r.c.Fold, sum, payload)
	}
	return sum, nil
}

// How far a root may run ahead of its slowest reader before it waits.
const (
	aheadRecords = 128
	aheadBytes   = 16 << 20
)

// makeRoom waits until the record of a root is not too far ahead, and frees what all readers have passed.
func (r *record) makeRoom(ctx context.Context) error {
	for r.crowded() {
		low, _, rev, err := r.floors(ctx)
		if err != nil {
			return err
		}
		if err := r.advance(ctx, low); err != nil {
			return err
		}
		if !r.crowded() {
			return nil
		}
		if s := r.g.state(); s.all != nil {
			return nil
		}
		if err := r.g.e.await(ctx, r.ch.keys.votes, rev, lookFirst, clientv3.WithPrefix()); err != nil {
			return err
		}
	}
	return nil
}

// crowded reports whether the readers are too far behind.
func (r *record) crowded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	records, bytes := 0, len(r.payload)
	for _, l := range r.ch.ahead {
		if l.seq < r.c.Seq {
			records, bytes = records+1, bytes+l.bytes
		}
	}
	return records >= aheadRecords || records > 0 && bytes > aheadBytes
}

// floors are how far the slowest readers are, and who they are.
func (r *record) floors(ctx context.Context) (low uint64, slowest []int, rev int64, err error) {
	resp, err := r.g.e.get(ctx, r.ch.keys.votes, prefixed)
	if err != nil {
		return 0, nil, 0, err
	}
	floor := make([]uint64, r.size())
	for _, kv := range resp.Kvs {
		if b, ok := r.ch.parseBallot(kv); ok && b.rank < len(floor) && b.seq > 0 {
			floor[b.rank] = max(floor[b.rank], b.seq-1)
		}
	}
	low = r.c.Seq - 1
	for rank, f := range floor {
		switch {
		case rank == r.rank || r.g.goneness(rank) != wire.CodeOK || f > low:
		case f < low:
			low, slowest = f, []int{rank}
		default:
			slowest = append(slowest, rank)
		}
	}
	return low, slowest, resp.Header.Revision, nil
}

func (r *record) slowest() []int {
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	_, slowest, _, _ := r.floors(ctx)
	return slowest
}

// advance frees the records up to low, which all readers have passed.
func (r *record) advance(ctx context.Context, low uint64) error {
	r.mu.Lock()
	before := len(r.ch.ahead)
	r.ch.ahead = slices.DeleteFunc(r.ch.ahead, func(l led) bool { return l.seq <= low })
	freed := len(r.ch.ahead) < before
	then := r.ch.free(low + 1)
	r.mu.Unlock()
	if !freed {
		return nil
	}
	_, err := r.g.e.txn(ctx, nil, then, nil)
	if err == nil {
		r.mu.Lock()
		r.ch.freed = max(r.ch.freed, low+1)
		r.mu.Unlock()
	}
	return err
}
