package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-pg/muster/pgroup"
)

const (
	clockRounds = 8
	skewSeen    = 100 * time.Millisecond // lines of logs may be in the wrong order
	skewHarms   = 30 * time.Second       // affects certificates and the times of files
)

// reading is a rank's clock before and after a barrier, in nanoseconds since 1970.
type reading struct{ Before, After int64 }

// clocks compares the clocks of the ranks. All ranks are inside a barrier at the moment when it is
// decided, so each clock shows a time between the rank's Before and After at that moment. So clock
// a is ahead of clock b by at least a.Before - b.After, and by at most a.After - b.Before. Several
// barriers narrow these bounds.
func (w *groupCheck) clocks(ctx context.Context) error {
	mine := make([]reading, clockRounds)
	for i := range mine {
		mine[i].Before = w.System.Now().UnixNano()
		if err := w.group.Barrier(ctx); err != nil {
			return err
		}
		mine[i].After = w.System.Now().UnixNano()
	}
	all, err := pgroup.Gather(ctx, w.group, 0, mine)
	if err != nil || w.group.Rank() != 0 {
		return err
	}
	var within time.Duration // largest possible difference among the clocks that agree
	for rank, theirs := range all[1:] {
		least, most := ahead(theirs, all[0])
		if f, off := w.skew(rank+1, least, most); off {
			w.say("clocks", f)
		} else {
			within = max(within, most, -least)
		}
	}
	if len(w.all) == 0 || w.all[len(w.all)-1].Check != "clocks" {
		w.say("clocks", ok("all clocks agree, within %s", round(within)))
	}
	return nil
}

// ahead returns bounds of how far one clock is ahead of another.
func ahead(theirs, mine []reading) (least, most time.Duration) {
	for i := range min(len(theirs), len(mine)) {
		lo, hi := time.Duration(theirs[i].Before-mine[i].After), time.Duration(theirs[i].After-mine[i].Before)
		if i == 0 {
			least, most = lo, hi
		}
		least, most = max(least, lo), min(most, hi)
	}
	return least, most
}

// skew returns a finding if the clock of a rank is certainly wrong compared with that of rank 0.
func (w *groupCheck) skew(rank int, least, most time.Duration) (f Finding, off bool) {
	by, way := least, "ahead of"
	if most < 0 {
		by, way = -most, "behind"
	}
	if by < skewSeen {
		return f, false
	}
	text := fmt.Sprintf("the clock of rank %d (%s) is at least %s %s that of rank 0 (%s)", rank, w.members[rank].Host, round(by), way, w.members[0].Host)
	do := "let both hosts keep time by NTP: chronyc tracking, timedatectl"
	if by >= skewHarms {
		return problem(text, do+"; certificates fail, and files seem to be from the future"), true
	}
	return warning(text, do+"; lines of logs and traces are in the wrong order, groups do not mind"), true
}

// round drops what is below the noise of a network.
func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
