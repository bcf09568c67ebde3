package etcdlog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
)

// standby is a process that follows the log with a machine of its own. One goroutine uses it.
type standby struct {
	*place
	machine *core.Machine
	record  func(record []byte) error // what replays one: the machine, but in tests
	state   state
	leader  Leader
	rev     int64     // of etcd, up to which it has followed
	beat    int64     // the revision at which root/beat was put
	heard   time.Time // when the leader or root/beat last changed
	whole   where     // of the part behind the last batch that is whole
	next    where     // of the part that comes next: behind whole while a batch is not whole
	part    []byte    // what there is of it
	bytes   int64     // of the log since the checkpoint

	reporter *reporter
}

// errBehind is why a standby begins anew: what it would have read next is not there any more.
var errBehind = errors.New("the log has gone on from a newer checkpoint")

// errGap is why it does so, too: what it would have read next is missing.
var errGap = fmt.Errorf("a part of the log is missing: %w", errBehind)

// load makes the machine of the checkpoint and the log as they are now.
func (s *standby) load(ctx context.Context, scratch string) error {
	resp, err := s.txn(ctx, nil, clientv3.OpGet(s.stateKey()), clientv3.OpGet(s.leaderKey()), clientv3.OpGet(s.beatKey(), clientv3.WithKeysOnly()))
	if err != nil {
		return err
	}
	s.rev, s.heard = resp.Header.Revision, time.Now()
	s.state, s.leader, s.beat, s.bytes = empty, Leader{}, 0, 0
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			if err := s.note(kv); err != nil {
				return err
			}
		}
	}
	if s.machine, err = s.checkpoint(ctx, scratch); err != nil {
		return err
	}
	if s.record == nil {
		s.record = s.machine.Replay
	}
	s.whole = where{s.state.Segment, s.state.Seq}
	s.next = s.whole
	err = s.catchUp(ctx, s.segmentKey(s.state.Segment), clientv3.WithRev(s.rev))
	if errors.Is(err, errGap) { // in what was there at one moment
		return fmt.Errorf("the log has no part %d of segment %d, and parts behind it: %w", s.next.seq, s.next.segment, durable.ErrDamaged)
	}
	return err
}

// note takes the value of a key that is not of the log.
func (s *standby) note(kv *mvccpb.KeyValue) error {
	var err error
	switch string(kv.Key) {
	case s.stateKey():
		before := s.state.Checkpoint
		if err = json.Unmarshal(kv.Value, &s.state); s.state.Checkpoint != before {
			s.bytes = 0
		}
	case s.leaderKey():
		s.leader = Leader{}
		err = json.Unmarshal(kv.Value, &s.leader)
		s.leader.rev, s.heard = kv.ModRevision, time.Now()
		s.part, s.next = nil, s.whole // the leader before has not ended its last batch, and never will
	case s.beatKey():
		s.beat, s.heard = kv.ModRevision, time.Now()
	}
	if err != nil {
		return fmt.Errorf("key %q: %w", kv.Key, err)
	}
	return nil
}

// checkpoint makes the machine of a checkpoint, or a new one.
func (s *standby) checkpoint(ctx context.Context, scratch string) (*core.Machine, error) {
	if s.state.Checkpoint == 0 {
		return core.New(core.Limits{}), nil // its limits are the first record of the log
	}
	name := filepath.Join(scratch, "checkpoint.old")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(name) }()
	for part := range s.state.Parts {
		resp, err := s.read(ctx, s.checkpointKey(s.state.Checkpoint, part), clientv3.WithRev(s.rev))
		switch {
		case err != nil:
			_ = f.Close()
			return nil, err
		case len(resp.Kvs) == 0:
			_ = f.Close()
			return nil, fmt.Errorf("part %d of %d of checkpoint %d is missing: %w", part, s.state.Parts, s.state.Checkpoint, durable.ErrDamaged)
		}
		if _, err := f.Write(resp.Kvs[0].Value); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	m, incarnation, segment, err := durable.ReadCheckpoint(name)
	if err == nil && (incarnation != s.state.Incarnation || segment != s.state.Segment) {
		err = fmt.Errorf("checkpoint %d is of another store or segment: %w", s.state.Checkpoint, durable.ErrDamaged)
	}
	return m, err
}

// page is how many parts of the log are read at once in the beginning, and pageBytes how many bytes: parts may be large, but most are small.
const (
	page      = 16
	pageBytes = 4 << 20
)

// catchUp applies what there is of the log from a key on.
func (s *standby) catchUp(ctx context.Context, from string, options ...clientv3.OpOption) error {
	end := clientv3.GetPrefixRangeEnd(s.logPrefix())
	for limit := int64(page); ; {
		resp, err := s.read(ctx, from, append(options, clientv3.WithRange(end), clientv3.WithLimit(limit))...)
		if err != nil {
			return err
		}
		size := 0
		for _, kv := range resp.Kvs {
			if err := s.apply(kv); err != nil {
				return err
			}
			from = string(kv.Key) + "\x00"
			size += len(kv.Value)
		}
		switch {
		case !resp.More:
			return nil
		case size < pageBytes/2:
			limit *= 2
		case size > 2*pageBytes:
			limit = max(limit/2, page)
		}
	}
}

