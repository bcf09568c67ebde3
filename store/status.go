package store

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// The types of Status. Durations are as of the time of the reply.
type (
	// Status describes a store.
	Status = wire.Status
	// ServerStatus describes the store as a whole.
	ServerStatus = wire.ServerStatus
	// ReplicationStatus describes the processes of a replicated store.
	ReplicationStatus = wire.ReplicationStatus
	// StandbyStatus describes a process that follows the leader.
	StandbyStatus = wire.StandbyStatus
	// GroupStatus describes a generation of a group, or a rendezvous that is forming one.
	GroupStatus = wire.GroupStatus
	// RankStatus describes a rank.
	RankStatus = wire.RankStatus
	// RecordStatus describes an operation that is not decided yet.
	RecordStatus = wire.RecordStatus
	// WaitStatus describes a waiting send or receive.
	WaitStatus = wire.WaitStatus
	// FailureStatus describes why an operation failed.
	FailureStatus = wire.FailureStatus
	// KeyStatus describes a key that calls wait for.
	KeyStatus = wire.KeyStatus
	// Bucket is a bucket of a histogram of durations.
	Bucket = wire.Bucket
)

// Status returns the state of the groups whose names begin with prefix: their ranks, the undecided
// operations with the ranks that have joined and those that are missing, and the last failure. It
// changes nothing. It needs the right to read below prefix; figures of the whole store are included
// if prefix is "". It is fetched in pages, so that it delays no other request; the pages may be of
// different moments.
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
		from := req.Group
		req.Group.Generation, req.Group.Rank = rep.NextPage()
		if size += len(rep.Value); err == nil && size > wire.MaxReply {
			err = wire.ErrTooLarge
		}
		if err != nil || cmp.Or(cmp.Compare(req.Group.Generation, from.Generation), cmp.Compare(req.Group.Rank, from.Rank)) <= 0 {
			return nil, &Error{Op: "status", Key: prefix, Code: wire.CodeUnavailable, Err: ErrProtocol, Detail: fmt.Sprintf("a page that means nothing: %v", err)}
		}
	}
}

// ReadOnly returns s for observers: operations that change something are ErrDenied. Its Close
// leaves s open.
func ReadOnly(s *Store) *Store { return New(&readOnly{unclosable{s.engine}}) }

// status answers a page of a status. The caller holds mu.
func (m *Memory) status(now core.Time, req *wire.Request, rep *wire.Reply) {
	*rep = wire.Reply{}
	page := m.machine.Status(now, req.Key, req.Group.Generation, req.Group.Rank)
	for i := range page.Groups {
		for j := range page.Groups[i].Ranks {
			r := &page.Groups[i].Ranks[j]
			r.LastSeen = m.lastSeen(r)
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
		rep.Nums = wire.AppendNextPage(nil, page.Generation, page.Rank)
	}
}

// lastSeen returns how long ago something was received from a rank's process; −1 if that is
// unknown. The caller holds mu.
func (m *Memory) lastSeen(r *RankStatus) time.Duration {
	switch l := m.conns[r.Session]; {
	case r.Gone != wire.CodeOK:
		return -1
	case r.Session == core.Local:
		return 0
	case l != nil:
		return l.silentFor()
	}
	return -1
}

// silentFor implements sessionConn.
func (c *conn) silentFor() time.Duration {
	if c.received.Load() {
		return 0
	}
	return time.Duration(c.missedChecks.Load()) * checkInterval
}
