package wire

import "errors"

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
		rows = appendRow(rows, rowServer, s.Server.append)
	}
	if s.Replication != nil {
		rows = appendRow(rows, rowReplication, s.Replication.append)
	}
	for i := range s.Groups {
		g := &s.Groups[i]
		if g.Size > 0 {
			names = append(names, g.Name)
			rows = appendRow(rows, rowGroup, g.append)
		}
		for j := range g.Ranks {
			rows = appendRow(rows, rowRank, g.Ranks[j].append)
		}
		for j := range g.Records {
			rows = appendRow(rows, rowRecord, g.Records[j].append)
		}
		for j := range g.Failures {
			rows = appendRow(rows, rowFailure, g.Failures[j].append)
		}
	}
	for i := range s.Keys {
		names = append(names, s.Keys[i].Key)
		rows = appendRow(rows, rowKey, s.Keys[i].append)
	}
	return names, rows
}

func appendRow(b []byte, kind uint8, fields func([]byte) []byte) []byte {
	start := len(b)
	b = fields(append(b, kind, 0, 0, 0, 0))
	n := uint32(len(b) - start - 5)
	for i := range 4 {
		b[start+1+i] = byte(n >> (8 * i))
	}
	return b
}

// Parse adds a page to s, which aliases rows and names.
func (s *Status) Parse(names []string, rows []byte) error {
	p := parser{b: rows}
	for p.err == nil && len(p.b) > 0 {
		kind := p.u8()
		row := parser{b: p.bytes(MaxReply)}
		if p.err != nil {
			break
		}
		if kind == rowGroup || kind == rowKey {
			if len(names) == 0 {
				return ErrStatus
			}
			s.parseNamed(kind, names[0], &row)
			names = names[1:]
		} else if err := s.parseRow(kind, &row); err != nil {
			return err
		}
		if row.err != nil {
			return row.err
		}
	}
	if p.err == nil && len(names) > 0 {
		return ErrStatus
	}
	return p.err
}

func (s *Status) parseNamed(kind uint8, name string, p *parser) {
	if kind == rowKey {
		s.Keys = append(s.Keys, KeyStatus{Key: name, Calls: p.int(), Waited: p.duration()})
		return
	}
	s.Groups = append(s.Groups, GroupStatus{Name: name})
	s.Groups[len(s.Groups)-1].parse(p)
}

// parseRow parses a row that has no name.
func (s *Status) parseRow(kind uint8, p *parser) error {
	switch {
	case kind == rowServer:
		s.Server = new(ServerStatus)
		s.Server.parse(p)
		return nil
	case kind == rowReplication:
		s.Replication = new(ReplicationStatus)
		s.Replication.parse(p)
		return nil
	case kind > rowReplication:
		return nil
	}
	if len(s.Groups) == 0 {
		return ErrStatus
	}
	g := &s.Groups[len(s.Groups)-1]
	switch kind {
	case rowRank:
		g.Ranks = append(g.Ranks, parseRank(p))
	case rowRecord:
		g.Records = append(g.Records, parseRecord(p))
	case rowFailure:
		g.Failures = append(g.Failures, parseFailureStatus(p))
	}
	return nil
}

func (s *ServerStatus) append(b []byte) []byte {
	b = appendDuration(b, s.Up)
	b = append(b, boolByte(s.Durable))
	for _, n := range [...]int64{s.Sessions, s.Calls, s.Groups, s.Keys, s.Bytes, int64(s.In), int64(s.Out)} {
		b = appendU64(b, uint64(n))
	}
	b = appendNums(b, s.Ops)
	b = appendDuration(appendBuckets(b, s.Latency), s.LatencySum)
	for _, n := range s.counts() {
		b = appendU64(b, uint64(*n))
	}
	b = appendDuration(appendDuration(appendBuckets(b, s.Syncs), s.SyncSum), s.SyncPending)
	return appendString(b, s.Loop)
}

func (s *ServerStatus) parse(p *parser) {
	s.Up, s.Durable = p.duration(), p.bool()
	for _, n := range [...]*int64{&s.Sessions, &s.Calls, &s.Groups, &s.Keys, &s.Bytes} {
		*n = int64(p.u64())
	}
	s.In, s.Out = p.u64(), p.u64()
	s.Ops = p.nums()
	s.Latency, s.LatencySum = p.buckets(), p.duration()
	for _, n := range s.counts() {
		*n = int64(p.u64())
	}
	s.Syncs, s.SyncSum = p.buckets(), p.duration()
	if len(p.b) > 0 { // an older store ends here
		s.SyncPending = p.duration()
	}
	if len(p.b) > 0 { // or here
		s.Loop = p.string(MaxKey)
	}
}

func (r *ReplicationStatus) append(b []byte) []byte {
	b = appendString(append(b, boolByte(r.Leading)), r.Leader)
	b = appendDuration(appendU64(b, r.Term), r.LeadingFor)
	b = appendU32(b, uint32(len(r.Standbys)))
	for i := range r.Standbys {
		x := &r.Standbys[i]
		b = appendDuration(appendU64(appendString(b, x.Addr), x.Lag), x.Seen)
	}
	return b
}

