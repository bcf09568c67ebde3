package pgroup

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/wire"
)

const (
	// lookEvery is how often a rank looks at its phases.
	lookEvery = 250 * time.Millisecond
	// minStall is the least Config.Stall: the time of two reports.
	minStall = 2 * time.Second
)

// Phase is a part of this rank's work that others may have to wait for, such as loading or
// compiling. It is safe for concurrent use. Of several that have not ended, the one that has begun or
// made progress last counts.
type Phase struct {
	r     *reporter
	phase wire.Phase // without Done
	done  atomic.Int64
	seen  int64 // done at the last look; protected by reporter.mu
}

// Phase begins a phase of this rank: viewers such as "muster who" show its name and progress, and
// errors of ranks that wait for this one have them. It ends with [Phase.End], and may be inside of
// another one, which is current again then. The name has at most 128 bytes, longer ones are cut. total
// is the number of units of the work, or 0 if it is unknown.
//
// In a group with a Config.Stall, a rank that has begun a phase must go on to make progress, until the
// group is closed: Done of more units, a collective operation, or another phase; phases that begin and
// end count 16 times in one operation that others wait in, so a loop needs one phase with a total.
//
// The phases of a group are those of its channels too, and of the groups that Sub, Split and Shrink
// make of it. A goroutine for each, which the first phase starts and Close ends, reports them to the
// store: at once, and then at most once a second, or once in 2n ms in a group of n ranks.
func (g *Group) Phase(name string, total int64) *Phase {
	return g.PhaseWithStall(name, total, 0)
}

// PhaseWithStall is Phase for one that may make no progress for a time, as a compilation does: this
// rank has stalled when it has made none for stall, if that is longer than Config.Stall.
func (g *Group) PhaseWithStall(name string, total int64, stall time.Duration) *Phase {
	r := g.reports
	p := &Phase{r: r, phase: wire.Phase{Name: clip(name, wire.MaxPhase), Total: max(total, 0), Stall: max(stall, 0)}}
	r.mu.Lock()
	r.last++
	p.phase.ID = r.last
	r.open = append(r.open, p)
	in := slices.Clone(r.in)
	r.mu.Unlock()
	for _, s := range in {
		s.report()
	}
	return p
}

// Done says that done units of the phase are complete. It costs no more than an atomic store.
func (p *Phase) Done(done int64) { p.done.Store(done) }

// End ends the phase. A second End does nothing.
func (p *Phase) End() {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.open = slices.DeleteFunc(p.r.open, func(x *Phase) bool { return x == p })
}

// reporter has the phases of a rank: those of a group, and of the groups that were made of it.
type reporter struct {
	mu   sync.Mutex
	in   []*membership // in which it reports them, in a goroutine of each
	last uint64        // ID of a phase
	open []*Phase      // the current one is the last: it has begun, or made progress, after the others
}

// enter makes r report in s, too.
func (r *reporter) enter(s *membership) {
	r.mu.Lock()
	r.in = append(r.in, s)
	used := r.last > 0
	r.mu.Unlock()
	if used {
		s.report()
	}
}

// leave undoes enter.
func (r *reporter) leave(s *membership) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.in = slices.DeleteFunc(r.in, func(x *membership) bool { return x == s })
}

// current returns what is to be reported. A phase that makes progress becomes the current one, unless
// that does too: one in the background must not hide the work of another.
func (r *reporter) current() wire.Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.open) == 0 {
		return wire.Phase{}
	}
	moved := len(r.open) - 1
	for i, p := range r.open {
		if done := p.done.Load(); done != p.seen {
			p.seen, moved = done, i
		}
	}
	p := r.open[moved]
	r.open = append(slices.Delete(r.open, moved, moved+1), p)
	now := p.phase
	now.Done = max(p.done.Load(), 0)
	return now
}

// report begins to report the phases. A report that fails is made again.
func (s *membership) report() {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.stopReports != nil || s.hasClosed() {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stopReports = stop
	s.wg.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		var seen, sent wire.Phase
		var progress, report time.Time // the last ones
		for {
			if now := s.reports.current(); now != seen {
				seen, progress = now, time.Now()
			}
			if seen != sent && time.Since(report) > wire.ReportInterval(s.size)-lookEvery/2 { // looks are not exact
				report = time.Now()
				news := seen
				news.Ago = report.Sub(progress)
				bounded, cancel := context.WithTimeout(ctx, time.Second)
				if err := s.store.Progress(bounded, s.request(), news); err == nil {
					sent = seen
				}
				cancel()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}
