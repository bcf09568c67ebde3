package core_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// odds are the probabilities of faults in a schedule.
type odds struct {
	spike time.Duration // the longest latency

	die, cut, again      float64 // of a process; again: it connects again
	kill, tardy          float64 // of the server; tardy: its timer is late
	late, hurry, cancel  float64 // of a call: it comes late, has a short deadline, is cancelled
	no, disagree, absurd float64 // of a vote
	// of a sequence number: it is skipped, voted for again, voted for after it is passed
	skip, repeat, stale float64
	hasty               float64 // the next call does not wait for the answer
	// a call in another rank's name; a rank aborts its group, or leaves early
	rogue, abort, leave float64
	size                float64 // of a join: another world size
	keys                float64 // of a process: it also uses keys
	// of a vote: it has a stall; of a member: it reports its progress
	stall, report float64
}

// drawOdds draws the odds: a quarter of all schedules has no faults, the others have some kinds of
// them.
func (w *world) drawOdds() odds {
	o := odds{spike: w.between(5*time.Millisecond, 60*time.Millisecond), again: 0.9, keys: 0.4}
	if w.chance(0.25) {
		return o
	}
	for _, p := range []struct {
		odds *float64
		most float64
	}{
		{&o.die, 0.5},
		{&o.cut, 0.8},
		{&o.kill, 1.5},
		{&o.tardy, 1},
		{&o.late, 0.2},
		{&o.hurry, 0.3},
		{&o.cancel, 0.2},
		{&o.no, 0.1},
		{&o.disagree, 0.05},
		{&o.absurd, 0.05},
		{&o.skip, 0.05},
		{&o.repeat, 0.3},
		{&o.stale, 0.3},
		{&o.hasty, 0.2},
		{&o.rogue, 0.2},
		{&o.abort, 0.03},
		{&o.leave, 0.05},
		{&o.size, 0.1},
		{&o.stall, 1},
		{&o.report, 2},
	} {
		if w.chance(0.35) {
			*p.odds = p.most * w.rng.Float64()
		}
	}
	return o
}

// begin makes the processes and their work.
func (w *world) begin() {
	w.odds = w.drawOdds()
	w.drawBounds()
	w.drawServer()
	n := 2 + w.upTo(4)
	local := !w.durable && w.chance(0.3)
	for i := range n {
		w.procs = append(w.procs, &proc{w: w, id: i, local: local && i == 0})
	}
	w.makeRelays()
	w.makePlans()
	for _, p := range w.procs {
		p.start()
	}
}

// drawServer draws the kind of the server, and the times at which it is killed.
func (w *world) drawServer() {
	if w.chance(0.8) {
		w.grace = w.between(5*time.Millisecond, 25*time.Millisecond)
	}
	w.durable = w.chance(0.6)
	if w.durable && w.chance(0.5) {
		w.checkpoints()
		w.odds.keys, w.odds.kill = 0.8, max(w.odds.kill, 0.5)
	}
	for w.durable && w.chance(w.odds.kill) {
		w.after(w.between(time.Millisecond, 60*time.Millisecond), w.kill)
		w.odds.kill /= 2
	}
}

func (w *world) drawBounds() {
	var b core.Bounds
	if w.chance(0.5) {
		b = core.Bounds{AheadRecords: 1 + w.upTo(4), StreamMessages: 1 + w.upTo(4)}
		if w.chance(0.5) {
			b.AheadBytes, b.StreamBytes = 40+w.upTo(200), 40+w.upTo(200)
		}
		if w.chance(0.3) {
			b.Window = 1 + w.upTo(6)
		}
	}
	if w.chance(0.5) {
		b.ExpireAtOnce = 1 + w.upTo(2)
	}
	if w.chance(0.5) {
		b.Unacked = 1 + w.upTo(6)
	}
	if w.chance(0.5) {
		b.Inline = 1 + w.upTo(3)
	}
	b.Stall, b.Late = 5*time.Millisecond, time.Millisecond
	w.bounds = w.m.SetBounds(b)
}

// plan is a group that is to form, and the program of its ranks.
type plan struct {
	w         *world
	name, run string
	parent    *plan   // the plan of which it is a subgroup
	procs     []*proc // by rank
	channels  []string
	flows     []flow
	policy    policy
	ops       map[string][]op // by generation, channel and use
}

