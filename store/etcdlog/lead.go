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

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/store"
)

var _ store.Replica = (*Leadership)(nil)

// Leadership is what Lead returns: a store.Replica, for one store.Memory. It ends when the Memory is closed or has failed, and Close then
// removes what it has on this machine.
type Leadership struct {
	*place
	fence   int64
	standby *standby
	fresh   bool
	scratch string
	addr    string    // where this process serves
	began   time.Time // when it began to lead
	// reportKey is its own as a standby, until the leader, which it is, removes it.
	reportKey string
	records   *records
}

// Lead follows the store below o.Root until this process leads it: until there is no leader, or the leader has failed. addr is where this
// process will serve, host:port, for Find. It returns when it leads, when ctx
// ends, or when etcd refuses access. The caller closes client, after the Leadership.
func Lead(ctx context.Context, client *clientv3.Client, addr string, o *Options) (*Leadership, error) {
	return lead(ctx, client, Leader{Addr: addr, ID: newID()}, o)
}

// newID is that of a process.
func newID() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// lead is Lead for a process as root/leader has it.
func lead(ctx context.Context, client *clientv3.Client, me Leader, o *Options) (*Leadership, error) {
	p := newPlace(client, o)
	scratch, err := os.MkdirTemp("", "muster-replica-")
	if err != nil {
		return nil, err
	}
	l := &Leadership{place: p, scratch: scratch}
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		s := &standby{place: p}
		began := time.Now()
		err := l.try(ctx, s, me)
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case errors.Is(err, errBehind), errors.Is(err, ErrReplaced), transient(err):
			p.Logger.Debug("follows anew", "root", p.Root, "err", err)
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
		_ = os.RemoveAll(scratch)
		return nil, fmt.Errorf("etcdlog: %s: %w", p.Root, err)
	}
}

// try follows until it leads, with s, which has loaded nothing yet.
func (l *Leadership) try(ctx context.Context, s *standby, me Leader) error {
	if err := s.load(ctx, l.scratch); err != nil {
		return err
	}
	s.reporter = newReporter(s.place, me.Addr)
	for {
		if err := s.follow(ctx); err != nil {
			return err
		}
		fence, err := s.campaign(ctx, me)
		if err != nil {
			return err
		}
		if fence > 0 {
			l.fence, l.standby, l.addr, l.began, l.reportKey = fence, s, me.Addr, time.Now(), s.reporter.key
			return l.begin(ctx)
		}
	}
}

// campaign puts root/leader if it is as s knows it, and returns its revision then.
func (s *standby) campaign(ctx context.Context, me Leader) (fence int64, err error) {
	me.Since = time.Now().UnixMilli()
	resp, err := s.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.leaderKey()), "=", s.leader.rev)},
		clientv3.OpPut(s.leaderKey(), encode(me)), clientv3.OpPut(s.beatKey(), ""))
	if err != nil { // whether it leads is not known: a leader that does nothing fails, and is replaced
		return 0, err
	}
	if !resp.Succeeded {
		return 0, s.reload(ctx)
	}
	return resp.Header.Revision, nil
}

// reload reads root/leader again, after another process won the campaign.
func (s *standby) reload(ctx context.Context) error {
	resp, err := s.get(ctx, attempt, s.leaderKey())
	if err != nil {
		return err
	}
	if s.leader = (Leader{}); len(resp.Kvs) > 0 {
		return s.note(resp.Kvs[0])
	}
	return nil
}

// begin applies the rest of the log, removes what its last leader has not ended, and makes the log this process's.
func (l *Leadership) begin(ctx context.Context) error {
	s := l.standby
	s.part, s.next = nil, s.whole
	resp, err := s.get(ctx, attempt, s.stateKey())
	if err != nil {
		return err
	}
	var stateRev int64
	for _, kv := range resp.Kvs {
		stateRev = kv.ModRevision
		if err := s.note(kv); err != nil {
			return err
		}
	}
	if s.whole.seq < s.state.Seq {
		return errBehind
	}
	if err := s.catchUp(ctx, s.logKey(s.whole)); err != nil {
		return err
	}
	next := where{max(s.whole.segment, s.state.Segment), s.whole.seq} // of a newer segment there may be no part yet
	if s.state.Incarnation == 0 {
		l.fresh = true
		s.state.Incarnation = rand.Uint64() | 1
	}
	s.state.Term++
	r := newRecords(l.place, l.fence, stateRev, next, s.bytes)
	r.fresh = next.seq == s.state.Seq
	unhook := context.AfterFunc(ctx, func() { r.stop(context.Cause(ctx)) })
	err = r.putState(s.state, clientv3.OpDelete(l.logKey(next), clientv3.WithRange(clientv3.GetPrefixRangeEnd(l.logPrefix()))))
	if !unhook() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = r.Close()
		return err
	}
	l.records = r
	l.Logger.Info("leads", "root", l.Root, "revision", l.fence, "incarnation", s.state.Incarnation)
	return nil
}

// fold is after how many bytes of log there is a checkpoint, if the store does not hold more: a standby that begins reads all of it.
const fold = 16 << 20

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
	own.Fold = cmp.Or(own.Fold, fold)
	d, err := durable.Continue(&durable.Replica{
		Incarnation: l.standby.state.Incarnation, Fresh: l.fresh, Log: l.records, Install: l.install, Scratch: l.scratch, Lost: l.records.lost,
	}, m, limits, &own)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return d, m, nil
}

// install puts a checkpoint into etcd: its parts under a new ID first, then root/state, which names it.
func (l *Leadership) install(file string, segment uint64) error {
	s := state{Incarnation: l.standby.state.Incarnation, Segment: segment, Seq: l.records.firstOf(segment), Checkpoint: rand.Uint64() | 1, Term: l.standby.state.Term}
	var err error
	if s.Parts, err = l.upload(file, s.Checkpoint, l.records.change); err != nil {
		return err
	}
	// With it go those before it, and what is left of one that was never named.
	mine, before := l.checkpointKey(s.Checkpoint, 0), l.records.stateRev
	err = l.records.putState(s,
		clientv3.OpDelete(l.checkpointPrefix(), clientv3.WithRange(mine)),
		clientv3.OpDelete(l.checkpointKey(s.Checkpoint, s.Parts), clientv3.WithRange(clientv3.GetPrefixRangeEnd(l.checkpointPrefix()))),
	)
	if err == nil && l.Compact {
		l.compact(before)
	}
	return err
}

// compact drops etcd's history before a revision. A failure costs space only, and the next checkpoint tries again.
func (l *Leadership) compact(rev int64) {
	ctx, cancel := context.WithTimeout(l.records.life, attempt)
	defer cancel()
	if _, err := l.kv.Compact(ctx, rev); err != nil && !is(err, rpctypes.ErrGRPCCompacted) {
		l.Logger.Warn("etcd's history is not compacted", "root", l.Root, "revision", rev, "err", err)
	}
}

// upload puts the parts of a checkpoint by change, and returns how many they are.
func (p *place) upload(file string, id uint64, change func(ops ...clientv3.Op) error) (parts int, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for part := make([]byte, p.Part); ; parts++ {
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

// Close gives up the leadership, if the Memory has not, and removes what there is on this machine.
func (l *Leadership) Close() error {
	return errors.Join(l.records.Close(), os.RemoveAll(l.scratch))
}

// Find returns the leader of the store below o.Root; its Addr is empty if there is none.
func Find(ctx context.Context, client *clientv3.Client, o *Options) (Leader, error) {
	s := &standby{place: newPlace(client, o)}
	err := s.reload(ctx)
	return s.leader, err
}
