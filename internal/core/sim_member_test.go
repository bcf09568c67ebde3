package core_test

import (
	"slices"
	"strconv"
	"time"

	"github.com/muster-pg/muster/wire"
)

// member is one rank of a plan, as pgroup has it: a handle of the generation that it is in.
type member struct {
	plan *plan
	p    *proc
	rank int // in the plan

	gen   uint64 // 0: in none
	cur   int    // its rank there
	size  int
	tries int
	open  int // lanes and flows that still go on
}

// join enters the roll, or that of the survivors of a generation.
func (mb *member) join(from uint64) {
	w, pl := mb.p.w, mb.plan
	if mb.tries++; mb.tries > 6 {
		mb.finish()
		return
	}
	c := wire.Contribution{
		Group: pl.name, Run: pl.run, Rank: mb.rank, Size: len(pl.procs), Generation: from,
		Label: "pid " + strconv.Itoa(mb.p.id),
	}
	if from != 0 {
		c.Rank = mb.cur
	}
	if w.chance(w.odds.size) {
		c.Size++
	}
	req := wire.Request{Op: wire.OpJoin, Group: c, Value: []byte("member " + strconv.Itoa(c.Rank) + " of session " + strconv.Itoa(int(mb.p.session.id)))}
	cancel := time.Duration(0)
	req.Timeout, cancel = w.patience()
	if req.Timeout == 0 || w.chance(0.5) {
		req.Timeout = w.between(20*time.Millisecond, 200*time.Millisecond)
	}
	session := mb.p.session
	mb.p.call(req, cancel, func(rep *wire.Reply) {
		switch {
		case session != mb.p.session || mb.gen != 0:
		case rep != nil && rep.Code == wire.CodeOK:
			mb.enter(from, &c, rep)
		case rep != nil:
			w.after(w.between(time.Millisecond, 20*time.Millisecond), func() {
				if session == mb.p.session && !mb.p.dead && mb.gen == 0 {
					mb.join(0)
				}
			})
		}
	})
}

// enter is the begin of a generation: every lane of the plan starts.
func (mb *member) enter(from uint64, c *wire.Contribution, rep *wire.Reply) {
	w, pl := mb.p.w, mb.plan
	mb.gen, mb.size, mb.cur = rep.Rev, len(rep.Values), c.Rank
	if from != 0 {
		mb.cur = slices.Index(rep.Nums, int64(c.Rank))
	}
	for _, name := range pl.channels {
		mb.open++
		(&lane{mb: mb, gen: mb.gen, channel: name}).next()
	}
	for _, f := range pl.flows {
		if f.src == mb.cur && f.dst < mb.size {
			mb.open++
			(&outbox{mb: mb, gen: mb.gen, flow: f}).next()
		}
		if f.dst == mb.cur && f.src < mb.size {
			mb.open++
			(&inbox{mb: mb, gen: mb.gen, flow: f}).next()
		}
	}
	if w.chance(0.4) {
		mb.p.call(wire.Request{Op: wire.OpFollow, Group: mb.contribution()}, 0, func(*wire.Reply) {})
	}
	for _, sub := range mb.p.members {
		if sub.plan.parent == pl && sub.gen == 0 {
			sub.plan.run = "sub of generation " + strconv.FormatUint(mb.gen, 10)
			sub.join(0)
		}
	}
}

// in reports whether mb is still in gen, so that what it does there makes sense.
func (mb *member) in(gen uint64) bool { return mb.gen == gen && !mb.p.dead && !mb.p.w.ending }

// lost is what mb does when gen is over.
func (mb *member) lost(gen uint64) {
	if !mb.in(gen) {
		return
	}
	w := mb.p.w
	what := mb.plan.policy
	if w.chance(0.2) {
		what = policy(w.upTo(int(policies)))
	}
	mb.gen, mb.open = 0, 0
	switch what {
	case leave:
		mb.leave(gen, func(*wire.Reply) { mb.finish() })
	case rejoin:
		mb.leave(gen, func(rep *wire.Reply) {
			if rep != nil {
				mb.join(0)
			}
		})
	case shrink:
		mb.join(gen)
	}
}

func (mb *member) leave(gen uint64, done func(*wire.Reply)) {
	c := mb.contribution()
	c.Generation = gen
	mb.p.call(wire.Request{Op: wire.OpLeave, Group: c}, 0, done)
}

// abort ends the group for all, in the words of one.
func (mb *member) abort() {
	c := mb.contribution()
	c.No, c.Reason = wire.CodeAborted, "rank "+strconv.Itoa(mb.cur)+" has had enough"
	mb.p.call(wire.Request{Op: wire.OpLeave, Group: c}, 0, func(*wire.Reply) {})
}

// laneDone is the end of one thing that mb does in gen; after the last it goes, or stays.
func (mb *member) laneDone(gen uint64) {
	if !mb.in(gen) {
		return
	}
	if mb.open--; mb.open > 0 {
		return
	}
	w := mb.p.w
	switch {
	case w.chance(0.35):
		mb.gen = 0
		mb.leave(gen, func(*wire.Reply) { mb.finish() })
	case w.chance(0.1):
		mb.gen = 0
		mb.join(gen)
	default:
		mb.finish()
	}
}

// finish is the end of what mb has to do. A process that has nothing more to do may say goodbye.
func (mb *member) finish() {
	p := mb.p
	if p.finished++; p.finished == len(p.members) && p.w.chance(0.4) {
		p.goodbye()
	}
}
