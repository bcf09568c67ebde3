package core_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// mutant is one change that breaks a rule of docs/explanation/guarantees.md.
type mutant struct {
	name     string
	file     string
	old, new string // old occurs exactly once
}

// tests notice the mutants that the simulation does not, whose groups are small.
var tests = map[string]string{
	"all ranks that an operation waits for are named": "^TestMissingRanksAreBounded$",
}

var mutants = []mutant{
	{
		"a call that has been answered is still charged",
		"waiter.go", `m.account.release(w.Session, w.cost)`, `_ = w.cost`,
	},
	{
		"a record that is freed is still charged",
		"channel.go", `r.each(m.account.release)`, `_ = m.account`,
	},
	{
		"a message that was read is still charged",
		"stream.go", `m.account.release(st.of.g.members[st.src].session, st.queue[0].cost())`, `_ = m.account`,
	},
	{
		"a group that is over is still charged",
		"group_end.go", `m.releaseGroup(g)`, `_ = m.account`,
	},
	{
		"no floor: a vote for what its rank has passed opens a record again",
		"record.go", `if c.Seq <= ch.floor[c.Rank] {`, `if c.Seq == 0 {`,
	},
	{
		"no fence: votes from any session count",
		"group.go", `case s.session != t.Session:`, `case false:`,
	},
	{
		"a session that is not a member learns that there is a generation",
		"group.go", `if g == nil || !g.hasSession(t.Session, c.Rank) {`, `if g == nil {`,
	},
	{
		"a loss decides records in which the rank has voted",
		"group_end.go", `m.revoke(g, v, needed)`, `m.revoke(g, v, everyRecord)`,
	},
	{
		"a lost elector is waited for",
		"group_end.go", `m.revoke(g, v, needed)`, `m.revoke(g, v, func(*record) bool { return false })`,
	},
	{
		"a mismatch that a rank reports is an abort",
		"group_end.go", `if no == wire.CodeMismatch {`, `if false {`,
	},
	{
		"a mismatch counts as a yes",
		"record.go", `case !Agree(&r.call, c):`, `case false:`,
	},
	{
		"a late mismatch receives success",
		"record.go", `case r.done && r.failed == nil && !Agree(&r.call, c):`, `case false:`,
	},
	{
		"all but one are enough",
		"record.go", `r.yes == len(r.votes)`, `(r.yes == len(r.votes) || r.yes > 0 && r.yes == len(r.votes)-1 && r.call.Want == wire.WantNothing)`,
	},
	{
		"a no does not decide",
		"record.go", `m.decide(r, failureReply(m.refusal(r, c.Rank, c.No, c.Reason)))`, `_ = b`,
	},
	{
		"a no after the decision changes it",
		"record.go", `	case r.done:
		*rep =`, `	case r.done && c.No == wire.CodeOK:
		*rep =`,
	},
	{
		"a cancel ends only the call of who cancels",
		"record.go", `m.decide(r, failureReply(m.refusal(r, w.rank, why, m.cancelReason)))`, `r.votes[w.rank].waiting = false
		m.answer(w, failureReply(m.refusal(r, w.rank, why, m.cancelReason)))`,
	},
	{
		"a vote that is repeated counts twice",
		"record.go", `case b.yes:`, `case false:`,
	},
	{
		"a record waits for a rank that went on",
		"record.go", `for _, rank := range r.skipped {`, `for _, rank := range r.skipped[:0] {`,
	},
	{
		"a deadline is not enforced",
		"record.go", `m.arm(r, at)`, `_ = at`,
	},
	{
		"the last deadline counts, not the first",
		"record.go", `at < r.timer.at`, `at > r.timer.at`,
	},
	{
		"a rank is given the payload of the next one",
		"record_reply.go", `rep.Values[i] = r.votes[i].payload`, `rep.Values[i] = r.votes[(i+1)%len(r.votes)].payload`,
	},
	{
		"a record starts with the votes of an earlier one",
		"channel.go", `clear(r.votes)`, `_ = r`,
	},
	{
		"records are never freed",
		"channel.go", `delete(ch.records, r.seq)`, `_ = ch`,
	},
	{
		"records are freed as soon as they are decided",
		"record.go", `	if r.pending == 0 {
		r.ch.free(m, r)`, `	if true {
		r.ch.free(m, r)`,
	},
	{
		"a root runs ahead without bound",
		"channel.go", `return before >= m.bounds.aheadRecords ||`, `return false &&`,
	},
	{
		"an attempt to form a group counts ranks whose session has ended",
		"rendezvous.go", `delete(a.rendezvous.joiners, a.rank)`, `_ = a`,
	},
	{
		"an attempt to form a group fails for one rank, and goes on for the others",
		"rendezvous.go", `	m.failRendezvous(r, v)
}`, `	m.removeJoiner(a)
	m.answer(w, failureReply(v))
}`,
	},
	{
		"an attempt to form a group that fails is reported to one rank",
		"rendezvous.go", `	for _, a := range r.inOrder() {
		m.answer(`, `	for _, a := range r.inOrder()[:1] {
		m.answer(`,
	},
	{
		"a deadline that its caller alone has noticed is a cancel",
		"machine.go", `req.Group.No == wire.CodeTimeout`, `false`,
	},
	{
		"a cancelled Join keeps what it has obtained",
		"machine.go", `if m.noop = g == nil; !m.noop {`, `if m.noop = true; !m.noop {`,
	},
	{
		"a retry does not replace what its process holds",
		"rendezvous.go", `c.try > earlier.try`, `c.try == 0`,
	},
	{
		"a retry is replaced by an earlier try",
		"rendezvous.go", `c.try > earlier.try`, `c.try != earlier.try`,
	},
	{
		"any process replaces what another holds",
		"rendezvous.go", `subtle.ConstantTimeCompare(c.token, earlier.token) == 1`, `subtle.ConstantTimeCompare(c.token, earlier.token) >= 0`,
	},
	{
		"what is restored forgets whose requests may be replaced",
		"restore.go", `info: x.Info, claim: claim{x.Token, x.Try}}`, `info: x.Info}`,
	},
	{
		"a rank that went on without a vote has aborted",
		"channel.go", `m.refusal(r, rank, wire.CodeSkipped, why)))
		return
	}
	if r.done`, `m.refusal(r, rank, wire.CodeAborted, why)))
		return
	}
	if r.done`,
	},
	{
		"each restart renews the time to resume a session",
		"log_event.go", `if !s.unresumed {`, `if s != nil {`,
	},
	{
		"a session that was resumed once has no time after the next restart",
		"session.go", `s.sharedCause, s.unresumed = "", false`, `s.sharedCause = ""`,
	},
	{
		"what is restored forgets who has not been resumed",
		"restore.go", `unresumed: s.Unresumed`, `unresumed: false`,
	},
	{
		"a rank that asks for some of the members gets the first ones",
		"members.go", `rep.Values = g.infos[req.First:]`, `rep.Values = g.infos`,
	},
	{
		"a rank that asks for two members gets all",
		"members.go", `rep.Values = rep.Values[:req.Count]`, `_ = rep`,
	},
	{
		"the answer to each join has all members",
		"members.go", `len(g.members) <= m.bounds.inline`, `m != nil`,
	},
	{
		"a rank gets the ranks of another node as its own",
		"rendezvous.go", `replies[g.node(rank)]`, `replies[g.node(0)]`,
	},
	{
		"a join that is answered again has the ranks of another node",
		"rendezvous.go", `g.local(rank)`, `g.local(0)`,
	},
	{
		"a survivor whose join is answered again keeps its old rank",
		"rendezvous.go", `if c.Generation != 0 {
			*rep`, `if c == nil {
			*rep`,
	},
	{
		"a rank does not learn who hosts the store",
		"members.go", `g.summary.host = rank`, `_ = rank`,
	},
	{
		"what is restored forgets who hosts the store",
		"restore.go", `g.summarize()`, `_ = g.summary`,
	},
	{
		"a generation number is used again",
		"rendezvous.go", `m.generation++`, `m.generation = uint64(len(m.groups)) + 1`,
	},
	{
		"a shrink does not wait for all ranks",
		"rendezvous.go", `return r.from.present
`, `return r.from.present - 1
`,
	},
	{
		"a message is forgotten when it is given",
		"stream.go", `	if st.read(c.Seq, rep) {
		return true`, `	if st.read(c.Seq, rep) {
		st.acknowledge(m, c.Seq)
		return true`,
	},
	{
		"a lost sender's messages are lost",
		"streams.go", `	if st.dst == rank {
		st.refuseSenders`, `	if st.dst == rank || st.src == rank {
		st.refuseSenders`,
	},
	{
		"an answer goes to a session that has ended",
		"session.go", `m.dropAll(s, how, func(*waiter) bool { return true })`, `_ = how`,
	},
	{
		"a name is kept in the buffer that it came in",
		"rendezvous.go", `key = groupKey{strings.Clone(c.Group), strings.Clone(c.Run)}`, `_ = strings.Clone`,
	},
	{
		"numbers need not be dense",
		"session.go", `case n != s.lastNumber()+1:`, `case false:`,
	},
	{
		"a request that comes again is carried out again",
		"session.go", `		*rep = s.answers[n-s.acked-1]
		return true`, `		return handlers[req.Op](m, t, req, rep)`,
	},
	{
		"an answer is forgotten before it has come",
		"session.go", `s.acknowledge(&m.account, t.Session, req.Acked)`, `s.acknowledge(&m.account, t.Session, req.Number-1)`,
	},
	{
		"answers are kept for ever",
		"session.go", `s.acknowledge(&m.account, t.Session, req.Acked)`, `s.acknowledge(&m.account, t.Session, 0)`,
	},
	{
		"a refusal is no answer to keep",
		"session.go", `	s.answers = append(s.answers, *rep)`, `	if rep.Code == wire.CodeOK {
		s.answers = append(s.answers, *rep)
	}`,
	},
	{
		"a session is taken up without its token",
		"session.go", `subtle.ConstantTimeCompare(s.token, req.Value) != 1`, `subtle.ConstantTimeCompare(s.token, req.Value) > 1`,
	},
	{
		"a session is never taken up",
		"session.go", `subtle.ConstantTimeCompare(s.token, req.Value) != 1`, `subtle.ConstantTimeCompare(s.token, req.Value) < 2`,
	},
	{
		"a session without a connection is lost at once",
		"session.go", `req.TTL > 0 && t.Session != Local`, `req.TTL < 0`,
	},
	{
		"a session without a connection is never lost",
		"session.go", `m.arm(&s.reconnect, m.after(req.TTL))`, `_ = s`,
	},
	{
		"who lost their connections together are lost one by one",
		"session.go", `if why == "" {`, `if why != "?" {`,
	},
	{
		"of several who are lost together those are named who have voted",
		"group_end.go", `if len(v.Lost) > 1 {`, `if len(v.Lost) > 99 {`,
	},
	{
		"what is restored forgets who lost their connections together",
		"restore.go", `sharedCause: s.SharedCause`, `sharedCause: ""`,
	},
	{
		"who has come back in time is lost all the same",
		"session.go", `	m.disarm(&s.reconnect)
	s.sharedCause, s.unresumed = "", false`, `	s.sharedCause, s.unresumed = "", false`,
	},
	{
		"calls that wait, and come again, are refused",
		"machine.go", `case req.Op.Waits() && s.waiters[req.ID] != nil && s.waiters[req.ID].op != req.Op:`, `case req.Op.Waits() && s.waiters[req.ID] != nil:`,
	},
	{
		"calls that wait, and come again, wait twice",
		"machine.go", `case req.Op.Waits() && s.isResent(req):`, `case false:`,
	},
	{
		"a call that was answered before it came again begins anew",
		"session.go", `if s.waiters[req.ID] == nil && (!s.resent[req.ID] || !logged(req.Op)) {`, `if s.waiters[req.ID] == nil {`,
	},
	{
		"a rank whose join comes again has a conflict with itself",
		"rendezvous.go", `if g, rank := m.joinedBy(t); g != nil { //`, `if g, rank := m.joinedBy(t); g != nil && t.ID == 0 { //`,
	},
	{
		"a lease outlives its session",
		"lease.go", `for p := s.leases.Front(); p != nil; p = p.Next() {`, `for p := s.leases.Front(); p != nil && false; p = p.Next() {`,
	},
	{
		"the entries of a lease outlive it",
		"lease.go", `m.endedLeases = append(m.endedLeases, l)`, `_ = m`,
	},
	{
		"the entries of a lease that has ended are seen until a Tick takes them out",
		"keys.go", `|| e.lease > 0 && m.leaseRefs[e.lease-1].ended`, ``,
	},
	{
		"a lease ends twice",
		"lease.go", `delete(m.leases, l.id)`, `_ = m`,
	},
	{
		"a lease is anybody's",
		"lease.go", `case l.session != t.Session:`, `case false:`,
	},
	{
		"a lease is not kept alive",
		"lease.go", `	if l := m.leaseOf(t, req.Lease, rep); l != nil {
		m.arm(`, `	if l := m.leaseOf(t, req.Lease, rep); l != nil && false {
		m.arm(`,
	},
	{
		"an entry stays with the lease that it had",
		"keys.go", `m.attach(e, l)`, `_ = l`,
	},
	{
		"a lease without entries is taken for one that has some",
		"machine.go", `if l.entries.n > 0 {`, `if l != nil {`,
	},
	{
		"reads take out what is over, and no log knows",
		"keys.go", `	if e := m.entries.get(key); e != nil && !m.expired(e) {
		return e
	}
	return nil
}`, `	e := m.entries.get(key)
	if e != nil && m.expired(e) {
		m.remove(e, wire.ChangeExpire)
		return nil
	}
	return e
}`,
	},
	{
		"what is due at one time has no order",
		"waiter.go", `a.at == b.at && a.turn < b.turn`, `false`,
	},
	{
		"an entry of no bytes reads as absent",
		"table.go", `	if v == nil {
		v = []byte{}
	}`, ``,
	},
	{
		"a value that was popped is popped again",
		"queue.go", `wire.QueueHead{First: number + 1, Next: h.Next}), rep) == nil {
			return true
		}
	}
	rep.Value, rep.N = value.val(), int64(h.Next-number)
	m.remove(value, wire.ChangeDelete)`, `h), rep) == nil {
			return true
		}
	}
	rep.Value, rep.N = value.val(), int64(h.Next-number)`,
	},
	{
		"the last value of a queue leaves its head",
		"queue.go", `	case number+1 == h.Next:
		m.remove(head, wire.ChangeDelete)`, `	case number+1 == h.Next:`,
	},
	{
		"a caller that waits for a queue receives no value",
		"queue.go", `m.wake(headKey)`, `_ = headKey`,
	},
	{
		"a stream is never full",
		"stream.go", `if st.full(m, len(req.Value)) {`, `if st == nil {`,
	},
	{
		"no sender learns of free space",
		"stream.go", `		if st.full(m, w.bytes) {
			return false`, `		if st != nil {
			return false`,
	},
	{
		"a caller that waits for space is resumed without any",
		"stream.go", `	if !st.full(m, n) {`, `	if n >= 0 {`,
	},
	{
		"a snapshot has what was set since it began",
		"keys.go", `	m.preserve(key, e)
	if e == nil {`, `	if e == nil {`,
	},
	{
		"a snapshot misses what was taken out since it began",
		"keys.go", `	m.preserve(key, e)
	m.expiries.disarm(e)`, `	m.expiries.disarm(e)`,
	},
	{
		"a snapshot has entries without the time at which they go",
		"machine.go", `m.expiries.due(m.now)`, `m.expiries.pop(m.now)`,
	},
	{
		"a snapshot with a root that is none cannot be restored",
		"restore.go", ` && s.Failed == nil {`, ` {`,
	},
	{
		"what is restored has its timers in another order",
		"restore.go", `m.timers.turn = s.Turn`, `_ = s.Turn`,
	},
	{
		"what is restored forgets whose grace runs",
		"restore.go", `m.timers.rearm(&x.reconnect, s.Reconnect)`, `_ = x`,
	},
	{
		"after a restart no session has to reconnect",
		"log_event.go", `m.arm(&s.reconnect, m.after(grace))`, `_ = s`,
	},
	{
		"a vote goes to a channel that its rank has closed",
		"channel.go", `for ch != nil && ch.closed(rank) {`, `for false {`,
	},
	{
		"a channel that its users have closed is kept",
		"channel.go", `m.account.release(ch.payer, ch.cost())
	ch.g.remove(ch)`, `_ = m`,
	},
	{
		"a channel is freed with a record that another rank needs",
		"channel.go", `	if len(ch.records) > 0 {
		return
	}
	for rank, used`, `	for rank, used`,
	},
	{
		"a channel is freed while a user has it open",
		"channel.go", `if used && ch.g`, `if false && used && ch.g`,
	},
	{
		"a rank that closes a channel is waited for",
		"channel.go", `ch.advance(m, c.Rank, closedFloor, reasonClosed)`, `ch.floor[c.Rank] = closedFloor`,
	},
	{
		"a rank closes a channel on which it has not voted",
		"channel.go", `ch != nil && ch.used[c.Rank] {`, `ch != nil {`,
	},
	{
		"a call goes on in a channel that its rank has closed",
		"channel.go", `return w.belongsTo(g, c.Rank) && onChannel(w.owner, c.Channel)`, `return false`,
	},
	{
		"a channel stays when its last user is gone",
		"channel.go", `			}
		}
	}
	ch.freeIfClosed(m)`, `			}
		}
	}`,
	},
	{
		"a stream is freed with messages that no rank has read",
		"streams.go", `!there(st.dst) || len(st.queue) == 0 && `, `!there(st.dst) || `,
	},
	{
		"a message to a rank that has closed the channel waits for its next use",
		"streams.go", `st.dst == rank && st.reading.Closed`, `false`,
	},
	{
		"a message that was not received is acknowledged",
		"stream.go", `c.Seq > st.delivered`, `c.Seq > st.delivered+1`,
	},
	{
		"all ranks that an operation waits for are named",
		"activity.go", `maxMissing = 1024`, `maxMissing = 1 << 20`,
	},
}

// shortMutants is the step at which the short form samples the mutants: it runs one of so many.
const shortMutants = 36

// TestMutants checks that the simulation can detect errors: it finds a counterexample for each rule
// that is broken, or the test of it fails. With MUSTER_SOAK it tries all mutants, otherwise one of 36, which
// MUSTER_MUTANTS selects.
func TestMutants(t *testing.T) {
	if testing.Short() || underRace {
		t.Skip("SKIPPED: each mutant is built: not in a short run, nor with the race detector")
	}
	tries := mutationtest.Sampled(t, len(mutants), shortMutants)
	for i, m := range mutants {
		mutationtest.Applies(t, m.file, m.old)
		if !tries(i) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			if test, ok := tests[m.name]; ok {
				mutationtest.NoticedBy(t, m.file, m.old, m.new, test)
				return
			}
			mutationtest.Noticed(t, m.file, m.old, m.new, "-run", "^TestSimulation$", ".", "-sim.seeds", "6000")
		})
	}
}
