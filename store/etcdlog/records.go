package etcdlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/durable"
)

// ErrReplaced is the error of a leader that another process has replaced. It has acknowledged
// nothing since it was replaced.
var ErrReplaced = errors.New("another process leads this store now")

var _ durable.Records = (*records)(nil)

// records is the log of a leader. It owns one goroutine, heartbeatLoop, until Close.
//
// Commits are grouped. A caller of Sync runs a round, one at a time: a transaction, or several if
// there is much to append, or a linearizable read of root/leader if there is nothing to append. A
// round commits all records that were appended before it began, and confirms the leadership for
// each caller whose Sync began before it: a round that was under way when Sync was called proves
// nothing for that caller, because it may have read root/leader earlier.
type records struct {
	*keyspace
	fence    int64           // revision at which this process put root/leader
	stateRev int64           // revision of root/state; used by begin, then by install
	failed   chan struct{}   // closed when err is set, unless to errClosed
	ctx      context.Context // of all requests, until Close
	stop     context.CancelCauseFunc
	wg       sync.WaitGroup

	sem    chan struct{} // holds one value; its taker may run a round, and puts it back
	next   logPosition   // guarded by sem: the position of the next part
	first  logPosition   // guarded by sem: the first part of the newest segment that has one
	closed bool          // guarded by sem

	durable    atomic.Uint64
	roundsDone atomic.Uint64 // number of rounds that have succeeded
	writing    atomic.Pointer[time.Time]

	mu           sync.Mutex // protects the fields below; not held during requests
	roundsBegun  uint64     // number of rounds that have begun
	queue        []batch    // batches that no round has taken
	writingBytes int        // bytes of the batches that the current round has taken
	pos          uint64     // position of the last record
	segment      uint64     // segment of the next record
	segmentEmpty bool       // no record of segment has been appended
	segmentBytes map[uint64]int64
	err          error // set once

	standbys standbys
}

// batch is the records that one segment gets in a round.
type batch struct {
	segment uint64
	bytes   []byte
}

// newRecords returns the log of a leader since revision fence, with root/state as it was put at
// revision stateRev. next is the position of its first part, and bytes the size of the log since
// the checkpoint.
func newRecords(p *keyspace, fence, stateRev int64, next logPosition, bytes int64) *records {
	r := &records{
		keyspace: p, fence: fence, stateRev: stateRev, next: next, segment: next.segment, segmentBytes: map[uint64]int64{next.segment: bytes},
		failed: make(chan struct{}), sem: make(chan struct{}, 1),
	}
	r.sem <- struct{}{}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	r.wg.Go(r.heartbeatLoop)
	return r
}

// Append implements durable.Records. It fills the queue, which the next round takes.
func (r *records) Append(f func(b []byte) []byte) (pos uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pos++
	if r.err != nil {
		return r.pos
	}
	n := len(r.queue)
	if n == 0 || r.queue[n-1].segment != r.segment {
		r.queue = append(r.queue, batch{segment: r.segment})
		n++
	}
	b := &r.queue[n-1]
	start := len(b.bytes)
	b.bytes = f(append(b.bytes, 0, 0, 0, 0))
	binary.LittleEndian.PutUint32(b.bytes[start:], uint32(len(b.bytes)-start-4))
	r.segmentEmpty = false
	return r.pos
}

// Sync returns when all records appended before it are durable, and a request that began after Sync
// was called has found this process to lead. The position is ignored: every call needs the proof.
func (r *records) Sync(uint64) error {
	r.mu.Lock()
	want, err := r.roundsBegun+1, r.err
	r.mu.Unlock()
	if err != nil {
		return err
	}
	<-r.sem
	defer func() { r.sem <- struct{}{} }()
	if r.roundsDone.Load() >= want {
		return nil
	}
	return r.round()
}

// round runs one round. The caller holds sem.
func (r *records) round() error {
	r.mu.Lock()
	if r.err != nil {
		r.mu.Unlock()
		return r.err
	}
	r.roundsBegun++
	round, pos, queue := r.roundsBegun, r.pos, r.queue
	r.queue = nil
	for _, b := range queue {
		r.writingBytes += len(b.bytes)
	}
	r.mu.Unlock()
	began := time.Now()
	r.writing.Store(&began)
	defer r.writing.Store(nil)
	err := r.write(queue)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writingBytes = 0
	if err != nil {
		r.fail(err)
	}
	if r.err != nil {
		return r.err
	}
	for _, b := range queue {
		r.segmentBytes[b.segment] += int64(max(len(b.bytes), partCost))
	}
	r.durable.Store(pos)
	r.roundsDone.Store(round)
	return nil
}

// write puts the batches of queue, or confirms the leadership if there are none. The caller holds
// sem.
func (r *records) write(queue []batch) error {
	if len(queue) == 0 {
		return r.confirm()
	}
	for _, b := range queue {
		if b.segment != r.next.segment {
			r.next.segment = b.segment
			r.first = r.next
		}
		for rest := b.bytes; ; {
			n := min(len(rest), r.MaxValueBytes)
			part := append(make([]byte, 0, n+1), last)
			if n < len(rest) {
				part[0] = more
			}
			if err := r.change(clientv3.OpPut(r.logKey(r.next), string(append(part, rest[:n]...)))); err != nil {
				return err
			}
			r.next.seq++
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
		}
	}
	return nil
}

