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

// reports is how often a standby puts its key.
const reports = time.Second

// forgotten is after how long the leader removes the key of a standby that has not put it again.
func (p *place) forgotten() time.Duration { return 5 * p.reports }

// report is the value of root/standby/ID.
type report struct {
	Addr string `json:"addr"` // where the standby will serve, host:port
	Lag  uint64 `json:"lag"`  // parts of the log that were committed, and that it had not applied
}

func (p *place) standbyPrefix() string { return p.Root + "standby/" }

// reporter tells the leader and Options.Follows how far a standby is behind.
type reporter struct {
	*place
	key, addr string
	seen      atomic.Pointer[seen]
}

// seen is what a standby has followed.
type seen struct {
	next   where
	leader Leader
	term   uint64
}

func newReporter(p *place, addr string) *reporter {
	return &reporter{place: p, key: fmt.Sprintf("%s%016x", p.standbyPrefix(), rand.Uint64()), addr: addr}
}

// saw notes how far s is.
func (r *reporter) saw(s *standby) { r.seen.Store(&seen{s.next, s.leader, s.state.Term}) }

// run reports until ctx ends. An attempt that fails is not repeated: the next report is due soon.
func (r *reporter) run(ctx context.Context) {
	ticker := time.NewTicker(r.reports)
	defer ticker.Stop()
	for lag := uint64(0); ; {
		x := r.seen.Load()
		// etcd counts what is behind x at the revision of the put: the leader gets that lag with the next report.
		resp, err := r.txn(ctx, nil, clientv3.OpPut(r.key, encode(report{r.addr, lag})),
			clientv3.OpGet(r.logKey(x.next), clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.logPrefix())), clientv3.WithCountOnly()))
		if err == nil {
			lag = uint64(resp.Responses[1].GetResponseRange().Count)
		}
		if r.Follows != nil && ctx.Err() == nil {
			s := &store.ReplicationStatus{Leader: x.leader.Addr, Term: x.term, LeadingFor: -1, Standbys: []store.StandbyStatus{{Addr: r.addr, Lag: lag}}}
			if err != nil {
				s.Standbys = nil
			}
			if x.leader.Addr != "" {
				s.LeadingFor = max(0, time.Since(time.UnixMilli(x.leader.Since)))
			}
			r.Follows(s)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// standbys are the processes that the leader has reports of, by their keys.
type standbys map[string]*reported

// reported is the last report of a standby.
type reported struct {
	report
	rev  int64     // of its key
	came time.Time // when the leader saw that
}

// beat changes root/beat, takes the reports of standbys that are there, and removes those of standbys that have ended.
func (r *records) beat() error {
	ops := []clientv3.Op{clientv3.OpPut(r.beatKey(), ""), clientv3.OpGet(r.standbyPrefix(), clientv3.WithPrefix())}
	r.mu.Lock()
	for key, x := range r.standbys {
		if time.Since(x.came) > r.forgotten() {
			ops = append(ops, clientv3.OpDelete(key))
		}
	}
	r.mu.Unlock()
	resp, err := r.leading(ops...)
	if err != nil {
		return err
	}
	there := standbys{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		x := &reported{rev: kv.ModRevision, came: time.Now()}
		if old := r.standbys[string(kv.Key)]; old != nil && old.rev == x.rev {
			x = old
		} else if json.Unmarshal(kv.Value, &x.report) != nil {
			x.report = report{} // of a later version: it is there
		}
		there[string(kv.Key)] = x
	}
	r.standbys = there
	return nil
}

// Status implements store.Replica.
func (l *Leadership) Status() *store.ReplicationStatus {
	s := &store.ReplicationStatus{Leading: true, Leader: l.addr, Term: l.standby.state.Term, LeadingFor: time.Since(l.began)}
	r := l.records
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(r.standbys)) {
		if x := r.standbys[key]; time.Since(x.came) < r.forgotten() && key != l.reportKey {
			s.Standbys = append(s.Standbys, store.StandbyStatus{Addr: x.Addr, Lag: x.Lag, Seen: time.Since(x.came)})
		}
	}
	return s
}