// flow is messages from one rank to another.
type flow struct {
	src, dst int
	tag      string
	count    int
	ttl      time.Duration
}

// policy is what ranks do when their group is closed.
type policy int

const (
	stay policy = iota
	leave
	rejoin
	shrink
	policies
)

func (w *world) makePlans() {
	all := slices.Clone(w.procs)
	if w.chance(0.1) { // two ranks in one process
		all = append(all, all[w.upTo(len(all))])
	}
	world := w.newPlan("world", "run", all)
	if w.chance(0.4) {
		w.newPlan("pair", "run", w.some(w.procs))
	}
	if w.chance(0.3) {
		w.newPlan("world/sub", "", w.some(w.procs)).parent = world
	}
}

// some returns at least one of procs, in random order.
func (w *world) some(procs []*proc) []*proc {
	procs = slices.Clone(procs)
	w.rng.Shuffle(len(procs), func(i, j int) { procs[i], procs[j] = procs[j], procs[i] })
	return procs[:1+w.upTo(len(procs))]
}

func (w *world) newPlan(name, run string, procs []*proc) *plan {
	pl := &plan{w: w, name: name, run: run, procs: procs, channels: []string{""}, policy: policy(w.upTo(int(policies))), ops: map[string][]op{}}
	if w.chance(0.3) {
		pl.channels = append(pl.channels, "loss")
	}
	for range w.upTo(3) {
		f := flow{src: w.upTo(len(procs)), dst: w.upTo(len(procs)), tag: []string{"", "tag"}[w.upTo(2)], count: 1 + w.upTo(8)}
		if w.chance(0.3) {
			f.ttl = w.between(time.Millisecond, 20*time.Millisecond)
		}
		if !slices.ContainsFunc(pl.flows, func(x flow) bool { return x.src == f.src && x.dst == f.dst && x.tag == f.tag }) {
			pl.flows = append(pl.flows, f)
		}
	}
	for rank, p := range procs {
		p.members = append(p.members, &member{plan: pl, p: p, rank: rank})
	}
	w.plans = append(w.plans, pl)
	return pl
}

// op is one collective verb of a group's program, the same for all of its ranks.
type op struct {
	verb string
	root int
	typ  string
}

var verbs = []string{"barrier", "allgather", "broadcast", "broadcast", "gather", "scatter", "alltoall", "allreduce"}

// program returns what the ranks of a generation call in one use of a channel.
func (pl *plan) program(gen uint64, channel string, use, size int) []op {
	key := fmt.Sprint(gen, channel, use)
	if pl.ops[key] == nil {
		w := pl.w
		root := w.upTo(size) // mostly one root, so that it runs ahead
		for range 2 + w.upTo(7) {
			o := op{verb: verbs[w.upTo(len(verbs))], root: root, typ: "[]byte"}
			if w.chance(0.3) {
				o.root = w.upTo(size)
			}
			pl.ops[key] = append(pl.ops[key], o)
		}
	}
	return pl.ops[key]
}

// start lets a process join its groups.
func (p *proc) start() {
	w := p.w
	p.session = p.newSession()
	w.after(w.between(0, 2*time.Millisecond)+w.lateness(), func() {
		if !p.local {
			p.session.dial()
			return
		}
		p.session.conn = &conn{s: p.session}
		w.conns[core.Local] = p.session.conn
		p.begin()
	})
}

func (w *world) lateness() time.Duration {
	if w.chance(w.odds.late) {
		return w.between(10*time.Millisecond, 100*time.Millisecond)
	}
	return 0
}

// timeouts returns the timeout of a call, and the time after which it is cancelled.
func (w *world) timeouts() (timeout, cancel time.Duration) {
	timeout = 30 * time.Second
	switch {
	case w.chance(w.odds.hurry):
		timeout = w.between(100*time.Microsecond, 20*time.Millisecond)
	case w.chance(0.1):
		timeout = 0
	}
	if w.chance(w.odds.cancel) {
		cancel = w.between(0, 5*time.Millisecond) + 1
	}
	return timeout, cancel
}

// contribution returns the fields that every call of a rank has in common.
func (mb *member) contribution() wire.Contribution {
	return wire.Contribution{Generation: mb.gen, Rank: mb.cur, Root: -1}
}
