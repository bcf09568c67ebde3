package core_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// mutants break one rule of docs/explanation/guarantees.md each.
var mutants = []mutationtest.Mutant{
	{
		Name: "a call that has been answered is still charged",
		File: "waiter.go", Old: `m.account.release(w.Session, w.cost)`, New: `_ = w.cost`,
	},
	{
		Name: "a record that is freed is still charged",
		File: "channel.go", Old: `r.each(m.account.release)`, New: `_ = m.account`,
	},
	{
		Name: "a message that was read is still charged",
		File: "stream.go", Old: `m.account.release(st.of.g.members[st.src].session, st.queue[0].cost())`, New: `_ = m.account`,
	},
	{
		Name: "a group that is over is still charged",
		File: "group_end.go", Old: `m.releaseGroup(g)`, New: `_ = m.account`,
	},
	{
		Name: "no floor: a vote for what its rank has passed opens a record again",
		File: "record.go", Old: `if c.Seq <= ch.floor[c.Rank] {`, New: `if c.Seq == 0 {`,
	},
	{
		Name: "no fence: votes from any session count",
		File: "group.go", Old: `case s.session != t.Session:`, New: `case false:`,
	},
	{
		Name: "a session that is not a member learns that there is a generation",
		File: "group.go", Old: `if g == nil || !g.hasSession(t.Session, c.Rank) {`, New: `if g == nil {`,
	},
	{
		Name: "a loss decides records in which the rank has voted",
		File: "group_end.go", Old: `m.revoke(g, v, needed)`, New: `m.revoke(g, v, everyRecord)`,
	},
	{
		Name: "a lost elector is waited for",
		File: "group_end.go", Old: `m.revoke(g, v, needed)`, New: `m.revoke(g, v, func(*record) bool { return false })`,
	},
	{
		Name: "a mismatch that a rank reports is an abort",
		File: "group_end.go", Old: `if no == wire.CodeMismatch {`, New: `if false {`,
	},
	{
		Name: "a mismatch counts as a yes",
		File: "record.go", Old: `case !Agree(&r.call, c):`, New: `case false:`,
	},
	{
		Name: "a late mismatch receives success",
		File: "record.go", Old: `case r.done && r.failed == nil && !Agree(&r.call, c):`, New: `case false:`,
	},
	{
		Name: "all but one are enough",
		File: "record.go", Old: `r.yes == len(r.votes)`, New: `(r.yes == len(r.votes) || r.yes > 0 && r.yes == len(r.votes)-1 && r.call.Want == wire.WantNothing)`,
	},
	{
		Name: "a no does not decide",
		File: "record.go", Old: `m.decide(r, failureReply(m.refusal(r, c.Rank, c.No, c.Reason)))`, New: `_ = b`,
	},
	{
		Name: "a no after the decision changes it",
		File: "record.go", Old: `	case r.done:
		*rep =`, New: `	case r.done && c.No == wire.CodeOK:
		*rep =`,
	},
	{
		Name: "a cancel ends only the call of who cancels",
		File: "record.go", Old: `m.decide(r, failureReply(m.refusal(r, w.rank, why, m.cancelReason)))`, New: `r.votes[w.rank].waiting = false
		m.answer(w, failureReply(m.refusal(r, w.rank, why, m.cancelReason)))`,
	},
	{
		Name: "a vote that is repeated counts twice",
		File: "record.go", Old: `case b.yes:`, New: `case false:`,
	},
	{
		Name: "a record waits for a rank that went on",
		File: "record.go", Old: `for _, rank := range r.skipped {`, New: `for _, rank := range r.skipped[:0] {`,
	},
	{
		Name: "a deadline is not enforced",
		File: "record.go", Old: `m.arm(r, at)`, New: `_ = at`,
	},
	{
		Name: "the last deadline counts, not the first",
		File: "record.go", Old: `at < r.timer.at`, New: `at > r.timer.at`,
	},
	{
		Name: "a rank is given the payload of the next one",
		File: "record_reply.go", Old: `rep.Values[i] = r.votes[i].payload`, New: `rep.Values[i] = r.votes[(i+1)%len(r.votes)].payload`,
	},
	{
		Name: "a record starts with the votes of an earlier one",
		File: "channel.go", Old: `clear(r.votes)`, New: `_ = r`,
	},
	{
		Name: "records are never freed",
		File: "channel.go", Old: `delete(ch.records, r.seq)`, New: `_ = ch`,
	},
	{
		Name: "records are freed as soon as they are decided",
		File: "record.go", Old: `	if r.pending == 0 {
		r.ch.free(m, r)`, New: `	if true {
		r.ch.free(m, r)`,
	},
	{
		Name: "a root runs ahead without bound",
		File: "channel.go", Old: `return before >= m.bounds.aheadRecords ||`, New: `return false &&`,
	},
	{
		Name: "an attempt to form a group counts ranks whose session has ended",
		File: "rendezvous.go", Old: `delete(a.rendezvous.joiners, a.rank)`, New: `_ = a`,
	},
	{
		Name: "an attempt to form a group fails for one rank, and goes on for the others",
		File: "rendezvous.go", Old: `	m.failRendezvous(r, v)
}`, New: `	m.removeJoiner(a)
	m.answer(w, failureReply(v))
}`,
	},
	{
		Name: "an attempt to form a group that fails is reported to one rank",
		File: "rendezvous.go", Old: `	for _, a := range r.inOrder() {
		m.answer(`, New: `	for _, a := range r.inOrder()[:1] {
		m.answer(`,
	},
	{
		Name: "a deadline that its caller alone has noticed is a cancel",
		File: "machine.go", Old: `req.Group.No == wire.CodeTimeout`, New: `false`,
	},
	{
		Name: "a cancelled Join keeps what it has obtained",
		File: "machine.go", Old: `if m.noop = g == nil; !m.noop {`, New: `if m.noop = true; !m.noop {`,
	},
	{
		Name: "a retry does not replace what its process holds",
		File: "rendezvous.go", Old: `c.try > earlier.try`, New: `c.try == 0`,
	},
	{
		Name: "a retry is replaced by an earlier try",
		File: "rendezvous.go", Old: `c.try > earlier.try`, New: `c.try != earlier.try`,
	},
	{
		Name: "any process replaces what another holds",
		File: "rendezvous.go", Old: `subtle.ConstantTimeCompare(c.token, earlier.token) == 1`, New: `subtle.ConstantTimeCompare(c.token, earlier.token) >= 0`,
	},
	{
		Name: "what is restored forgets whose requests may be replaced",
		File: "restore.go", Old: `info: x.Info, claim: claim{x.Token, x.Try}}`, New: `info: x.Info}`,
	},
	{
		Name: "a rank that went on without a vote has aborted",
		File: "channel.go", Old: `m.refusal(r, rank, wire.CodeSkipped, why)))
		return
	}
	if r.done`, New: `m.refusal(r, rank, wire.CodeAborted, why)))
		return
	}
	if r.done`,
	},
	{
		Name: "each restart renews the time to resume a session",
		File: "log_event.go", Old: `if !s.unresumed {`, New: `if s != nil {`,
	},
	{
		Name: "a session that was resumed once has no time after the next restart",
		File: "session.go", Old: `s.sharedCause, s.unresumed = "", false`, New: `s.sharedCause = ""`,
	},
	{
		Name: "what is restored forgets who has not been resumed",
		File: "restore.go", Old: `unresumed: s.Unresumed`, New: `unresumed: false`,
	},
	{
		Name: "a rank that asks for some of the members gets the first ones",
		File: "members.go", Old: `rep.Values = g.infos[req.First:]`, New: `rep.Values = g.infos`,
	},
	{
		Name: "a rank that asks for two members gets all",
		File: "members.go", Old: `rep.Values = rep.Values[:req.Count]`, New: `_ = rep`,
	},
	{
		Name: "the answer to each join has all members",
		File: "members.go", Old: `len(g.members) <= m.bounds.inline`, New: `m != nil`,
	},
	{
		Name: "a rank gets the ranks of another node as its own",
		File: "rendezvous.go", Old: `replies[g.node(rank)]`, New: `replies[g.node(0)]`,
	},
	{
		Name: "a join that is answered again has the ranks of another node",
		File: "rendezvous.go", Old: `g.local(rank)`, New: `g.local(0)`,
	},
	{
		Name: "a survivor whose join is answered again keeps its old rank",
		File: "rendezvous.go", Old: `if c.Generation != 0 {
			*rep`, New: `if c == nil {
			*rep`,
	},
	{
		Name: "a rank does not learn who hosts the store",
		File: "members.go", Old: `g.summary.host = rank`, New: `_ = rank`,
	},
	{
		Name: "what is restored forgets who hosts the store",
		File: "restore.go", Old: `g.summarize()`, New: `_ = g.summary`,
	},
	{
		Name: "a generation number is used again",
		File: "rendezvous.go", Old: `m.generation++`, New: `m.generation = uint64(len(m.groups)) + 1`,
	},
	{
		Name: "a shrink does not wait for all ranks",
		File: "rendezvous.go", Old: `return r.from.present
`, New: `return r.from.present - 1
`,
	},
	{
		Name: "a message is forgotten when it is given",
		File: "stream.go", Old: `	if st.read(c.Seq, rep) {
		return true`, New: `	if st.read(c.Seq, rep) {
		st.acknowledge(m, c.Seq)
		return true`,
	},
	{
		Name: "a lost sender's messages are lost",
		File: "streams.go", Old: `	if st.dst == rank {
		st.refuseSenders`, New: `	if st.dst == rank || st.src == rank {
		st.refuseSenders`,
	},
	{
		Name: "an answer goes to a session that has ended",
		File: "session.go", Old: `m.dropAll(s, how, func(*waiter) bool { return true })`, New: `_ = how`,
	},
	{
		Name: "a name is kept in the buffer that it came in",
		File: "rendezvous.go", Old: `key = groupKey{strings.Clone(c.Group), strings.Clone(c.Run)}`, New: `_ = strings.Clone`,
	},
	{
		Name: "numbers need not be dense",
		File: "session.go", Old: `case n != s.lastNumber()+1:`, New: `case false:`,
	},
	{
		Name: "a request that comes again is carried out again",
		File: "session.go", Old: `		*rep = s.answers[n-s.acked-1]
		return true`, New: `		return handlers[req.Op](m, t, req, rep)`,
	},
	{
		Name: "an answer is forgotten before it has come",
		File: "session.go", Old: `s.acknowledge(&m.account, t.Session, req.Acked)`, New: `s.acknowledge(&m.account, t.Session, req.Number-1)`,
	},
	{
		Name: "answers are kept for ever",
		File: "session.go", Old: `s.acknowledge(&m.account, t.Session, req.Acked)`, New: `s.acknowledge(&m.account, t.Session, 0)`,
	},
	{
		Name: "a refusal is no answer to keep",
		File: "session.go", Old: `	s.answers = append(s.answers, *rep)`, New: `	if rep.Code == wire.CodeOK {
		s.answers = append(s.answers, *rep)
	}`,
	},
	{
		Name: "a session is taken up without its token",
		File: "session.go", Old: `subtle.ConstantTimeCompare(s.token, req.Value) != 1`, New: `subtle.ConstantTimeCompare(s.token, req.Value) > 1`,
	},
	{
		Name: "a session is never taken up",
		File: "session.go", Old: `subtle.ConstantTimeCompare(s.token, req.Value) != 1`, New: `subtle.ConstantTimeCompare(s.token, req.Value) < 2`,
	},
	{
		Name: "a session without a connection is lost at once",
		File: "session.go", Old: `req.TTL > 0 && t.Session != Local`, New: `req.TTL < 0`,
	},
	{
		Name: "a session without a connection is never lost",
		File: "session.go", Old: `m.arm(&s.reconnect, m.after(req.TTL))`, New: `_ = s`,
	},
	{
		Name: "who lost their connections together are lost one by one",
		File: "session.go", Old: `if why == "" {`, New: `if why != "?" {`,
	},
	{
		Name: "of several who are lost together those are named who have voted",
		File: "group_end.go", Old: `if len(v.Lost) > 1 {`, New: `if len(v.Lost) > 99 {`,
	},
	{
		Name: "what is restored forgets who lost their connections together",
		File: "restore.go", Old: `sharedCause: s.SharedCause`, New: `sharedCause: ""`,
	},
	{
		Name: "who has come back in time is lost all the same",
		File: "session.go", Old: `	m.disarm(&s.reconnect)
	s.sharedCause, s.unresumed = "", false`, New: `	s.sharedCause, s.unresumed = "", false`,
	},
	{
		Name: "calls that wait, and come again, are refused",
		File: "machine.go", Old: `case req.Op.Waits() && s.waiters[req.ID] != nil && s.waiters[req.ID].op != req.Op:`, New: `case req.Op.Waits() && s.waiters[req.ID] != nil:`,
	},
	{
		Name: "calls that wait, and come again, wait twice",
		File: "machine.go", Old: `case req.Op.Waits() && s.isResent(req):`, New: `case false:`,
	},
	{
		Name: "a call that was answered before it came again begins anew",
		File: "session.go", Old: `if s.waiters[req.ID] == nil && (!s.resent[req.ID] || !logged(req.Op)) {`, New: `if s.waiters[req.ID] == nil {`,
	},
	{
		Name: "a rank whose join comes again has a conflict with itself",
		File: "rendezvous.go", Old: `if g, rank := m.joinedBy(t); g != nil { //`, New: `if g, rank := m.joinedBy(t); g != nil && t.ID == 0 { //`,
	},
	{
		Name: "a lease outlives its session",
		File: "lease.go", Old: `for p := s.leases.Front(); p != nil; p = p.Next() {`, New: `for p := s.leases.Front(); p != nil && false; p = p.Next() {`,
	},
	{
		Name: "the entries of a lease outlive it",
		File: "lease.go", Old: `m.endedLeases = append(m.endedLeases, l)`, New: `_ = m`,
	},
	{
		Name: "the entries of a lease that has ended are seen until a Tick takes them out",
		File: "keys.go", Old: `|| e.lease > 0 && m.leaseRefs[e.lease-1].ended`, New: ``,
	},
	{
		Name: "a lease ends twice",
		File: "lease.go", Old: `delete(m.leases, l.id)`, New: `_ = m`,
	},
	{
		Name: "a lease is anybody's",
		File: "lease.go", Old: `case l.session != t.Session:`, New: `case false:`,
	},
	{
		Name: "a lease is not kept alive",
		File: "lease.go", Old: `	if l := m.leaseOf(t, req.Lease, rep); l != nil {
		m.arm(`, New: `	if l := m.leaseOf(t, req.Lease, rep); l != nil && false {
		m.arm(`,
	},
	{
		Name: "an entry stays with the lease that it had",
		File: "keys.go", Old: `m.attach(e, l)`, New: `_ = l`,
	},
	{
		Name: "a lease without entries is taken for one that has some",
		File: "machine.go", Old: `if l.entries.n > 0 {`, New: `if l != nil {`,
	},
	{
		Name: "reads take out what is over, and no log knows",
		File: "keys.go", Old: `	if e := m.entries.get(key); e != nil && !m.expired(e) {
		return e
	}
	return nil
}`, New: `	e := m.entries.get(key)
	if e != nil && m.expired(e) {
		m.remove(e, wire.ChangeExpire)
		return nil
	}
	return e
}`,
	},
	{
		Name: "what is due at one time has no order",
		File: "waiter.go", Old: `a.at == b.at && a.turn < b.turn`, New: `false`,
	},
	{
		Name: "an entry of no bytes reads as absent",
		File: "table.go", Old: `	if v == nil {
		v = []byte{}
	}`, New: ``,
	},
	{
		Name: "a value that was popped is popped again",
		File: "queue.go", Old: `wire.QueueHead{First: number + 1, Next: h.Next}), rep) == nil {
			return true
		}
	}
	rep.Value, rep.N = value.val(), int64(h.Next-number)
	m.remove(value, wire.ChangeDelete)`, New: `h), rep) == nil {
			return true
		}
	}
	rep.Value, rep.N = value.val(), int64(h.Next-number)`,
	},
	{
		Name: "the last value of a queue leaves its head",
		File: "queue.go", Old: `	case number+1 == h.Next:
		m.remove(head, wire.ChangeDelete)`, New: `	case number+1 == h.Next:`,
	},
	{
		Name: "a caller that waits for a queue receives no value",
		File: "queue.go", Old: `m.wake(headKey)`, New: `_ = headKey`,
	},
	{
		Name: "a stream is never full",
		File: "stream.go", Old: `if st.full(m, len(req.Value)) {`, New: `if st == nil {`,
	},
	{
		Name: "no sender learns of free space",
		File: "stream.go", Old: `		if st.full(m, w.bytes) {
			return false`, New: `		if st != nil {
			return false`,
	},
	{
		Name: "a caller that waits for space is resumed without any",
		File: "stream.go", Old: `	if !st.full(m, n) {`, New: `	if n >= 0 {`,
	},
	{
		Name: "a snapshot has what was set since it began",
		File: "keys.go", Old: `	m.preserve(key, e)
	if e == nil {`, New: `	if e == nil {`,
	},
	{
		Name: "a snapshot misses what was taken out since it began",
		File: "keys.go", Old: `	m.preserve(key, e)
	m.expiries.disarm(e)`, New: `	m.expiries.disarm(e)`,
	},
	{
		Name: "a snapshot has entries without the time at which they go",
		File: "machine.go", Old: `m.expiries.due(m.now)`, New: `m.expiries.pop(m.now)`,
	},
	{
		Name: "a snapshot with a root that is none cannot be restored",
		File: "restore.go", Old: ` && s.Failed == nil {`, New: ` {`,
	},
	{
		Name: "what is restored has its timers in another order",
		File: "restore.go", Old: `m.timers.turn = s.Turn`, New: `_ = s.Turn`,
	},
	{
		Name: "what is restored forgets whose grace runs",
		File: "restore.go", Old: `m.timers.rearm(&x.reconnect, s.Reconnect)`, New: `_ = x`,
	},
	{
		Name: "after a restart no session has to reconnect",
		File: "log_event.go", Old: `m.arm(&s.reconnect, m.after(grace))`, New: `_ = s`,
	},
	{
		Name: "a vote goes to a channel that its rank has closed",
		File: "channel.go", Old: `for ch != nil && ch.closed(rank) {`, New: `for false {`,
	},
	{
		Name: "a channel that its users have closed is kept",
		File: "channel.go", Old: `m.account.release(ch.payer, ch.cost())
	ch.g.remove(ch)`, New: `_ = m`,
	},
	{
		Name: "a channel is freed with a record that another rank needs",
		File: "channel.go", Old: `	if len(ch.records) > 0 {
		return
	}
	for rank, used`, New: `	for rank, used`,
	},
	{
		Name: "a channel is freed while a user has it open",
		File: "channel.go", Old: `if used && ch.g`, New: `if false && used && ch.g`,
	},
	{
		Name: "a rank that closes a channel is waited for",
		File: "channel.go", Old: `ch.advance(m, c.Rank, closedFloor, reasonClosed)`, New: `ch.floor[c.Rank] = closedFloor`,
	},
	{
		Name: "a rank closes a channel on which it has not voted",
		File: "channel.go", Old: `ch != nil && ch.used[c.Rank] {`, New: `ch != nil {`,
	},
	{
		Name: "a call goes on in a channel that its rank has closed",
		File: "channel.go", Old: `return w.belongsTo(g, c.Rank) && onChannel(w.owner, c.Channel)`, New: `return false`,
	},
	{
		Name: "a channel stays when its last user is gone",
		File: "channel.go", Old: `			}
		}
	}
	ch.freeIfClosed(m)`, New: `			}
		}
	}`,
	},
	{
		Name: "a stream is freed with messages that no rank has read",
		File: "streams.go", Old: `!there(st.dst) || len(st.queue) == 0 && `, New: `!there(st.dst) || `,
	},
	{
		Name: "a message to a rank that has closed the channel waits for its next use",
		File: "streams.go", Old: `st.dst == rank && st.reading.Closed`, New: `false`,
	},
	{
		Name: "a message that was not received is acknowledged",
		File: "stream.go", Old: `c.Seq > st.delivered`, New: `c.Seq > st.delivered+1`,
	},
	{
		Name: "all ranks that an operation waits for are named",
		File: "activity.go", Old: `maxMissing = 1024`, New: `maxMissing = 1 << 20`,
		Test: "^TestMissingRanksAreBounded$", // the groups of the simulation are small
	},
}

// TestMutants checks that the simulation can detect errors: it finds a counterexample for each rule
// that is broken, or the test of it fails.
func TestMutants(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED: each mutant is built: not with the race detector")
	}
	mutationtest.Run(t, mutants, 36, "-run", "^TestSimulation$", ".", "-sim.seeds", "6000")
}
