package relay

import (
	"strings"
	"time"

	"github.com/muster-pg/muster/wire"
)

const (
	// voteDelay is how long a vote is held for others of the same record.
	voteDelay = 2 * time.Millisecond
	// largeVote is the size from which on a vote is not held, and maxHeldBytes bounds the held
	// votes of a record.
	largeVote    = 64 << 10
	maxHeldBytes = 1 << 20
	// maxPending bounds the records for which votes are counted.
	maxPending = 1024
)

// member is a rank of a generation.
type member struct {
	generation uint64
	rank       int
}

func memberOf(c *wire.Contribution) member { return member{c.Generation, c.Rank} }

// recordID identifies a record, of which a relay sees some votes.
type recordID struct {
	generation, seq uint64
	channel         string
}

func recordIDOf(c *wire.Contribution) recordID { return recordID{c.Generation, c.Seq, c.Channel} }

// heldVotes are the held votes for one record, all with the same verb, type, root, label and
// reduction.
type heldVotes struct {
	vote     wire.Contribution
	votes    []byte
	n        int
	sent     int       // votes that were sent to the store
	branches []*Branch // with held votes
}

// newHeldVotes starts to hold votes of a record. If there are too many records, those without held
// votes are dropped, which only delays later votes. The caller holds mu.
func (m *Mux) newHeldVotes(c *wire.Contribution) *heldVotes {
	if len(m.pending) >= maxPending {
		for of, v := range m.pending {
			if v.n == 0 {
				delete(m.pending, of)
			}
		}
	}
	v := &heldVotes{vote: cloneVote(c)}
	m.pending[recordIDOf(&v.vote)] = v
	return v
}

// cloneVote returns a copy of c with its strings.
func cloneVote(c *wire.Contribution) wire.Contribution {
	own := *c
	for _, s := range []*string{&own.Channel, &own.Verb, &own.Type, &own.Label} {
		*s = strings.Clone(*s)
	}
	return own
}

// matches reports whether c can be merged with the votes of v, which share all fields that are not
// per vote.
func (v *heldVotes) matches(c *wire.Contribution) bool {
	d := &v.vote
	return c.Verb == d.Verb && c.Type == d.Type && c.Label == d.Label && c.Root == d.Root && c.RootOnly == d.RootOnly && c.Reduction == d.Reduction && c.Stall == d.Stall
}

// Vote holds the vote in req, to be sent with others. It returns false if the vote must not be held:
// a failure, or the vote of a root that decides alone, because other ranks wait for it.
//
// The votes of a record are sent when all members here have voted, when they are too many or too
// large, after voteDelay, or before another frame of one of the branches, so that the frames of a
// branch keep their order. The relay only merges frames: the store still gets each vote with its
// rank and call, decides the record, and answers each call.
func (b *Branch) Vote(req *wire.Request) bool {
	c := &req.Group
	if c.No != wire.CodeOK || c.RootOnly && c.Rank == c.Root || len(req.Value) > largeVote {
		return false
	}
	m := b.mux
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := memberOf(c); !has(b.members, s) {
		b.members[s] = struct{}{}
		m.members[s.generation]++
	}
	of := recordIDOf(c)
	v := m.pending[of]
	switch {
	case v == nil:
		v = m.newHeldVotes(c)
	case !v.matches(c): // a rank that sets no type, for example
		m.sendVotes(v)
		v.vote = cloneVote(c)
	}
	if b.votes != v {
		m.sendVotes(b.votes)
		b.votes = v
		v.branches = append(v.branches, b)
	}
	v.votes = wire.AppendVote(v.votes, &wire.Vote{
		RelayCall: wire.RelayCall{Conn: b.number, ID: req.ID}, Rank: c.Rank, Want: c.Want, Timeout: req.Timeout, Value: req.Value,
	})
	v.n++
	switch {
	case v.sent+v.n >= m.members[c.Generation]:
		m.sendVotes(v)
		delete(m.pending, of)
	case v.n == wire.MaxVotes || len(v.votes) > maxHeldBytes:
		m.sendVotes(v)
	default:
		m.startTimer()
	}
	return true
}

// sendVotes sends the held votes of a record. The caller holds mu.
func (m *Mux) sendVotes(v *heldVotes) {
	if v == nil || v.n == 0 {
		return
	}
	m.out.Append(func(to []byte) []byte { return wire.AppendVotes(to, &v.vote, v.n, v.votes) })
	v.sent += v.n
	for _, b := range v.branches {
		b.votes = nil
	}
	v.n, v.votes, v.branches = 0, v.votes[:0], v.branches[:0]
}

// Left records that the member of c, which voted here, has left: its votes are no longer expected.
func (b *Branch) Left(c *wire.Contribution) {
	b.mux.mu.Lock()
	defer b.mux.mu.Unlock()
	b.removeMember(memberOf(c))
}

// removeMember expects no more votes of a member. The caller holds mu.
func (b *Branch) removeMember(s member) {
	if !has(b.members, s) {
		return
	}
	delete(b.members, s)
	m := b.mux
	if m.members[s.generation]--; m.members[s.generation] == 0 {
		delete(m.members, s.generation)
	}
}

func has[K comparable](set map[K]struct{}, k K) bool {
	_, ok := set[k]
	return ok
}
