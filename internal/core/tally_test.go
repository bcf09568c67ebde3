package core_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-pg/muster/wire"
)

// tally counts the situations that schedules have met: a simulation that never reaches one proves
// nothing about it.
type tally struct {
	schedules, steps  int
	groups, shrunk    int
	revoked           int
	yes               int
	no                [wire.CodeSkipped + 1]int
	verbs             map[string]int // decided with success
	lateMismatch      int
	repeated, stale   int
	held              int // steps in which a root waited for space
	stood             int // successes with a yes of a rank that is gone
	messages, expired int
	// senders that were refused for lack of space, and that were notified of space
	blocked, rooms int

	resumed, lostAfterGrace, rejoined int
	// relays that ended; votes that a relay held back; sessions that failed together with a relay
	relays, heldBack, lostTogether int
	// waiting calls that came again; numbered requests that did; cancelled ones; numbers that are
	// not the next
	again, repeats, skips, gaps int
	dropped, late               int // frames of old connections, and of failed sessions
	restored                    int // restarts from a snapshot
	restarts, tails             int // restarts of servers; those that had lost log entries
	takes, leases, leased       int
	leasesByTTL, leasesRevoked  int
	leasesBySession             int
	empty                       int // appends of an empty value
	pushed, popped              int

	// attempts that failed for several ranks; requests and ranks replaced by a later attempt;
	// memberships released by a cancel
	failedTogether, superseded, released int
	// sessions that have not been resumed between two restarts
	awayTwice int
	// channels that a rank closed; that were freed; acknowledgements of messages
	closed, freed, acked int
	// groups whose joins had the members, and had not; requests for members that were refused; those
	// of a group that was revoked, or had lost ranks
	inline, large, membersRefused, membersAfter int
}

// formed counts a group.
func (t *tally) formed(inline bool) {
	if inline {
		t.inline++
	} else {
		t.large++
	}
}

// run counts a record that was decided with success.
func (t *tally) run(r *record) {
	if t.verbs == nil {
		t.verbs = map[string]int{}
	}
	t.verbs[r.call.Verb]++
	for rank, v := range r.yes {
		if v != nil && r.ch.g.members[rank].gone != wire.CodeOK {
			t.stood++
			break
		}
	}
}

func (t *tally) add(o *tally) {
	t.schedules++
	t.steps += o.steps
	t.groups += o.groups
	t.shrunk += o.shrunk
	t.revoked += o.revoked
	t.yes += o.yes
	for code, n := range o.no {
		t.no[code] += n
	}
	if t.verbs == nil {
		t.verbs = map[string]int{}
	}
	for verb, n := range o.verbs {
		t.verbs[verb] += n
	}
	t.lateMismatch += o.lateMismatch
	t.repeated += o.repeated
	t.stale += o.stale
	t.held += o.held
	t.stood += o.stood
	t.messages += o.messages
	t.expired += o.expired
	t.blocked += o.blocked
	for i, n := range o.sessions() {
		*t.sessions()[i] += *n
	}
}

// sessions returns the counts of session events.
func (t *tally) sessions() []*int {
	return []*int{
		&t.rooms, &t.resumed, &t.lostAfterGrace, &t.rejoined, &t.again, &t.repeats, &t.skips, &t.gaps, &t.dropped, &t.late,
		&t.restarts, &t.tails, &t.restored, &t.takes, &t.leases, &t.leased, &t.leasesByTTL, &t.leasesRevoked, &t.leasesBySession,
		&t.relays, &t.heldBack, &t.lostTogether, &t.empty, &t.pushed, &t.popped, &t.failedTogether, &t.superseded, &t.released, &t.awayTwice,
		&t.closed, &t.freed, &t.acked, &t.inline, &t.large, &t.membersRefused, &t.membersAfter,
	}
}

var sessionCounts = []string{
	"resumed with space", "resumed", "lost after their grace", "joins repeated", "waits repeated", "repeats answered from memory", "skips", "gaps refused",
	"frames dropped of old connections", "frames refused of lost sessions", "restarts", "with a lost tail", "from a snapshot", "takes", "leases", "entries with a lease",
	"leases ended by their time", "by revoke", "by their session", "relays ended", "votes held back", "losses of several at once", "appends of nothing", "values pushed", "values popped",
	"attempts failed for several", "replaced by a later try", "memberships given back", "away over two restarts",
	"channels closed by a rank", "channels freed", "messages acknowledged",
	"joins with the members", "joins without", "requests for members refused", "requests for members after a loss",
}

func (t *tally) String() string {
	no := map[string]int{}
	for code, n := range t.no {
		if n > 0 {
			no[wire.Code(code).String()] = n
		}
	}
	var more strings.Builder
	for i, n := range t.sessions() {
		fmt.Fprintf(&more, "; %s: %d", sessionCounts[i], *n)
	}
	return fmt.Sprintf("%d schedules of %d steps; %d groups, %d of them shrunk, %d revoked; received success: %d, of failure: %v; decided with success: %v; "+
		"late mismatches %d, repeated votes %d, passed votes %d, roots held in %d steps, successes with a rank that is gone %d; messages %d, expired %d, no room %d",
		t.schedules, t.steps, t.groups, t.shrunk, t.revoked, t.yes, no, t.verbs,
		t.lateMismatch, t.repeated, t.stale, t.held, t.stood, t.messages, t.expired, t.blocked) + more.String()
}

// check fails a simulation that has not met every situation.
func (t *tally) check(tt *testing.T) {
	tt.Helper()
	met := map[string]int{
		"shrunk groups": t.shrunk, "late mismatches": t.lateMismatch, "repeated votes": t.repeated, "passed votes": t.stale, "roots held": t.held,
		"yes that stand": t.stood, "messages": t.messages, "expired messages": t.expired, "blocked senders": t.blocked,
	}
	for _, code := range []wire.Code{
		wire.CodeLost, wire.CodeLeft, wire.CodeTimeout, wire.CodeCancelled, wire.CodeMismatch, wire.CodeAborted, wire.CodeInvalid, wire.CodeFull,
		wire.CodeSkipped,
	} {
		met["failures: "+code.String()] = t.no[code]
	}
	for _, verb := range verbs {
		met["successes: "+verb] = t.verbs[verb]
	}
	for i, n := range t.sessions() {
		met[sessionCounts[i]] = *n
	}
	for what, n := range met {
		if n == 0 {
			tt.Errorf("no schedule has met this: %s", what)
		}
	}
}
