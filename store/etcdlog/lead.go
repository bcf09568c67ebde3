package etcdlog

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/store"
)

var _ store.Replica = (*Leadership)(nil)

// Leadership is the result of Lead: a store.Replica, for one store.Memory. The Memory ends the
// leadership when it is closed or fails.
type Leadership struct {
	*keyspace
	fence    int64
	standby  *standby
	newStore bool
	addr     string    // where this process serves clients
	began    time.Time // when it began to lead
	// reportKey is the key of this process's own reports as a standby. They stay until they expire,
	// and are left out of the status.
	reportKey string
	log       *leaderLog
}

// Lead follows the store below o.Root until there is no leader, or the leader has failed, and this
// process leads. addr is where this process will serve, host:port, as FindLeader returns it. Lead
// returns when this process leads, when ctx ends, or with an error that no retry can resolve, such
// as a denied access. The caller closes client, after the Leadership.
func Lead(ctx context.Context, client *clientv3.Client, addr string, o *Options) (*Leadership, error) {
	return lead(ctx, client, Leader{Addr: addr, ID: newID()}, o)
}

// newID returns a random ID for a process.
func newID() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// lead is Lead, with the whole value of root/leader.
func lead(ctx context.Context, client *clientv3.Client, me Leader, o *Options) (*Leadership, error) {
	p := newKeyspace(client, o)
	l := &Leadership{keyspace: p}
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		s := &standby{keyspace: p}
		began := time.Now()
		err := l.followThenLead(ctx, s, me)
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case errors.Is(err, errBehind), errors.Is(err, ErrReplaced), transient(err):
			p.Logger.Debug("standby loads the store again", "root", p.Root, "err", err)
			if time.Since(began) > time.Second {
				pause = 5 * time.Millisecond
			}
			select {
			case <-time.After(pause):
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		return nil, fmt.Errorf("etcdlog: %s: %w", p.Root, err)
	}
}

// followThenLead loads the store into s, follows the log, and returns nil when this process leads.
func (l *Leadership) followThenLead(ctx context.Context, s *standby, me Leader) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	s.reporter = newReporter(s.keyspace, me.Addr)
	for {
		if err := s.follow(ctx); err != nil {
			return err
		}
		fence, err := s.campaign(ctx, me)
		if err != nil {
			return err
		}
		if fence > 0 {
			if s.failure != "" { // the campaign found its key unchanged: it has not handed over
				s.Logger.Warn(s.failure, "root", s.Root, "leader", s.leader.Addr)
			}
			l.fence, l.standby, l.addr, l.began, l.reportKey = fence, s, me.Addr, time.Now(), s.reporter.key
			return l.begin(ctx)
		}
	}
}

// campaign puts root/leader if it is as s knows it, and returns the revision of the put, or 0 if
// another process was faster.
func (s *standby) campaign(ctx context.Context, me Leader) (fence int64, err error) {
	me.Since = time.Now().UnixMilli()
	resp, err := s.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.leaderKey()), "=", s.leader.rev)},
		clientv3.OpPut(s.leaderKey(), encode(me)), clientv3.OpPut(s.beatKey(), ""))
	if err != nil {
		// The put may have succeeded: a leader that does nothing is replaced like one that failed.
		return 0, err
	}
	if !resp.Succeeded {
		return 0, s.reload(ctx)
	}
	return resp.Header.Revision, nil
}

// reload reads root/leader, after another process won the campaign.
func (s *standby) reload(ctx context.Context) error {
	resp, err := s.get(ctx, attemptTimeout, s.leaderKey())
	if err != nil {
		return err
	}
	if s.leader = (Leader{}); len(resp.Kvs) > 0 {
		return s.setKey(resp.Kvs[0])
	}
	return nil
}

