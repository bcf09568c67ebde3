package etcdlog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
)

// standby is a process that follows the log, with its own state machine. One goroutine uses
// it.
type standby struct {
	*keyspace
	machine    *core.Machine
	entry      func(entry []byte) error // applies an entry: machine.Replay, except in tests
	state      state
	leader     Leader
	rev        int64       // revision of etcd up to which it has followed
	beat       int64       // revision of root/beat
	lastChange time.Time   // when root/leader or root/beat last changed
	failure    string      // why the leader seems to have failed; empty if it has handed over
	applied    logPosition // position after the last complete batch
	next       logPosition // position of the next part: after applied while a batch is incomplete
	pending    []byte      // bytes of the incomplete batch
	bytes      int64       // size of the log since the checkpoint

	reporter *reporter
}

// errBehind makes a standby load the store again: the part that it would read next has been
// deleted.
var errBehind = errors.New("the log continues from a newer checkpoint")

// errGap makes a standby load the store again: the part that it would read next is missing.
var errGap = fmt.Errorf("a part of the log is missing: %w", errBehind)

// load reads the checkpoint and the log, at one revision, into a new machine.
func (s *standby) load(ctx context.Context) error {
	resp, err := s.txn(ctx, nil, clientv3.OpGet(s.stateKey()), clientv3.OpGet(s.leaderKey()), clientv3.OpGet(s.beatKey(), clientv3.WithKeysOnly()))
	if err != nil {
		return err
	}
	s.rev, s.lastChange = resp.Header.Revision, time.Now()
	s.state, s.leader, s.beat, s.bytes = empty, Leader{}, 0, 0
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			if err := s.setKey(kv); err != nil {
				return err
			}
		}
	}
	if s.machine, err = s.loadCheckpoint(ctx); err != nil {
		return err
	}
	if s.entry == nil {
		s.entry = s.machine.Replay
	}
	s.applied = logPosition{s.state.Segment, s.state.Seq}
	s.next = s.applied
	err = s.catchUp(ctx, s.segmentKey(s.state.Segment), clientv3.WithRev(s.rev))
	if errors.Is(err, errGap) { // at one revision no part may be missing
		return fmt.Errorf("the log has no part %d of segment %d, and parts behind it: %w", s.next.seq, s.next.segment, durable.ErrDamaged)
	}
	return err
}

// setKey stores the value of a key that is not part of the log.
func (s *standby) setKey(kv *mvccpb.KeyValue) error {
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
		s.leader.rev, s.lastChange = kv.ModRevision, time.Now()
		s.pending, s.next = nil, s.applied // the previous leader can never complete its last batch
	case s.beatKey():
		s.beat, s.lastChange = kv.ModRevision, time.Now()
	}
	if err != nil {
		return fmt.Errorf("key %q: %w", kv.Key, err)
	}
	return nil
}

// loadCheckpoint returns the machine of the current checkpoint, or an empty one.
func (s *standby) loadCheckpoint(ctx context.Context) (*core.Machine, error) {
	if s.state.Checkpoint == 0 {
		return core.New(core.Limits{}), nil // the first entry of the log has its limits
	}
	f, err := os.CreateTemp("", "muster-replica-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
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
	m, incarnation, segment, err := durable.ReadCheckpoint(f.Name())
	if err == nil && (incarnation != s.state.Incarnation || segment != s.state.Segment) {
		err = fmt.Errorf("checkpoint %d is of another store or segment: %w", s.state.Checkpoint, durable.ErrDamaged)
	}
	return m, err
}

// pageParts is how many parts of the log are read in the first request, and pageBytes the size that
// later requests aim at: parts may be large, but most are small.
const (
	pageParts = 16
	pageBytes = 4 << 20
)

// catchUp applies the parts of the log that exist, from a key on.
func (s *standby) catchUp(ctx context.Context, from string, options ...clientv3.OpOption) error {
	end := clientv3.GetPrefixRangeEnd(s.logPrefix())
	for limit := int64(pageParts); ; {
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
			limit = max(limit/2, pageParts)
		}
	}
}

