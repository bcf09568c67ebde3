package wire

import (
	"encoding/binary"
	"errors"
)

// ErrStatus is returned for a status whose rows have no group or no name.
var ErrStatus = errors.New("wire: a row of a status without its group or its name")

// Kinds of rows. A row is: kind u8 | length u32 | fields. A reader skips kinds that it does not
// know, and fields behind those that it knows.
const (
	rowServer uint8 = iota + 1
	rowGroup
	rowRank
	rowRecord
	rowFailure
	rowKey
	rowReplication
)

// AppendStatus appends the names and the rows of a page. A group of size 0 continues the last one
// of the page before.
func AppendStatus(names []string, rows []byte, s *Status) ([]string, []byte) {
	if s.Server != nil {
		rows = appendRow(rows, rowServer, s.Server.fields)
	}
	if s.Replication != nil {
		rows = appendRow(rows, rowReplication, s.Replication.fields)
	}
	for i := range s.Groups {
		g := &s.Groups[i]
		if g.Size > 0 {
			names = append(names, g.Name)
			rows = appendRow(rows, rowGroup, g.fields)
		}
		for j := range g.Ranks {
			rows = appendRow(rows, rowRank, g.Ranks[j].fields)
		}
		for j := range g.Records {
			rows = appendRow(rows, rowRecord, g.Records[j].fields)
		}
		for j := range g.Failures {
			rows = appendRow(rows, rowFailure, g.Failures[j].fields)
		}
	}
	for i := range s.Keys {
		names = append(names, s.Keys[i].Key)
		rows = appendRow(rows, rowKey, s.Keys[i].fields)
	}
	return names, rows
}

func appendRow(b []byte, kind uint8, fields func(*pass)) []byte {
	start := len(b)
	p := pass{b: append(b, kind, 0, 0, 0, 0)}
	fields(&p)
	binary.LittleEndian.PutUint32(p.b[start+1:], uint32(len(p.b)-start-5))
	return p.b
}

// Parse adds a page to s, which aliases rows and names.
func (s *Status) Parse(names []string, rows []byte) error {
	p := pass{b: rows, parses: true}
	for len(p.b) > 0 {
		var kind uint8
		row := pass{parses: true}
		p.u8(&kind)
		p.bytes(&row.b, MaxReply)
		if p.err != nil {
			return p.err
		}
		names = s.parseRow(kind, names, &row)
		if row.err != nil {
			return row.err
		}
	}
	if len(names) > 0 {
		return ErrStatus
	}
	return nil
}

// last appends v, and returns it where it is.
func last[T any](list *[]T, v T) *T {
	*list = append(*list, v)
	return &(*list)[len(*list)-1]
}

// parseRow parses a row, and returns names without the one that it has used.
func (s *Status) parseRow(kind uint8, names []string, p *pass) []string {
	switch kind {
	case rowServer:
		s.Server = new(ServerStatus)
		s.Server.fields(p)
	case rowReplication:
		s.Replication = new(ReplicationStatus)
		s.Replication.fields(p)
	case rowGroup, rowKey:
		if len(names) == 0 {
			p.fail(ErrStatus)
			return nil
		}
		if kind == rowGroup {
			last(&s.Groups, GroupStatus{Name: names[0]}).fields(p)
		} else {
			last(&s.Keys, KeyStatus{Key: names[0]}).fields(p)
		}
		return names[1:]
	case rowRank, rowRecord, rowFailure:
		if len(s.Groups) == 0 {
			p.fail(ErrStatus)
			return nil
		}
		s.Groups[len(s.Groups)-1].parseRow(kind, p)
	}
	return names
}

func (g *GroupStatus) parseRow(kind uint8, p *pass) {
	switch kind {
	case rowRank:
		last(&g.Ranks, RankStatus{}).fields(p)
	case rowRecord:
		last(&g.Records, RecordStatus{}).fields(p)
	case rowFailure:
		last(&g.Failures, FailureStatus{}).fields(p)
	}
}

