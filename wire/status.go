package wire

import (
	"fmt"
	"slices"
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
	// Groups are the groups that form, then the active ones, then those that ended with a failure,
	// each in the order in which they began.
	Groups []GroupStatus
	Keys   []KeyStatus // keys that calls wait for, the longest wait first; at most StatusKeys
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
	// time that the store has run; a durable store continues it after a restart
	Up       time.Duration
	Durable  bool
	Sessions int64
	Calls    int64 // number of calls that wait
	Groups   int64
	Keys     int64   // number of keys that calls wait for
	Bytes    int64   // of keys and values
	In, Out  uint64  // bytes from and to clients
	Ops      []int64 // number of requests that were carried out, by Op
	// Latency is a histogram of the time from a request to its answer in the store, for requests
	// that need no other client. It is collected while a client asks for it.
	Latency    []Bucket
	LatencySum time.Duration // sum of the times that Latency counts

	Conns        int64 // connections, those of other protocols included
	Accepted     int64 // connections that were accepted
	Refused      int64 // connections that were refused
	Dropped      int64 // connections that were closed because the client did not read
	LostSessions int64 // sessions that failed
	Watches      int64 // calls that wait for the next change
	History      int64 // number of changes that a watch can go back
	Compacted    int64 // number of watches that asked for older changes

	LogBytes int64         // size of a durable store's log since its last checkpoint
	Syncs    []Bucket      // a histogram of the time until a write of the log is on the disk
	SyncSum  time.Duration // sum of the times that Syncs counts
	// SyncPending is how long the current write of the log has been waiting for the disk, or 0 if
	// no write is in progress. No change is acknowledged meanwhile.
	SyncPending time.Duration
	// Loop is how the server reads its sockets: "io_uring" or "epoll"; "" if it has read none, or
	// reads each in a separate goroutine.
	Loop string
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
	Generation uint64 // 0: the group forms
	Size       int
	AtLeast    bool          // of a group with a Protocol: it may have more ranks than Size
	Present    int           // ranks that have joined, and have neither left nor failed
	Age        time.Duration // since it was formed, or since the first rank called
	// time since its end; -1: it has not ended; 0: it has ended at an unknown time
	Ended    time.Duration
	Revoked  *FailureStatus // why it was revoked; nil: it is active
	Open     int            // number of open records; Records has the oldest
	Protocol string         // "torch": package status has made it of a PyTorch job; stores send ""
	Notes    []string       // what else is known of such a job
	Ranks    []RankStatus
	Records  []RecordStatus
	Failures []FailureStatus // the last records that failed, the oldest first
}

// RankStatus is a rank.
type RankStatus struct {
	Rank     int
	Label    string // name of its process
	Session  uint64
	Gone     Code          // CodeLost: failed; CodeLeft: left; CodeOK: present
	Verb     string        // its last call; "": none
	Seq      uint64        // the sequence number of that call; 0 if it has none
	Ago      time.Duration // time since that call, or since it joined
	LastSeen time.Duration // time since its process was last seen, to 0.2 s; -1: unknown
	Doing    string        // of a group with a Protocol: what its process does
	Server   string        // likewise: the address of its debug server; "": it has none
	Waits    []WaitStatus
	Progress *Phase // as it has reported, and Ago until now; nil: it has reported none. Its ID is 0 between phases.
}

// LastCall describes the last call of a rank that the store knows: verb, with its sequence number or
// 0. Other ranks wait for it in operation awaited, or 0. Ranks that share memory decide operations in
// it, of which the store sees none: a rank more than one operation behind may have done those.
func LastCall(verb string, seq, awaited uint64) string {
	switch {
	case seq == 0:
		return "its last was " + verb
	case awaited > seq+1:
		return fmt.Sprintf("its last at the store was %s #%d (the store does not see those in shared memory)", verb, seq)
	}
	return fmt.Sprintf("its last was %s #%d", verb, seq)
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
	Remaining time.Duration // time until its deadline; 0: it has none
	Arrived   Ranks         // ranks that have voted
	Missing   Ranks         // ranks that have not voted
}

// Ranks is a set of ranks: their number, and at most StatusSpans of their spans.
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

// Has reports whether rank is one of them.
func (r *Ranks) Has(rank int) bool {
	return slices.ContainsFunc(r.Spans, func(s Span) bool { return s.First <= rank && rank <= s.Last })
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
	Verb    string // "": the failure revoked the group
	Ago     time.Duration
	Failure Failure
	Unnamed int // number of ranks that were cut from the lists of Failure
}

// KeyStatus is a key that calls wait for.
type KeyStatus struct {
	Key    string
	Calls  int
	Waited time.Duration // how long the first of the calls has waited
	By     []string      // who calls, as far as package status knows it; stores send none
}

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
	Addr string        // address at which it will serve
	Lag  uint64        // committed entries of the log that it had not applied when it last reported
	Seen time.Duration // time since that report
}