// change makes ops if this process leads. Each of ops must be idempotent at any later time: an
// attempt without an answer may have been carried out, and an etcd member that was stopped may
// carry it out when it continues.
func (r *records) change(ops ...clientv3.Op) error {
	_, err := r.fencedTxn(ops...)
	return err
}

// fencedTxn is change with the response.
func (r *records) fencedTxn(ops ...clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = r.retry(func(ctx context.Context) (err error) {
		resp, err = r.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(r.leaderKey()), "=", r.fence)).Then(ops...).Commit()
		if err == nil && !resp.Succeeded {
			return ErrReplaced
		}
		return err
	})
	return resp, err
}

// putState puts root/state and makes ops with it, exactly once. ops delete keys, which may exist
// again and be in use when a delayed attempt is carried out: therefore each attempt also compares
// the revision of root/state, which only the leader changes.
func (r *records) putState(s state, ops ...clientv3.Op) error {
	ops = append(ops, clientv3.OpPut(r.stateKey(), encode(s)))
	return r.retry(func(ctx context.Context) error {
		resp, err := r.kv.Txn(ctx).If(
			clientv3.Compare(clientv3.ModRevision(r.leaderKey()), "=", r.fence), clientv3.Compare(clientv3.ModRevision(r.stateKey()), "=", r.stateRev),
		).Then(ops...).Else(
			clientv3.OpGet(r.leaderKey(), clientv3.WithKeysOnly()), clientv3.OpGet(r.stateKey(), clientv3.WithKeysOnly()),
		).Commit()
		if err != nil {
			return err
		}
		if resp.Succeeded {
			r.stateRev = resp.Header.Revision
			return nil
		}
		leader, state := resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs
		switch {
		case len(leader) == 0 || leader[0].ModRevision != r.fence:
			return ErrReplaced
		case len(state) == 0:
			return fmt.Errorf("key %q was deleted: %w", r.stateKey(), durable.ErrDamaged)
		}
		r.stateRev = state[0].ModRevision // an unanswered attempt succeeded
		return nil
	})
}

// confirm reads root/leader, linearizably, and returns ErrReplaced if another process leads.
func (r *records) confirm() error {
	return r.retry(func(ctx context.Context) error {
		resp, err := r.kv.Get(ctx, r.leaderKey(), clientv3.WithKeysOnly())
		if err == nil && (len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != r.fence) {
			return ErrReplaced
		}
		return err
	})
}

// retry calls f until it has an answer, for at most OutageTimeout.
func (r *records) retry(f func(ctx context.Context) error) error {
	return retry(r.ctx, &r.Options, f)
}

// heartbeatLoop changes root/beat until Close. The change shows standbys that this process is
// alive, and detects soon that another process leads.
func (r *records) heartbeatLoop() {
	ticker := time.NewTicker(r.FailureTimeout / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-r.ctx.Done():
			return
		}
		if err := r.heartbeat(); err != nil {
			r.Fail(err)
			return
		}
	}
}

// Durable implements durable.Records.
func (r *records) Durable() uint64 { return r.durable.Load() }

// Unsynced implements durable.Records.
func (r *records) Unsynced() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.writingBytes
	for _, b := range r.queue {
		n += len(b.bytes)
	}
	return int64(n)
}

// Writing implements durable.Records.
func (r *records) Writing() time.Duration {
	if began := r.writing.Load(); began != nil {
		return max(1, time.Since(*began))
	}
	return 0
}

// Size implements durable.Records.
func (r *records) Size() (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, bytes := range r.segmentBytes {
		n += bytes
	}
	return n
}

// Rotate implements durable.Records.
func (r *records) Rotate() (segment uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.segmentEmpty {
		r.segment++
		r.segmentEmpty = true
	}
	return r.segment
}

// firstOf returns the sequence number of the first part of the newest segment, which Begin has
// begun.
func (r *records) firstOf(segment uint64) (seq uint64) {
	<-r.sem
	defer func() { r.sem <- struct{}{} }()
	if r.first.segment == segment {
		return r.first.seq
	}
	return r.next.seq
}

// Begin implements durable.Records. The records of earlier segments are durable when it returns.
func (r *records) Begin(uint64) error { return r.Sync(0) }

// Remove implements durable.Records.
func (r *records) Remove(before uint64) error {
	if err := r.change(clientv3.OpDelete(r.logPrefix(), clientv3.WithRange(r.segmentKey(before)))); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for segment := range r.segmentBytes {
		if segment < before {
			delete(r.segmentBytes, segment)
		}
	}
	return nil
}

// Fail implements durable.Records.
func (r *records) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail(err)
}

// fail sets err, and drops what has not been committed. The caller holds mu.
func (r *records) fail(err error) {
	if r.err != nil {
		return
	}
	r.err, r.queue = fmt.Errorf("etcdlog: %w", err), nil
	if !errors.Is(err, errClosed) {
		close(r.failed)
	}
}

var errClosed = errors.New("closed")

// Close implements durable.Records. It deletes root/leader, if this process still leads, so that a
// standby takes over at once.
func (r *records) Close() error {
	err := r.Sync(0)
	<-r.sem
	defer func() { r.sem <- struct{}{} }()
	if r.closed {
		return nil
	}
	r.closed = true
	r.Fail(errClosed)
	r.stop(errClosed)
	r.wg.Wait()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = r.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(r.leaderKey()), "=", r.fence)).Then(clientv3.OpDelete(r.leaderKey())).Commit()
	}
	return err
}