// begin makes the log this process's own. It applies the rest of the log, which cannot grow any
// more because root/leader has changed, and deletes the last leader's unfinished batch in the same
// transaction that counts the term: parts of that batch must not be joined to a batch of this
// leader.
func (l *Leadership) begin(ctx context.Context) error {
	s := l.standby
	s.pending, s.next = nil, s.applied
	resp, err := s.get(ctx, attemptTimeout, s.stateKey())
	if err != nil {
		return err
	}
	var stateRev int64
	for _, kv := range resp.Kvs {
		stateRev = kv.ModRevision
		if err := s.setKey(kv); err != nil {
			return err
		}
	}
	if s.applied.seq < s.state.Seq {
		return errBehind
	}
	if err := s.catchUp(ctx, s.logKey(s.applied)); err != nil {
		return err
	}
	// A newer segment may have no part yet.
	next := logPosition{max(s.applied.segment, s.state.Segment), s.applied.seq}
	l.newStore = s.state.Incarnation == 0 // an earlier attempt may have found none
	if l.newStore {
		s.state.Incarnation = rand.Uint64() | 1
	}
	s.state.Term++
	log := newLeaderLog(l.keyspace, l.fence, stateRev, next, s.bytes)
	log.segmentEmpty = next.seq == s.state.Seq
	unhook := context.AfterFunc(ctx, func() { log.stop(context.Cause(ctx)) })
	err = log.putState(s.state, clientv3.OpDelete(l.logKey(next), clientv3.WithRange(clientv3.GetPrefixRangeEnd(l.logPrefix()))))
	if !unhook() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = log.Close()
		return err
	}
	l.log = log
	l.Logger.Info("leading", "root", l.Root, "revision", l.fence, "incarnation", s.state.Incarnation)
	return nil
}

// checkpointBytes is the size of the log after which the leader makes a checkpoint, if the store
// does not hold more: a standby that starts reads all of the log.
const checkpointBytes = 16 << 20

// Open implements store.Replica.
func (l *Leadership) Open(limits store.Limits, o *durable.Options) (*durable.Disk, *core.Machine, error) {
	m := l.standby.machine
	if m == nil {
		return nil, nil, errors.New("etcdlog: a Leadership is for one Memory")
	}
	l.standby.machine = nil
	own := durable.Options{}
	if o != nil {
		own = *o
	}
	own.CheckpointBytes = cmp.Or(own.CheckpointBytes, checkpointBytes)
	d, err := durable.Continue(&durable.Replica{
		Incarnation: l.standby.state.Incarnation, New: l.newStore, Log: l.log, Install: l.install, Failed: l.log.failed,
	}, m, limits, &own)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return d, m, nil
}

// install puts a checkpoint into etcd: first its parts, under a new ID, then root/state, which
// names it. A crash between them leaves parts without a name, which the next install deletes.
func (l *Leadership) install(file string, segment uint64) error {
	s := state{Incarnation: l.standby.state.Incarnation, Segment: segment, Seq: l.log.firstOf(segment), Checkpoint: rand.Uint64() | 1, Term: l.standby.state.Term}
	var err error
	if s.Parts, err = l.upload(file, s.Checkpoint, l.log.change); err != nil {
		return err
	}
	// Delete the earlier checkpoints, and the parts of one that was never named.
	mine := l.checkpointKey(s.Checkpoint, 0)
	return l.log.putState(s,
		clientv3.OpDelete(l.checkpointPrefix(), clientv3.WithRange(mine)),
		clientv3.OpDelete(l.checkpointKey(s.Checkpoint, s.Parts), clientv3.WithRange(clientv3.GetPrefixRangeEnd(l.checkpointPrefix()))),
	)
}

// upload puts the parts of a checkpoint file with change, and returns their number.
func (p *keyspace) upload(file string, id uint64, change func(ops ...clientv3.Op) error) (parts int, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for part := make([]byte, p.MaxValueBytes); ; parts++ {
		n, err := io.ReadFull(r, part)
		if n == 0 && errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return parts, err
		}
		if err := change(clientv3.OpPut(p.checkpointKey(id, parts), string(part[:n]))); err != nil {
			return parts, err
		}
	}
}

// Close ends the leadership, if the Memory has not.
func (l *Leadership) Close() error { return l.log.Close() }

// FindLeader returns the leader of the store below o.Root. Its Addr is empty if there is none.
func FindLeader(ctx context.Context, client *clientv3.Client, o *Options) (Leader, error) {
	s := &standby{keyspace: newKeyspace(client, o)}
	err := s.reload(ctx)
	return s.leader, err
}
