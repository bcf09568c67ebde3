package core_test

import (
	"encoding/binary"
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

	gen   uint64 // 0 means none
	cur   int    // its rank in that generation
	size  int
	tries int
	open  int // sequences and flows that are not done

	claim   []byte // proves its claim to the rank; kept while the outcome of a Join is not known
	try     uint64
	unknown bool
}

// join joins the rendezvous of the group, or that of the survivors of a generation.
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
	req := wire.Request{Op: wire.OpJoin, Group: c, Value: mb.info(c.Rank)}
	cancel := time.Duration(0)
	req.Timeout, cancel = w.timeouts()
	if req.Timeout == 0 || w.chance(0.5) {
		req.Timeout = w.between(20*time.Millisecond, 200*time.Millisecond)
	}
	if !mb.unknown {
		mb.claim, mb.try = binary.LittleEndian.AppendUint64(nil, w.rng.Uint64()), 0
	}
	mb.try++
	mb.unknown = true
	req.Claim, req.Attempt = mb.claim, mb.try
	session, try := mb.p.session, mb.try
	var cl *call
	cl = mb.p.call(req, cancel, func(rep *wire.Reply) {
		known := rep != nil && try == mb.try
		if known {
			mb.unknown = false
		}
		switch {
		case session != mb.p.session || mb.gen != 0 || rep != nil && !known:
		// the answer came too late, and the cancel may have undone it
		case rep != nil && rep.Code == wire.CodeOK && cl.withdrawn:
			c.Generation, c.Size = rep.Rev, 0
			if from != 0 {
				c.Rank = int(rep.N) - 1
			}
			mb.p.call(wire.Request{Op: wire.OpLeave, Group: c}, 0, func(*wire.Reply) { mb.finish() })
		case rep != nil && rep.Code == wire.CodeOK:
			mb.enter(&c, rep)
		default:
			w.after(w.between(time.Millisecond, 20*time.Millisecond), func() {
				if session == mb.p.session && !mb.p.dead && mb.gen == 0 {
					mb.join(0)
				}
			})
		}
	})
}

// info is what mb says of itself when it joins as rank. Its processes are on two nodes.
func (mb *member) info(rank int) []byte {
	return wire.AppendMember(nil, &wire.Member{
		Node: uint64(mb.p.id % 2), Hosts: mb.p.local, Host: "member " + strconv.Itoa(rank) + " of session " + strconv.Itoa(int(mb.p.session.id)),
	})
}

// askMembers asks for members of gen, some of which may not exist.
func (mb *member) askMembers(gen uint64) {
	c := mb.contribution()
	c.Generation = gen
	mb.p.call(wire.Request{Op: wire.OpMembers, Group: c, First: int64(mb.p.w.upTo(mb.size+3) - 1), Count: uint64(mb.p.w.upTo(3))}, 0, func(*wire.Reply) {})
}

// enter begins a generation: every sequence of the plan starts.
func (mb *member) enter(c *wire.Contribution, rep *wire.Reply) {
	w, pl := mb.p.w, mb.plan
	mb.gen, mb.size, mb.cur = rep.Rev, int(rep.Nums[0]), c.Rank
	if rep.N != 0 {
		mb.cur = int(rep.N) - 1
	}
	if w.chance(0.3) {
		mb.askMembers(mb.gen)
	}
	names := slices.Clone(pl.channels)
	for _, f := range pl.flows {
		if !slices.Contains(names, f.tag) {
			names = append(names, f.tag)
		}
	}
	for _, name := range names {
		mb.open++
		(&use{mb: mb, gen: mb.gen, channel: name}).begin()
	}
	if w.chance(0.4) {
		mb.p.call(wire.Request{Op: wire.OpFollow, Group: mb.contribution()}, 0, func(*wire.Reply) {})
	}
	if w.chance(w.odds.report) {
		(&reporter{mb: mb, gen: mb.gen, restless: w.chance(0.1)}).next()
	}
	for _, sub := range mb.p.members {
		if sub.plan.parent == pl && sub.gen == 0 {
			sub.plan.run = "sub of generation " + strconv.FormatUint(mb.gen, 10)
			sub.join(0)
		}
	}
}

// use is one rank's use of a channel, with its verbs and messages.
type use struct {
	mb      *member
	gen     uint64
	channel string
	nth     int // of its name
	open    int // sequences and flows that are not done
	ended   bool
}

func (u *use) begin() {
	mb := u.mb
	u.open = 1
	if slices.Contains(mb.plan.channels, u.channel) {
		u.open++
		(&sequence{mb: mb, gen: u.gen, channel: u.channel, use: u}).next()
	}
	for _, f := range mb.plan.flows {
		if f.tag == u.channel && f.src == mb.cur && f.dst < mb.size {
			u.open++
			(&outbox{mb: mb, gen: u.gen, use: u, flow: f}).next()
		}
		if f.tag == u.channel && f.dst == mb.cur && f.src < mb.size {
			u.open++
			(&inbox{mb: mb, gen: u.gen, use: u, flow: f}).next()
		}
	}
	u.done()
}

// done ends one sequence or flow; after the last the channel is closed, or stays open.
func (u *use) done() {
	if u.open--; u.open > 0 || u.ended || !u.mb.in(u.gen) {
		return
	}
	if u.mb.p.w.chance(0.5) {
		u.close()
		return
	}
	u.ended = true
	u.mb.sequenceDone(u.gen)
}

// close closes the channel, and may use it again. Calls of this use that are still under way then
// reach the next use, as those of a careless program do.
func (u *use) close() {
	mb := u.mb
	if u.ended || !mb.in(u.gen) {
		return
	}
	u.ended = true
	c := mb.contribution()
	c.Channel = u.channel
	again := func() {
		if u.nth < 2 && mb.in(u.gen) && mb.p.w.chance(0.7) {
			(&use{mb: mb, gen: u.gen, channel: u.channel, nth: u.nth + 1}).begin()
			return
		}
		mb.sequenceDone(u.gen)
	}
	if mb.p.w.chance(0.5) { // does not wait for the answer
		mb.p.call(wire.Request{Op: wire.OpCloseChannel, Group: c}, 0, func(*wire.Reply) {})
		again()
		return
	}
	mb.p.call(wire.Request{Op: wire.OpCloseChannel, Group: c}, 0, func(*wire.Reply) { again() })
}

// in reports whether mb is still in gen, so that its calls there make sense.
func (mb *member) in(gen uint64) bool { return mb.gen == gen && !mb.p.dead && !mb.p.w.ending }

// lost does what mb does when gen is closed.
func (mb *member) lost(gen uint64) {
	if !mb.in(gen) {
		return
	}
	w := mb.p.w
	if w.chance(0.2) {
		mb.askMembers(gen)
	}
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
	if mb.p.w.chance(0.2) {
		mb.askMembers(gen)
	}
}

// abort ends the group for all ranks, with this rank's message.
func (mb *member) abort() {
	c := mb.contribution()
	c.No, c.Reason = wire.CodeAborted, "rank "+strconv.Itoa(mb.cur)+" has had enough"
	if mb.p.w.chance(0.3) {
		c.No = wire.CodeMismatch
	}
	mb.p.call(wire.Request{Op: wire.OpLeave, Group: c}, 0, func(*wire.Reply) {})
}

// sequenceDone ends one sequence or flow of mb in gen; after the last mb leaves, or stays.
func (mb *member) sequenceDone(gen uint64) {
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

// finish ends the work of mb. A process without any work left may close its session.
func (mb *member) finish() {
	p := mb.p
	if p.finished++; p.finished == len(p.members) && p.w.chance(0.4) {
		p.goodbye()
	}
}