// apply takes a part of the log, and replays the batch that it ends.
func (s *standby) apply(kv *mvccpb.KeyValue) error {
	w, err := s.whereOf(kv.Key)
	if err != nil {
		return err
	}
	switch {
	case w.seq < s.next.seq: // an attempt of the leader that brought no answer, and was repeated
		return nil
	case w.seq > s.next.seq:
		return errGap
	}
	if len(kv.Value) == 0 {
		return fmt.Errorf("key %q: %w", kv.Key, errBatch)
	}
	s.part = append(s.part, kv.Value[1:]...)
	s.next = where{w.segment, w.seq + 1}
	s.bytes += int64(max(len(kv.Value), partCost))
	if kv.Value[0] == more {
		return nil
	}
	batch := s.part
	s.part, s.whole = nil, s.next
	err = replay(batch, s.record)
	s.machine.Effects() // their sessions are the leader's
	if err != nil {
		return fmt.Errorf("key %q: %w", kv.Key, err)
	}
	return nil
}

// follow applies what the leader appends, and returns when there is no leader.
func (s *standby) follow(ctx context.Context) error {
	if s.leader.rev == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	s.reporter.saw(s)
	var reporting sync.WaitGroup
	reporting.Go(func() { s.reporter.run(ctx) })
	defer func() {
		cancel()
		reporting.Wait()
	}()
	changes := s.watcher.Watch(clientv3.WithRequireLeader(ctx), s.Root, clientv3.WithPrefix(), clientv3.WithRev(s.rev+1))
	ticker := time.NewTicker(s.FailureTimeout / 8)
	defer ticker.Stop()
	var observed Leader
	var ended <-chan struct{}
	stop := func() {}
	defer func() { stop() }()
	for s.leader.rev != 0 {
		if observed != s.leader {
			stop()
			observed = s.leader
			ended, stop = observed.observe(s.FailureTimeout)
		}
		select {
		case <-ended:
			s.Logger.Warn("the leader's process has ended", "root", s.Root, "leader", s.leader.Addr)
			return nil
		case resp, ok := <-changes:
			switch {
			case !ok:
				return cmp.Or(context.Cause(ctx), errBehind)
			case resp.Err() != nil:
				if errors.Is(resp.Err(), rpctypes.ErrCompacted) {
					return errBehind
				}
				return resp.Err()
			}
			if err := s.take(resp.Events); err != nil {
				return err
			}
			if n := len(resp.Events); n > 0 { // the header may be of a revision whose events are still to come
				s.rev = resp.Events[n-1].Kv.ModRevision
				s.reporter.saw(s)
			}
		case <-ticker.C:
			if time.Since(s.heard) > s.FailureTimeout && s.failed(ctx) {
				s.Logger.Warn("the leader is silent", "root", s.Root, "leader", s.leader.Addr, "since", time.Since(s.heard))
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// take applies changes, in their order.
func (s *standby) take(events []*clientv3.Event) error {
	log := s.logPrefix()
	for _, e := range events {
		var err error
		switch key := string(e.Kv.Key); {
		case e.Type == mvccpb.DELETE && key == s.leaderKey():
			s.leader = Leader{}
		case e.Type == mvccpb.DELETE:
			err = s.removed(key)
		case strings.HasPrefix(key, log):
			err = s.apply(e.Kv)
		default:
			err = s.note(e.Kv)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removed takes note of a part that a leader has removed. If it is of a batch that is not whole, the leader before has not ended that: this
// process may have loaded its parts after the change of the leader, which drops them otherwise.
func (s *standby) removed(key string) error {
	if !strings.HasPrefix(key, s.logPrefix()) {
		return nil
	}
	w, err := s.whereOf([]byte(key))
	if err == nil && w.seq >= s.whole.seq {
		s.part, s.next = nil, s.whole
	}
	return err
}

// failed asks whether the leader has changed nothing, other than what this process has heard of: what is slow may be its own watch.
func (s *standby) failed(ctx context.Context) bool {
	resp, err := s.txn(ctx, nil, clientv3.OpGet(s.leaderKey(), clientv3.WithKeysOnly()), clientv3.OpGet(s.beatKey(), clientv3.WithKeysOnly()))
	if err != nil {
		return false
	}
	known := [...]int64{s.leader.rev, s.beat}
	for i, r := range resp.Responses {
		if kvs := r.GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].ModRevision > known[i] {
			s.heard = time.Now()
			return false
		}
	}
	return true
}
