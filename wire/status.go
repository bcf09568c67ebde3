package wire

import (
	"errors"
	"time"
)

// Status is the status of a store. The answer to OpStatus is a page of it: Keys has the names,
// Value the rows with the rest. A duration, or a number of a ServerStatus, that is below 0 is
// unknown: not every engine knows all of them. A store whose Up is unknown counts no requests or
// bytes.
type Status struct {
	Server *ServerStatus // nil below a prefix
	// Replication is nil below a prefix, and for a store that is not replicated. A standby returns
	// nothing else.
	Replication *ReplicationStatus
	// Groups are those that form, then those that exist, then those that ended with a failure, each
	// in the order in which they began.
	Groups []GroupStatus
	Keys   []KeyStatus // that calls wait for, the longest first; not more than StatusKeys
}

// Bounds of the lists of a Status.
const (
	StatusKeys    = 64  // keys that calls wait for
	StatusRecords = 16  // open records of a group: the oldest ones
	StatusSpans   = 256 // spans of a list of ranks
	StatusWaits   = 8   // sends and receives of a rank
)

// ServerStatus is the status of the store as a whole. Counters grow while the process runs, so two
// answers give a rate, and begin at 0 after a restart.
type ServerStatus struct {
	Up       time.Duration // running time; it stands still while the store does not run, and continues after a restart of a durable store
	Durable  bool
	Sessions int64
	Calls    int64 // that wait
	Groups   int64
	Keys     int64   // that calls wait for, those with the longest wait first; at most StatusKeys
	Bytes    int64   // of keys and values
	In, Out  uint64  // bytes from and to clients
	Ops      []int64 // requests that were carried out, by Op
	// Latency is a histogram of the time from a request to its answer in the store, for requests
	// that need no other client. It is collected while a client asks for it.
	Latency    []Bucket
	LatencySum time.Duration // of what Latency counts

	Conns        int64 // connections, those of other protocols included
	Accepted     int64 // connections that were accepted
	Refused      int64 // connections that were refused
	Dropped      int64 // connections that were closed because the client did not read
	LostSessions int64 // sessions that failed
	Watches      int64 // calls that wait for the next change
	History      int64 // changes that a watch can go back
	Compacted    int64 // watches that asked for older changes

	LogBytes int64         // of the log of a durable store since its last checkpoint
	Syncs    []Bucket      // a histogram of the time that a write of the log takes until it is on the disk
	SyncSum  time.Duration // of what Syncs counts
	// SyncPending is for how long the current write of the log has not reached the disk; 0 if there
	// is none. No change is acknowledged meanwhile.
	SyncPending time.Duration
}

// counts returns the numbers behind the latencies, in their order on the wire.
func (s *ServerStatus) counts() [9]*int64 {
	return [...]*int64{&s.Conns, &s.Accepted, &s.Refused, &s.Dropped, &s.LostSessions, &s.Watches, &s.History, &s.Compacted, &s.LogBytes}
}

// Bucket is a range of a histogram that is not empty: durations up to UpTo, and longer than those
// of the bucket before.
type Bucket struct {
	UpTo  time.Duration
	Count int64
}

// GroupStatus is one generation of a group, or a group that forms.
type GroupStatus struct {
	Name, Run  string
	Generation uint64 // 0: it forms
	Size       int
	Present    int            // ranks that have joined, and have neither left nor failed
	Age        time.Duration  // since it was formed, or since the first rank called
	Ended      time.Duration  // how long ago; -1: it has not ended; 0: it has, at an unknown time
	Revoked    *FailureStatus // why it was revoked; nil: it is active
	Open       int            // how many records are open; Records has the oldest
	Ranks      []RankStatus
	Records    []RecordStatus
	Failures   []FailureStatus // of the last records that failed, the oldest first
}

// RankStatus is a rank.
type RankStatus struct {
	Rank     int
	Label    string // names its process
	Session  uint64
	Gone     Code          // CodeLost: failed; CodeLeft: left; CodeOK: present
	Verb     string        // its last call; "": none
	Seq      uint64        // the sequence number of that call; 0 if it has none
	Ago      time.Duration // since that call, or since it joined
	LastSeen time.Duration // since its process was last seen, to 0.2 s; -1: unknown
	Waits    []WaitStatus
}

// WaitStatus is a send or a receive that waits.
type WaitStatus struct {
	Verb   string // "send" or "recv"
	Peer   int    // the other rank
	Tag    string
	Waited time.Duration
}

// RecordStatus is a collective operation that is not decided yet, or "create" or "shrink" of a
// group.
type RecordStatus struct {
	Channel   string
	Seq       uint64
	Verb      string
	Root      int           // -1: none
	Age       time.Duration // since its first vote
	Remaining time.Duration // until its deadline; 0: it has none
	Arrived   Ranks         // ranks that have voted
	Missing   Ranks         // ranks that it waits for
}

// Ranks is a set of ranks: how many there are, and their spans, of which it has StatusSpans at
// most.
type Ranks struct {
	Count int
	Spans []Span // in ascending order
}

// Span is the ranks from First to Last.
type Span struct{ First, Last int }

// Add adds a rank, which must be higher than those before.
func (r *Ranks) Add(rank int) { r.AddSpan(rank, rank) }

// AddSpan adds the ranks from first to last, which must be higher than those before. It adds none
// if last is below first.
func (r *Ranks) AddSpan(first, last int) {
	if last < first {
		return
	}
	r.Count += last - first + 1
	if n := len(r.Spans); n > 0 && r.Spans[n-1].Last == first-1 {
		r.Spans[n-1].Last = last
	} else if n < StatusSpans {
		r.Spans = append(r.Spans, Span{first, last})
	}
}

// First returns the first n ranks, or all if there are fewer.
func (r *Ranks) First(n int) (ranks []int) {
	for _, s := range r.Spans {
		for rank := s.First; rank <= s.Last; rank++ {
			if len(ranks) == n {
				return ranks
			}
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// FailureStatus is a failure, and when it happened.
type FailureStatus struct {
	Channel string
	Seq     uint64
	Verb    string // "": it revoked the group
	Ago     time.Duration
	Failure Failure
	Unnamed int // ranks that were cut from the lists of Failure
}

// KeyStatus is a key that calls wait for.
type KeyStatus struct {
	Key    string
	Calls  int
	Waited time.Duration // by the call that came first
}

// ErrStatus is returned for a status whose rows have no group or no name.
var ErrStatus = errors.New("wire: a row of a status without its group or its name")

// ReplicationStatus is the status of a replicated store: several processes keep it, and one of them
// at a time is the leader.
type ReplicationStatus struct {
	Leading    bool          // the process that answers is the leader
	Leader     string        // address at which the leader serves; "": there is none
	Term       uint64        // 1 for the first leader of the store; a takeover adds 1
	LeadingFor time.Duration // how long the leader has led
	Standbys   []StandbyStatus
}

// StandbyStatus is a process that follows the log of the leader.
type StandbyStatus struct {
	Addr string        // at which it will serve
	Lag  uint64        // entries of the log that were committed, and that it had not applied when it last reported
	Seen time.Duration // since that report
}

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
	return appendDuration(appendDuration(appendBuckets(b, s.Syncs), s.SyncSum), s.SyncPending)
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
