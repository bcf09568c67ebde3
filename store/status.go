package store

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// What Status gives. Durations are those at the time of the answer.
type (
	// Status is what a store tells of itself.
	Status = wire.Status
	// ServerStatus is about the store as a whole.
	ServerStatus = wire.ServerStatus
	// ReplicationStatus is about the processes that keep a replicated store.
	ReplicationStatus = wire.ReplicationStatus
	// StandbyStatus is one of them that follows the leader.
	StandbyStatus = wire.StandbyStatus
	// GroupStatus is one generation of a group, or one that comes together.
	GroupStatus = wire.GroupStatus
	// RankStatus is a rank.
	RankStatus = wire.RankStatus
	// RecordStatus is a verb that is not decided yet.
	RecordStatus = wire.RecordStatus
	// WaitStatus is a send or a receive that waits.
	WaitStatus = wire.WaitStatus
	// FailureStatus is why something failed.
	FailureStatus = wire.FailureStatus
	// KeyStatus is a key that calls wait for.
	KeyStatus = wire.KeyStatus
	// Bucket is a range of a histogram of times.
	Bucket = wire.Bucket
)

// Status returns what the store sees: the groups whose names begin with prefix and their ranks, which verbs are not decided yet, who has
// come and who is missing, for how long, and what failed last. It changes nothing. It takes the right to read below prefix; numbers
// about the whole store come if that is "". It is made of pages, so that it delays nobody, and may be of several moments.
func (s *Store) Status(ctx context.Context, prefix string) (*Status, error) {
	all, size := new(Status), 0
	for req := (wire.Request{Op: wire.OpStatus, Key: prefix}); ; {
		var rep wire.Reply
		if err := s.Do(ctx, &req, &rep); err != nil {
			return nil, err
		}
		err := all.Parse(rep.Keys, rep.Value)
		if err == nil && len(rep.Nums) == 0 {
			return all, nil
		}
		from := req
		if err == nil && len(rep.Nums) == 2 {
			req.Rev, req.Delta = uint64(rep.Nums[0]), rep.Nums[1]
		}
		if size += len(rep.Value); err == nil && size > wire.MaxReply {
			err = wire.ErrTooLarge
		}
		if err != nil || req.Rev < from.Rev || req.Rev == from.Rev && req.Delta <= from.Delta {
			return nil, &Error{Op: "status", Key: prefix, Code: wire.CodeUnavailable, Err: ErrProtocol, Detail: fmt.Sprintf("a page that means nothing: %v", err)}
		}
	}
}

// Names gives a page of the entries below prefix that come after a key, n at most, in the order of keys, without their values. More
// is whether there are others behind them.
func (s *Store) Names(ctx context.Context, prefix, after string, n int) (entries []Entry, more bool, err error) {
	req := wire.Request{Op: wire.OpList, Key: prefix, Delta: -int64(max(1, min(n, listPage)))}
	if after != "" {
		req.Keys = []string{after}
	}
	var rep wire.Reply
	if err := s.Do(ctx, &req, &rep); err != nil {
		return nil, false, err
	}
	for i, k := range rep.Keys {
		entries = append(entries, Entry{Key: k, Rev: Revision(rep.Nums[2*i]), TTL: time.Duration(rep.Nums[2*i+1])})
	}
	return entries, rep.N != 0, nil
}

// ReadOnly is s for those who only look: what would change something is ErrDenied. Its Close leaves s open.
func ReadOnly(s *Store) *Store { return New(&readOnly{unclosable{s.engine}}) }

// status answers a page of a status. Called with mu.
func (m *Memory) status(now core.Time, req *wire.Request, rep *wire.Reply) {
	*rep = wire.Reply{}
	page := m.machine.Status(now, req.Key, req.Rev, int(max(0, min(req.Delta, maxRank))))
	for i := range page.Groups {
		for j := range page.Groups[i].Ranks {
			r := &page.Groups[i].Ranks[j]
			r.LastSeen = m.heard(r)
		}
	}
	if s := page.Server; s != nil {
		s.Durable = m.disk != nil
		if m.disk != nil {
			s.LogBytes, s.SyncPending = m.disk.LogSize(), m.disk.Writing()
		}
		m.meter.status(s)
		if m.Replica != nil {
			page.Replication = m.Replica.Status()
		}
	}
	rep.Keys, rep.Value = wire.AppendStatus([]string{}, []byte{}, &page.Status)
	if page.More {
		rep.Nums = []int64{int64(page.Generation), int64(page.Rank)}
	}
}

// maxRank is more than any rank.
const maxRank = 1 << 30

// heard is how long ago a rank's process was last heard of; -1 is unknown. Called with mu.
func (m *Memory) heard(r *RankStatus) time.Duration {
	switch l := m.links[r.Session]; {
	case r.Gone != wire.CodeOK:
		return -1
	case r.Session == core.Local:
		return 0
	case l != nil:
		return l.silentFor()
	}
	return -1
}

// quiet implements link.
func (c *conn) silentFor() time.Duration {
	if c.received.Load() {
		return 0
	}
	return time.Duration(c.missedChecks.Load()) * checkInterval
}
