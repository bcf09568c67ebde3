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

var _ durable.Log = (*leaderLog)(nil)

// leaderLog is the log of a leader. It owns one goroutine, heartbeatLoop, until Close.
//
// Commits are grouped. A caller of Sync runs a round, one at a time: a transaction, or several if
// there is much to append, or a linearizable read of root/leader if there is nothing to append. A
// round commits all entries that were appended before it began, and confirms the leadership for
// each caller whose Sync began before it: a round that was under way when Sync was called proves
// nothing for that caller, because it may have read root/leader earlier.
type leaderLog struct {
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
	pos          uint64     // position of the last entry
	segment      uint64     // segment of the next entry
	segmentEmpty bool       // no entry of segment has been appended
	segmentBytes map[uint64]int64
	err          error // set once

	standbys standbys
}

// batch is the entries that one segment gets in a round.
type batch struct {
	segment uint64
	bytes   []byte
}

// newLeaderLog returns the log of a leader since revision fence, with root/state as it was put at
// revision stateRev. next is the position of its first part, and bytes the size of the log since
// the checkpoint.
func newLeaderLog(p *keyspace, fence, stateRev int64, next logPosition, bytes int64) *leaderLog {
	l := &leaderLog{
		keyspace: p, fence: fence, stateRev: stateRev, next: next, segment: next.segment, segmentBytes: map[uint64]int64{next.segment: bytes},
		failed: make(chan struct{}), sem: make(chan struct{}, 1),
	}
	l.sem <- struct{}{}
	l.ctx, l.stop = context.WithCancelCause(context.Background())
	l.wg.Go(l.heartbeatLoop)
	return l
}

// Append implements durable.Log. It fills the queue, which the next round takes.
func (l *leaderLog) Append(f func(b []byte) []byte) (pos uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pos++
	if l.err != nil {
		return l.pos
	}
	n := len(l.queue)
	if n == 0 || l.queue[n-1].segment != l.segment {
		l.queue = append(l.queue, batch{segment: l.segment})
		n++
	}
	b := &l.queue[n-1]
	start := len(b.bytes)
	b.bytes = f(append(b.bytes, 0, 0, 0, 0))
	binary.LittleEndian.PutUint32(b.bytes[start:], uint32(len(b.bytes)-start-4))
	l.segmentEmpty = false
	return l.pos
}

// Sync returns when all entries appended before it are durable, and a request that began after Sync
// was called has found this process to lead. The position is ignored: every call needs the proof.
func (l *leaderLog) Sync(uint64) error {
	l.mu.Lock()
	want, err := l.roundsBegun+1, l.err
	l.mu.Unlock()
	if err != nil {
		return err
	}
	<-l.sem
	defer func() { l.sem <- struct{}{} }()
	if l.roundsDone.Load() >= want {
		return nil
	}
	return l.round()
}

// round runs one round. The caller holds sem.
func (l *leaderLog) round() error {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return l.err
	}
	l.roundsBegun++
	round, pos, queue := l.roundsBegun, l.pos, l.queue
	l.queue = nil
	for _, b := range queue {
		l.writingBytes += len(b.bytes)
	}
	l.mu.Unlock()
	began := time.Now()
	l.writing.Store(&began)
	defer l.writing.Store(nil)
	err := l.write(queue)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writingBytes = 0
	if err != nil {
		l.fail(err)
	}
	if l.err != nil {
		return l.err
	}
	for _, b := range queue {
		l.segmentBytes[b.segment] += int64(max(len(b.bytes), partCost))
	}
	l.durable.Store(pos)
	l.roundsDone.Store(round)
	return nil
}

