package etcdlog

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
)

// reportInterval is the time between two reports of a standby.
const reportInterval = time.Second

// reportExpiry is the age at which the leader deletes a standby's report.
const reportExpiry = 5 * reportInterval

// report is the value of root/standby/ID.
type report struct {
	Addr string `json:"addr"` // where the standby will serve clients, host:port
	Lag  uint64 `json:"lag"`  // committed parts of the log that it had not applied
}

func (p *keyspace) standbyPrefix() string { return p.Root + "standby/" }

// reporter reports how far a standby is behind, to the leader and to Options.OnStatus.
type reporter struct {
	*keyspace
	key, addr string
	progress  atomic.Pointer[progress]
}

// progress is how far a standby has followed.
type progress struct {
	next   logPosition
	leader Leader
	term   uint64
}

func newReporter(p *keyspace, addr string) *reporter {
	return &reporter{keyspace: p, key: fmt.Sprintf("%s%016x", p.standbyPrefix(), rand.Uint64()), addr: addr}
}

// update stores the progress of s.
func (r *reporter) update(s *standby) { r.progress.Store(&progress{s.next, s.leader, s.state.Term}) }

// run reports until ctx ends. A failed attempt is not repeated: the next report is due soon.
func (r *reporter) run(ctx context.Context) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	for lag := uint64(0); ; {
		x := r.progress.Load()
		// etcd counts the parts after x at the revision of the put: the leader gets that lag with
		// the next report.
		resp, err := r.txn(ctx, nil, clientv3.OpPut(r.key, encode(report{r.addr, lag})),
			clientv3.OpGet(r.logKey(x.next), clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.logPrefix())), clientv3.WithCountOnly()))
		if err == nil {
			lag = uint64(resp.Responses[1].GetResponseRange().Count)
		}
		if r.OnStatus != nil && ctx.Err() == nil {
			s := &store.ReplicationStatus{Leader: x.leader.Addr, Term: x.term, LeadingFor: -1, Standbys: []store.StandbyStatus{{Addr: r.addr, Lag: lag}}}
			if err != nil {
				s.Standbys = nil
			}
			if x.leader.Addr != "" {
				s.LeadingFor = max(0, time.Since(time.UnixMilli(x.leader.Since)))
			}
			r.OnStatus(s)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// standbys are the reports that the leader knows, by their keys.
type standbys map[string]*standbyReport

// standbyReport is the last report of a standby.
type standbyReport struct {
	report
	rev       int64     // modification revision of its key
	changedAt time.Time // when the leader saw that revision, by its own clock
}

// heartbeat changes root/beat, reads the reports of standbys, and deletes those that have expired,
// in one transaction.
func (l *leaderLog) heartbeat() error {
	ops := []clientv3.Op{clientv3.OpPut(l.beatKey(), ""), clientv3.OpGet(l.standbyPrefix(), clientv3.WithPrefix())}
	l.mu.Lock()
	for key, x := range l.standbys {
		if time.Since(x.changedAt) > reportExpiry {
			ops = append(ops, clientv3.OpDelete(key))
		}
	}
	l.mu.Unlock()
	resp, err := l.fencedTxn(ops...)
	if err != nil {
		return err
	}
	there := standbys{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		x := &standbyReport{rev: kv.ModRevision, changedAt: time.Now()}
		if old := l.standbys[string(kv.Key)]; old != nil && old.rev == x.rev {
			x = old
		} else if json.Unmarshal(kv.Value, &x.report) != nil {
			x.report = report{} // of a later version: list it without details
		}
		there[string(kv.Key)] = x
	}
	l.standbys = there
	return nil
}

// Status implements store.Replica.
func (l *Leadership) Status() *store.ReplicationStatus {
	s := &store.ReplicationStatus{Leading: true, Leader: l.addr, Term: l.standby.state.Term, LeadingFor: time.Since(l.began)}
	log := l.log
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(log.standbys)) {
		if x := log.standbys[key]; time.Since(x.changedAt) < reportExpiry && key != l.reportKey {
			s.Standbys = append(s.Standbys, store.StandbyStatus{Addr: x.Addr, Lag: x.Lag, Seen: time.Since(x.changedAt)})
		}
	}
	return s
}
