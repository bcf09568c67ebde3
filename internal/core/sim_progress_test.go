package core_test

import (
	"time"

	"github.com/muster-pg/muster/wire"
)

// reporter reports the progress of a member, again and again. Its reports are repeats, progress,
// and changes of the phase.
type reporter struct {
	mb    *member
	gen   uint64
	phase wire.Phase
	count int
	// it changes its phase all the time
	restless bool
}

func (r *reporter) next() {
	w := r.mb.p.w
	w.after(w.between(0, 6*time.Millisecond), func() {
		if r.count++; !r.mb.in(r.gen) || r.count > 60 {
			return
		}
		r.changePhase()
		c := r.mb.contribution()
		if w.chance(w.odds.rogue) {
			c.Rank = w.upTo(r.mb.size+2) - 1
		}
		r.mb.p.call(wire.Request{Op: wire.OpProgress, Group: c, Phase: r.phase}, 0, func(*wire.Reply) {})
		if w.chance(0.95) { // the others hang
			r.next()
		}
	})
}

func (r *reporter) changePhase() {
	w, f := r.mb.p.w, &r.phase
	kind := w.upTo(8)
	if r.restless {
		kind = 0
	}
	switch kind {
	case 0:
		*f = wire.Phase{ID: f.ID + 1, Name: "phase", Total: int64(w.upTo(3))}
		if w.chance(0.3) {
			f.Stall = w.between(1, 30*time.Millisecond)
		}
	case 1:
		f.ID = max(f.ID, 1) - 1
		if f.ID == 0 {
			*f = wire.Phase{}
		}
	case 2:
		f.Done = max(0, f.Done-1)
	case 3, 4:
		f.Done += int64(w.upTo(3))
	}
	f.Ago = w.between(0, 5*time.Millisecond)
}