// write puts the batches of queue, or confirms the leadership if there are none. The caller holds
// sem.
func (l *leaderLog) write(queue []batch) error {
	if len(queue) == 0 {
		return l.confirm()
	}
	for _, b := range queue {
		if b.segment != l.next.segment {
			l.next.segment = b.segment
			l.first = l.next
		}
		for rest := b.bytes; ; {
			n := min(len(rest), l.MaxValueBytes)
			part := append(make([]byte, 0, n+1), last)
			if n < len(rest) {
				part[0] = more
			}
			if err := l.change(clientv3.OpPut(l.logKey(l.next), string(append(part, rest[:n]...)))); err != nil {
				return err
			}
			l.next.seq++
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
func (l *leaderLog) change(ops ...clientv3.Op) error {
	_, err := l.fencedTxn(ops...)
	return err
}

// fencedTxn is change with the response.
func (l *leaderLog) fencedTxn(ops ...clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = l.retry(func(ctx context.Context) (err error) {
		resp, err = l.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(l.leaderKey()), "=", l.fence)).Then(ops...).Commit()
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
func (l *leaderLog) putState(s state, ops ...clientv3.Op) error {
	ops = append(ops, clientv3.OpPut(l.stateKey(), encode(s)))
	return l.retry(func(ctx context.Context) error {
		resp, err := l.kv.Txn(ctx).If(
			clientv3.Compare(clientv3.ModRevision(l.leaderKey()), "=", l.fence), clientv3.Compare(clientv3.ModRevision(l.stateKey()), "=", l.stateRev),
		).Then(ops...).Else(
			clientv3.OpGet(l.leaderKey(), clientv3.WithKeysOnly()), clientv3.OpGet(l.stateKey(), clientv3.WithKeysOnly()),
		).Commit()
		if err != nil {
			return err
		}
		if resp.Succeeded {
			l.stateRev = resp.Header.Revision
			return nil
		}
		leader, state := resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs
		switch {
		case len(leader) == 0 || leader[0].ModRevision != l.fence:
			return ErrReplaced
		case len(state) == 0:
			return fmt.Errorf("key %q was deleted: %w", l.stateKey(), durable.ErrDamaged)
		}
		l.stateRev = state[0].ModRevision // an unanswered attempt succeeded
		return nil
	})
}

// confirm reads root/leader, linearizably, and returns ErrReplaced if another process leads.
func (l *leaderLog) confirm() error {
	return l.retry(func(ctx context.Context) error {
		resp, err := l.kv.Get(ctx, l.leaderKey(), clientv3.WithKeysOnly())
		if err == nil && (len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != l.fence) {
			return ErrReplaced
		}
		return err
	})
}

// retry calls f until it has an answer, for at most OutageTimeout.
func (l *leaderLog) retry(f func(ctx context.Context) error) error {
	return retry(l.ctx, &l.Options, f)
}

// heartbeatLoop changes root/beat until Close. The change shows standbys that this process is
// alive, and detects soon that another process leads.
func (l *leaderLog) heartbeatLoop() {
	ticker := time.NewTicker(l.FailureTimeout / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-l.ctx.Done():
			return
		}
		if err := l.heartbeat(); err != nil {
			l.Fail(err)
			return
		}
	}
}

// Durable implements durable.Log.
func (l *leaderLog) Durable() uint64 { return l.durable.Load() }

// Unsynced implements durable.Log.
func (l *leaderLog) Unsynced() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.writingBytes
	for _, b := range l.queue {
		n += len(b.bytes)
	}
	return int64(n)
}

// Writing implements durable.Log.
func (l *leaderLog) Writing() time.Duration {
	if began := l.writing.Load(); began != nil {
		return max(1, time.Since(*began))
	}
	return 0
}

// Size implements durable.Log.
func (l *leaderLog) Size() (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, bytes := range l.segmentBytes {
		n += bytes
	}
	return n
}

// Rotate implements durable.Log.
func (l *leaderLog) Rotate() (segment uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.segmentEmpty {
		l.segment++
		l.segmentEmpty = true
	}
	return l.segment
}

// firstOf returns the sequence number of the first part of the newest segment, which Begin has
// begun.
func (l *leaderLog) firstOf(segment uint64) (seq uint64) {
	<-l.sem
	defer func() { l.sem <- struct{}{} }()
	if l.first.segment == segment {
		return l.first.seq
	}
	return l.next.seq
}

// Begin implements durable.Log. The entries of earlier segments are durable when it returns.
func (l *leaderLog) Begin(uint64) error { return l.Sync(0) }

// Remove implements durable.Log.
func (l *leaderLog) Remove(before uint64) error {
	if err := l.change(clientv3.OpDelete(l.logPrefix(), clientv3.WithRange(l.segmentKey(before)))); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for segment := range l.segmentBytes {
		if segment < before {
			delete(l.segmentBytes, segment)
		}
	}
	return nil
}

// Fail implements durable.Log.
func (l *leaderLog) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(err)
}

// fail sets err, and drops what has not been committed. The caller holds mu.
func (l *leaderLog) fail(err error) {
	if l.err != nil {
		return
	}
	l.err, l.queue = fmt.Errorf("etcdlog: %w", err), nil
	if !errors.Is(err, errClosed) {
		close(l.failed)
	}
}

var errClosed = errors.New("closed")

// Close implements durable.Log. It deletes root/leader, if this process still leads, so that a
// standby takes over at once.
func (l *leaderLog) Close() error {
	err := l.Sync(0)
	<-l.sem
	defer func() { l.sem <- struct{}{} }()
	if l.closed {
		return nil
	}
	l.closed = true
	l.Fail(errClosed)
	l.stop(errClosed)
	l.wg.Wait()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = l.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(l.leaderKey()), "=", l.fence)).Then(clientv3.OpDelete(l.leaderKey())).Commit()
	}
	return err
}
