package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-pg/muster/pgroup"
)

const (
	clockRounds = 8
	skewSeen    = 100 * time.Millisecond // lines of logs are in the wrong order
	skewHarms   = 30 * time.Second       // certificates and the times of files
)

// reading is what a rank's clock said before and after a barrier, in nanoseconds since 1970.
type reading struct{ Before, After int64 }

// clocks compares the ranks' clocks. A barrier is decided at one moment: no rank's clock said more than that when it came, nor less
// when it left. So for any two of them, what one says more than the other is at least the one's Before without the
// other's After; that of several barriers is the most that is certain.
func (w *ward) clocks(ctx context.Context) error {
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
	var within time.Duration // what may be of the ranks whose clocks are right
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

// ahead bounds what a clock says more than another.
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

// skew says by how much a rank's clock is certainly wrong, or rank 0's.
func (w *ward) skew(rank int, least, most time.Duration) (f Finding, off bool) {
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

func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