func (s *ServerStatus) fields(p *pass) {
	p.duration(&s.Up)
	p.bool(&s.Durable)
	for _, n := range [...]*int64{&s.Sessions, &s.Calls, &s.Groups, &s.Keys, &s.Bytes} {
		p.i64(n)
	}
	p.u64(&s.In)
	p.u64(&s.Out)
	p.nums(&s.Ops)
	p.buckets(&s.Latency)
	p.duration(&s.LatencySum)
	for _, n := range [...]*int64{&s.Conns, &s.Accepted, &s.Refused, &s.Dropped, &s.LostSessions, &s.Watches, &s.History, &s.Compacted, &s.LogBytes} {
		p.i64(n)
	}
	p.buckets(&s.Syncs)
	p.duration(&s.SyncSum)
	p.duration(&s.SyncPending)
	p.string(&s.Loop, MaxKey)
}

func (r *ReplicationStatus) fields(p *pass) {
	p.bool(&r.Leading)
	p.string(&r.Leader, MaxKey)
	p.u64(&r.Term)
	p.duration(&r.LeadingFor)
	elements(p, &r.Standbys, p.count(len(r.Standbys), 20), func(s *StandbyStatus) {
		p.string(&s.Addr, MaxKey)
		p.u64(&s.Lag)
		p.duration(&s.Seen)
	})
}

func (p *pass) buckets(buckets *[]Bucket) {
	elements(p, buckets, p.count(len(*buckets), 16), func(b *Bucket) {
		p.duration(&b.UpTo)
		p.i64(&b.Count)
	})
}

func (g *GroupStatus) fields(p *pass) {
	p.string(&g.Run, MaxKey)
	p.u64(&g.Generation)
	p.int(&g.Size)
	p.int(&g.Present)
	p.int(&g.Open)
	p.duration(&g.Age)
	p.duration(&g.Ended)
	revoked := g.Revoked != nil
	p.bool(&revoked)
	if !revoked {
		return
	}
	if p.parses {
		g.Revoked = new(FailureStatus)
	}
	g.Revoked.fields(p)
}

func (r *RankStatus) fields(p *pass) {
	p.int(&r.Rank)
	p.string(&r.Label, MaxKey)
	p.u64(&r.Session)
	p.code(&r.Gone)
	p.string(&r.Verb, MaxKey)
	p.u64(&r.Seq)
	p.duration(&r.Ago)
	p.duration(&r.LastSeen)
	elements(p, &r.Waits, p.few(len(r.Waits), 8), func(w *WaitStatus) {
		p.string(&w.Verb, MaxKey)
		p.int(&w.Peer)
		p.string(&w.Tag, MaxKey)
		p.duration(&w.Waited)
	})
	reports := r.Progress != nil
	p.bool(&reports)
	if !reports {
		return
	}
	if p.parses {
		r.Progress = new(Phase)
	}
	r.Progress.fields(p)
}

func (r *RecordStatus) fields(p *pass) {
	p.string(&r.Channel, MaxKey)
	p.u64(&r.Seq)
	p.string(&r.Verb, MaxKey)
	p.int(&r.Root)
	p.duration(&r.Age)
	p.duration(&r.Remaining)
	r.Arrived.fields(p)
	r.Missing.fields(p)
}

func (r *Ranks) fields(p *pass) {
	p.int(&r.Count)
	elements(p, &r.Spans, p.count(len(r.Spans), 8), func(s *Span) {
		p.int(&s.First)
		p.int(&s.Last)
	})
}

func (v *FailureStatus) fields(p *pass) {
	p.string(&v.Channel, MaxKey)
	p.u64(&v.Seq)
	p.string(&v.Verb, MaxKey)
	p.duration(&v.Ago)
	v.Failure.fields(p)
	p.int(&v.Unnamed)
}

func (k *KeyStatus) fields(p *pass) {
	p.int(&k.Calls)
	p.duration(&k.Waited)
}
