package core

import (
	"fmt"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// group is one generation of a group: one set of members that joined together. It exists from the
// moment at which the last of them joined until the last one has left or failed.
//
// A generation is in one of two states. It is active until it is revoked: by a failed member, by
// ranks that call different verbs, or by an abort. A revoked generation never becomes active again:
// each later call of its members gets the same failure, and the members form a new generation
// (shrink or create) with another number. Revocation follows MPI's user-level failure mitigation
// (ULFM, MPI_Comm_revoke).
type group struct {
	key          groupKey
	gen          uint64              // issued once; grows
	members      []member            // by rank
	infos        [][]byte            // by rank: what each process sends the others about itself; never modified
	summary      summary             // of infos
	present      int                 // members that have neither left nor failed
	revoked      *wire.Reply         // what each call gets; nil while g is active
	channels     map[string]*channel // by name: the first one of each, see channel.next
	channelCount int                 // of all names
	tags         map[string]*streams // the streams of sends and receives, by tag
	streamCount  int                 // of all tags
	follows      []*follow
	shrink       *rendezvous   // the rendezvous of the survivors, once one of them has called
	began        Time          // when the last member joined
	revocation   pastFailure   // why and when it was revoked, for the status page
	failures     []pastFailure // of the last operations that failed, the oldest first
}

// member is a rank's slot in a generation. Only calls of its session are accepted: a process that
// restarts gets a new session, and cannot act in the name of the member that it was.
type member struct {
	session uint64    // that joined as this rank
	join    uint64    // id of the call that joined
	label   string    // names the process in errors
	gone    wire.Code // CodeLost: failed; CodeLeft: left; CodeOK: present
	verb    string    // its last call, which errors show
	seq     uint64    // and its sequence number; 0 if it has none
	at      Time      // and when that began
	expired int       // messages to others that expired unread, since it last asked for the count
	claim   claim
	// what it has reported; nil: nothing
	progress *progress
}

// memberOf returns the member in whose name the caller t acts, which c names. If the caller must
// not act in that name it returns nil, and puts the error into rep.
//
// A session that never had a member in a generation gets the error that it gets for a generation
// that does not exist: the existence of a group and its members are visible to its own sessions
// alone.
func (m *Machine) memberOf(t Ticket, c *wire.Contribution, rep *wire.Reply) (*group, *member) {
	g := m.groups[c.Generation]
	m.noop = true
	if g == nil || !g.hasSession(t.Session, c.Rank) {
		refuse(rep, wire.CodeStale, fmt.Sprintf("generation %d has ended, or this session was never a member of it", c.Generation))
		return nil, nil
	}
	if c.Rank < 0 || c.Rank >= len(g.members) {
		refuse(rep, wire.CodeInvalid, fmt.Sprintf("rank %d of %d", c.Rank, len(g.members)))
		return nil, nil
	}
	s := &g.members[c.Rank]
	switch {
	case s.session != t.Session:
		refuse(rep, wire.CodeDenied, fmt.Sprintf("rank %d of generation %d belongs to another session", c.Rank, g.gen))
	case s.gone != wire.CodeOK:
		refuse(rep, wire.CodeClosed, fmt.Sprintf("rank %d is no longer in generation %d", c.Rank, g.gen))
	default:
		m.noop = false
		return g, s
	}
	return nil, nil
}

// hasSession reports whether a session has, or had, a member in g. It looks at rank first, which is
// right in all calls but erroneous ones.
func (g *group) hasSession(session uint64, rank int) bool {
	if rank >= 0 && rank < len(g.members) && g.members[rank].session == session {
		return true
	}
	return slices.ContainsFunc(g.members, func(s member) bool { return s.session == session })
}

// noteCall records the last call of a member, for the errors of ranks that wait for it.
func (s *member) noteCall(m *Machine, verb string, seq uint64) {
	s.verb, s.seq, s.at = m.keep(verb), seq, m.now
}
