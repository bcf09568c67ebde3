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

// ErrReplaced is why a leader ends: another process leads. Nothing was acknowledged since.
var ErrReplaced = errors.New("another process leads this store now")

var _ durable.Records = (*records)(nil)

// records is the log of a leader. It owns one goroutine, keep, until Close.
//
// A caller of Sync does a round: one transaction, or several if there is much to append, or a read if there is nothing. Rounds are done
// one after the other; a round carries all that was appended before it began, and confirms the leadership for every caller
// that came before it began.
type records struct {
	*place
	fence    int64           // the revision at which this process put root/leader
	stateRev int64           // that of root/state; of begin, and then of install, which one goroutine at a time calls
	lost     chan struct{}   // closed with err, unless it is errClosed
	life     context.Context // of all requests, until Close
	stop     context.CancelCauseFunc
	running  sync.WaitGroup

	turn   chan struct{} // has one value; who takes it may do a round, and puts it back
	next   where         // with the turn: of the next part
	first  where         // with the turn: of the first part of the newest segment that has one
	closed bool          // with the turn

	durable atomic.Uint64
	ended   atomic.Uint64 // rounds that have succeeded
	writing atomic.Pointer[time.Time]

	mu      sync.Mutex // protects the fields below; not held while etcd is asked
	begun   uint64     // rounds that have begun
	queue   []batch    // that no round has taken
	under   int        // bytes that a round has taken
	pos     uint64     // of the last record
	segment uint64     // that the next record is for
	fresh   bool       // it has none yet
	live    map[uint64]int64
	err     error // for good

	standbys standbys
}

// batch is what one segment gets in a round.
type batch struct {
	segment uint64
	bytes   []byte
}

// newRecords is the log of a leader since the revision fence, with root/state as it was put at the revision stateRev. Its next part is next;
// there are so many bytes since the checkpoint.
func newRecords(p *place, fence, stateRev int64, next where, bytes int64) *records {
	r := &records{
		place: p, fence: fence, stateRev: stateRev, next: next, segment: next.segment, live: map[uint64]int64{next.segment: bytes},
		lost: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	r.turn <- struct{}{}
	r.life, r.stop = context.WithCancelCause(context.Background())
	r.running.Go(r.keep)
	return r
}

// Append implements durable.Records.
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
	r.fresh = false
	return r.pos
}

// Sync returns when what was appended before it is durable, and this process was found to lead after Sync was called.
func (r *records) Sync(uint64) error {
	r.mu.Lock()
	want, err := r.begun+1, r.err
	r.mu.Unlock()
	if err != nil {
		return err
	}
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	if r.ended.Load() >= want {
		return nil
	}
	return r.round()
}

// round is one round. Called with the turn.
func (r *records) round() error {
	r.mu.Lock()
	if r.err != nil {
		r.mu.Unlock()
		return r.err
	}
	r.begun++
	round, pos, queue := r.begun, r.pos, r.queue
	r.queue = nil
	for _, b := range queue {
		r.under += len(b.bytes)
	}
	r.mu.Unlock()
	began := time.Now()
	r.writing.Store(&began)
	defer r.writing.Store(nil)
	err := r.write(queue)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.under = 0
	if err != nil {
		r.fail(err)
	}
	if r.err != nil {
		return r.err
	}
	for _, b := range queue {
		r.live[b.segment] += int64(max(len(b.bytes), partCost))
	}
	r.durable.Store(pos)
	r.ended.Store(round)
	return nil
}

// write appends queue, or finds out whether this process leads. Called with the turn.
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
			n := min(len(rest), r.Part)
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

// change makes changes if this process leads. Each of them may be made again without harm, at any later time: whether an attempt that
// brought no answer was carried out is not known, and a member of etcd that stood still may carry it out when it goes on.
func (r *records) change(ops ...clientv3.Op) error {
	_, err := r.leading(ops...)
	return err
}

// leading is change, and returns the answer.
func (r *records) leading(ops ...clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = r.insist(func(ctx context.Context) (err error) {
		resp, err = r.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(r.leaderKey()), "=", r.fence)).Then(ops...).Commit()
		if err == nil && !resp.Succeeded {
			return ErrReplaced
		}
		return err
	})
	return resp, err
}

// putState puts root/state, and makes changes with it, once. What they delete may be there again, and in use, when a late attempt is carried
// out: so each attempt compares the revision of root/state, which only the leader changes.
func (r *records) putState(s state, ops ...clientv3.Op) error {
	ops = append(ops, clientv3.OpPut(r.stateKey(), encode(s)))
	return r.insist(func(ctx context.Context) error {
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
		r.stateRev = state[0].ModRevision // by an attempt that brought no answer
		return nil
	})
}

// confirm reads root/leader, linearizably.
func (r *records) confirm() error {
	return r.insist(func(ctx context.Context) error {
		resp, err := r.kv.Get(ctx, r.leaderKey(), clientv3.WithKeysOnly())
		if err == nil && (len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != r.fence) {
			return ErrReplaced
		}
		return err
	})
}

// insist calls f until it has an answer, for as long as an outage may last.
func (r *records) insist(f func(ctx context.Context) error) error {
	return insist(r.life, &r.Options, f)
}

// keep changes root/beat, for standbys to see, and finds out soon that another process leads, and which standbys there are.
func (r *records) keep() {
	ticker := time.NewTicker(r.FailureTimeout / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-r.life.Done():
			return
		}
		if err := r.beat(); err != nil {
			r.Fail(err)
			return
		}
	}
}

// Durable implements durable.Records.
func (r *records) Durable() uint64 { return r.durable.Load() }

// Progress implements durable.Records.
func (r *records) Progress() uint64 { return r.ended.Load() }

// Unsynced implements durable.Records.
func (r *records) Unsynced() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.under
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
	for _, bytes := range r.live {
		n += bytes
	}
	return n
}

// Rotate implements durable.Records.
func (r *records) Rotate() (segment uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.fresh {
		r.segment++
		r.fresh = true
	}
	return r.segment
}

// firstOf is the sequence number of the first part of the newest segment, which Begin has begun.
func (r *records) firstOf(segment uint64) (seq uint64) {
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	if r.first.segment == segment {
		return r.first.seq
	}
	return r.next.seq
}

// Begin implements durable.Records: what is in the segments before is durable then.
func (r *records) Begin(uint64) error { return r.Sync(0) }

// Remove implements durable.Records.
func (r *records) Remove(before uint64) error {
	if err := r.change(clientv3.OpDelete(r.logPrefix(), clientv3.WithRange(r.segmentKey(before)))); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for segment := range r.live {
		if segment < before {
			delete(r.live, segment)
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

// fail is Fail, with mu.
func (r *records) fail(err error) {
	if r.err != nil {
		return
	}
	r.err, r.queue = fmt.Errorf("etcdlog: %w", err), nil
	if !errors.Is(err, errClosed) {
		close(r.lost)
	}
}

var errClosed = errors.New("it is closed")

// Close implements durable.Records. It leaves the leadership to others.
func (r *records) Close() error {
	err := r.Sync(0)
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	if r.closed {
		return nil
	}
	r.closed = true
	r.Fail(errClosed)
	r.stop(errClosed)
	r.running.Wait()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = r.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(r.leaderKey()), "=", r.fence)).Then(clientv3.OpDelete(r.leaderKey())).Commit()
	}
	return err
}