// apply takes a part of the log. If the part is the last one of a batch, it replays the batch.
func (s *standby) apply(kv *mvccpb.KeyValue) error {
	w, err := s.parseLogKey(kv.Key)
	if err != nil {
		return err
	}
	switch {
	case w.seq < s.next.seq: // an unanswered attempt of the leader that was repeated
		return nil
	case w.seq > s.next.seq:
		return errGap
	}
	if len(kv.Value) == 0 {
		return fmt.Errorf("key %q: %w", kv.Key, errBatch)
	}
	s.pending = append(s.pending, kv.Value[1:]...)
	s.next = logPosition{w.segment, w.seq + 1}
	s.bytes += int64(max(len(kv.Value), partCost))
	if kv.Value[0] == more {
		return nil
	}
	batch := s.pending
	s.pending, s.applied = nil, s.next
	err = replay(batch, s.entry)
	s.machine.Effects() // discard the effects on sessions: they are the leader's
	if err != nil {
		return fmt.Errorf("key %q: %w", kv.Key, err)
	}
	return nil
}

// follow applies what the leader appends, and returns nil when there is no leader or it has failed.
func (s *standby) follow(ctx context.Context) error {
	s.failure = ""
	if s.leader.rev == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	s.reporter.update(s)
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
			ended, stop = observed.watchProcess(s.FailureTimeout)
		}
		select {
		case <-ended:
			s.failure = "the leader's process has ended"
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
			if err := s.handleEvents(resp.Events); err != nil {
				return err
			}
			// The header's revision does not count: its events may still come.
			if n := len(resp.Events); n > 0 {
				s.rev = resp.Events[n-1].Kv.ModRevision
				s.reporter.update(s)
			}
		case <-ticker.C:
			if time.Since(s.lastChange) > s.FailureTimeout && s.leaderFailed(ctx) {
				s.failure = fmt.Sprintf("no heartbeat from the leader for %v", time.Since(s.lastChange))
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// handleEvents applies changes, in their order.
func (s *standby) handleEvents(events []*clientv3.Event) error {
	log := s.logPrefix()
	for _, e := range events {
		var err error
		switch key := string(e.Kv.Key); {
		case e.Type == mvccpb.DELETE && key == s.leaderKey():
			s.leader = Leader{}
		case e.Type == mvccpb.DELETE:
			err = s.handleLogDelete(key)
		case strings.HasPrefix(key, log):
			err = s.apply(e.Kv)
		default:
			err = s.setKey(e.Kv)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// handleLogDelete handles the deletion of a part of the log. If the part is of an incomplete batch,
// a new leader has deleted the unfinished batch of the one before. setKey drops that batch as well;
// but a standby that loads during the takeover reads the new root/leader first and the parts of the
// batch afterwards.
func (s *standby) handleLogDelete(key string) error {
	if !strings.HasPrefix(key, s.logPrefix()) {
		return nil
	}
	w, err := s.parseLogKey([]byte(key))
	if err == nil && w.seq >= s.applied.seq {
		s.pending, s.next = nil, s.applied
	}
	return err
}

// leaderFailed reads the leader's keys, and reports whether they are unchanged since the last
// event. It may be the watch that is slow, and not the leader.
func (s *standby) leaderFailed(ctx context.Context) bool {
	resp, err := s.txn(ctx, nil, clientv3.OpGet(s.leaderKey(), clientv3.WithKeysOnly()), clientv3.OpGet(s.beatKey(), clientv3.WithKeysOnly()))
	if err != nil {
		return false
	}
	known := [...]int64{s.leader.rev, s.beat}
	for i, r := range resp.Responses {
		if kvs := r.GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].ModRevision > known[i] {
			s.lastChange = time.Now()
			return false
		}
	}
	return true
}