func (r *ReplicationStatus) parse(p *parser) {
	r.Leading, r.Leader, r.Term, r.LeadingFor = p.bool(), p.string(MaxKey), p.u64(), p.duration()
	for range p.count(20) {
		r.Standbys = append(r.Standbys, StandbyStatus{p.string(MaxKey), p.u64(), p.duration()})
	}
}

func appendBuckets(b []byte, buckets []Bucket) []byte {
	b = appendU32(b, uint32(len(buckets)))
	for _, x := range buckets {
		b = appendU64(appendDuration(b, x.UpTo), uint64(x.Count))
	}
	return b
}

func (p *parser) buckets() (buckets []Bucket) {
	for range p.count(16) {
		buckets = append(buckets, Bucket{p.duration(), int64(p.u64())})
	}
	return buckets
}

func appendNums(b []byte, ns []int64) []byte {
	b = appendU32(b, uint32(len(ns)))
	for _, n := range ns {
		b = appendU64(b, uint64(n))
	}
	return b
}

func (p *parser) nums() []int64 {
	ns := make([]int64, p.count(8))
	for i := range ns {
		ns[i] = int64(p.u64())
	}
	return ns
}

func (g *GroupStatus) append(b []byte) []byte {
	b = appendString(b, g.Run)
	b = appendU64(b, g.Generation)
	for _, n := range [...]int{g.Size, g.Present, g.Open} {
		b = appendInt(b, n)
	}
	b = appendDuration(b, g.Age)
	b = appendDuration(b, g.Ended)
	b = append(b, boolByte(g.Revoked != nil))
	if g.Revoked != nil {
		b = g.Revoked.append(b)
	}
	return b
}

func (g *GroupStatus) parse(p *parser) {
	g.Run, g.Generation = p.string(MaxKey), p.u64()
	g.Size, g.Present, g.Open = p.int(), p.int(), p.int()
	g.Age, g.Ended = p.duration(), p.duration()
	if p.bool() {
		g.Revoked = new(parseFailureStatus(p))
	}
}

func (r *RankStatus) append(b []byte) []byte {
	b = appendInt(b, r.Rank)
	b = appendString(b, r.Label)
	b = appendU64(b, r.Session)
	b = appendU16(b, uint16(r.Gone))
	b = appendString(b, r.Verb)
	b = appendU64(b, r.Seq)
	b = appendDuration(b, r.Ago)
	b = appendDuration(b, r.LastSeen)
	b = append(b, byte(len(r.Waits)))
	for i := range r.Waits {
		w := &r.Waits[i]
		b = appendString(b, w.Verb)
		b = appendInt(b, w.Peer)
		b = appendString(b, w.Tag)
		b = appendDuration(b, w.Waited)
	}
	return b
}

func parseRank(p *parser) RankStatus {
	r := RankStatus{
		Rank: p.int(), Label: p.string(MaxKey), Session: p.u64(), Gone: Code(p.u16()),
		Verb: p.string(MaxKey), Seq: p.u64(), Ago: p.duration(), LastSeen: p.duration(),
	}
	for range p.u8() {
		r.Waits = append(r.Waits, WaitStatus{p.string(MaxKey), p.int(), p.string(MaxKey), p.duration()})
		if p.err != nil {
			break
		}
	}
	return r
}

func (r *RecordStatus) append(b []byte) []byte {
	b = appendString(b, r.Channel)
	b = appendU64(b, r.Seq)
	b = appendString(b, r.Verb)
	b = appendInt(b, r.Root)
	b = appendDuration(b, r.Age)
	b = appendDuration(b, r.Remaining)
	return r.Missing.append(r.Arrived.append(b))
}

func parseRecord(p *parser) RecordStatus {
	return RecordStatus{
		Channel: p.string(MaxKey), Seq: p.u64(), Verb: p.string(MaxKey), Root: p.int(), Age: p.duration(), Remaining: p.duration(),
		Arrived: parseRanks(p), Missing: parseRanks(p),
	}
}

func (r *Ranks) append(b []byte) []byte {
	b = appendInt(b, r.Count)
	b = appendU32(b, uint32(len(r.Spans)))
	for _, s := range r.Spans {
		b = appendInt(appendInt(b, s.First), s.Last)
	}
	return b
}

func parseRanks(p *parser) Ranks {
	r := Ranks{Count: p.int()}
	for range p.count(8) {
		r.Spans = append(r.Spans, Span{p.int(), p.int()})
	}
	return r
}

func (v *FailureStatus) append(b []byte) []byte {
	b = appendString(b, v.Channel)
	b = appendU64(b, v.Seq)
	b = appendString(b, v.Verb)
	b = appendDuration(b, v.Ago)
	return appendInt(v.Failure.append(b), v.Unnamed)
}

func parseFailureStatus(p *parser) FailureStatus {
	return FailureStatus{Channel: p.string(MaxKey), Seq: p.u64(), Verb: p.string(MaxKey), Ago: p.duration(), Failure: *p.failure(), Unnamed: p.int()}
}

func (k *KeyStatus) append(b []byte) []byte {
	return appendDuration(appendInt(b, k.Calls), k.Waited)
}
