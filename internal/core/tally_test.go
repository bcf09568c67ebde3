package core_test

import (
	"testing"

	"github.com/muster-pg/muster/wire"
)

// tally counts how often schedules have reached each situation: a simulation that never reaches one
// proves nothing about it.
type tally map[string]int

// decided counts a record that was decided with success.
func (t tally) decided(r *record) {
	t["successes: "+r.call.Verb]++
	for rank, v := range r.yes {
		if v != nil && r.ch.g.members[rank].gone != wire.CodeOK {
			t["successes with a rank that is gone"]++
			break
		}
	}
}

func (t tally) add(o tally) {
	for what, n := range o {
		t[what] += n
	}
}

// situations are those that a whole simulation must reach, besides each verb and each failure.
var situations = []string{
	"appends of nothing",
	"attempts failed for several",
	"attempts replaced by a later one",
	"away over two restarts",
	"blocked senders",
	"channels closed by a rank",
	"channels freed",
	"entries with a lease",
	"expired messages",
	"frames dropped of old connections",
	"frames refused of lost sessions",
	"gaps refused",
	"joins repeated",
	"joins with the members",
	"joins without",
	"late mismatches",
	"leases",
	"leases ended by revoke",
	"leases ended by their session",
	"leases ended by their time",
	"losses of several at once",
	"lost after their grace",
	"memberships given back",
	"messages",
	"messages acknowledged",
	"passed votes",
	"phases that do not count",
	"relays ended",
	"repeated votes",
	"repeats answered from memory",
	"reports that repeat",
	"requests for members after a loss",
	"requests for members refused",
	"restarts",
	"restarts from a snapshot",
	"restarts with a lost tail",
	"resumed sessions",
	"roots held",
	"senders notified of space",
	"shrunk groups",
	"skips",
	"successes with a rank that is gone",
	"values popped",
	"values pushed",
	"votes held back by a relay",
	"waits repeated",
}

// check fails a simulation that has not reached every situation.
func (t tally) check(tt *testing.T) {
	tt.Helper()
	all := situations
	for _, code := range []wire.Code{
		wire.CodeLost, wire.CodeLeft, wire.CodeTimeout, wire.CodeCancelled, wire.CodeMismatch, wire.CodeAborted, wire.CodeInvalid, wire.CodeFull,
		wire.CodeSkipped, wire.CodeStalled,
	} {
		all = append(all, "failures: "+code.String())
	}
	for _, verb := range verbs {
		all = append(all, "successes: "+verb)
	}
	for _, what := range all {
		if t[what] == 0 {
			tt.Errorf("no schedule has reached this: %s", what)
		}
	}
}
