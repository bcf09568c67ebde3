package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// A vote is one put: a rank has a key for each call that it makes on a channel, and puts the record's number there. In the same transaction
// etcd compares the keys of the others for that call: if all have the same number this vote is the last, and puts the verdict there too.
// All wait for that key alone. etcd also compares that no rank has that number, or a later one, at another call; if one has, the
// ranks disagree, or one has skipped this record, and all votes are looked at.
//
// A comparison of keys that are not there is true, or false, but does not tell that they are not. So the first record of a call counts its
// keys first; they stay from then on. A rank puts its next vote only when it knows the verdict of this one: what it has put over stands.

// channel is what a rank knows of one sequence of its records.
type channel struct {
	keys  channelKeys
	name  string          // as it is in keys
	voted uint64          // the last record that the rank has voted in
	open  *record         // that one, while the rank does not know its verdict
	known uint64          // the last record whose verdict it knows
	freed uint64          // what was left of records before this one has been deleted
	given bool            // ranks may have given something in records since then
	whole map[string]bool // calls for which every rank has a key, as far as all verdicts say that the rank has seen
	ahead []led           // records that the rank has led as their root, and others may not have passed
	quiet []led           // records of others' that it has read since it last told them how far it is
}

// led is a record that a root has decided.
type led struct {
	seq   uint64
	bytes int
}

// record is one rank's part in a group verb.
type record struct {
	*seat
	ch      *channel
	c       wire.Contribution
	payload []byte
	call    string // what ranks agree on
	votes   string // what the keys of this call's votes begin with
	vote    string // this rank's
	at      string // the record's number
	began   time.Time
}

func (st *seat) channel(name string) *channel {
	st.mu.Lock()
	defer st.mu.Unlock()
	ch := st.channels[name]
	if ch == nil {
		keys := st.g.keys.channel(name)
		ch = &channel{keys: keys, name: keys.verdicts[len(st.g.keys.verdicts()+"c/") : len(keys.verdicts)-1], whole: map[string]bool{}}
		st.channels[name] = ch
	}
	return ch
}

// collectVotes casts a rank's vote, and answers with the verdict of the record.
func (st *seat) collectVotes(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	r := &record{seat: st, ch: st.channel(req.Group.Channel), c: req.Group, payload: req.Value, began: time.Now()}
	r.c.Group, r.c.Run = "", ""
	st.mu.Lock()
	voted := r.ch.voted
	st.mu.Unlock()
	if r.c.Seq == 0 || r.c.Seq < voted {
		return refuse(rep, wire.CodeStale, "rank %d has passed sequence %d", r.rank, r.c.Seq)
	}
	if _, why := core.Parse(&r.c, r.payload, len(st.g.roll.ids)); why != "" && r.c.No == wire.CodeOK {
		r.c.No, r.c.Reason = wire.CodeInvalid, why
	}
	r.name()
	verdict, err := r.decide(ctx, voted)
	if err != nil {
		return err
	}
	r.knows(verdict)
	if verdict, err = r.late(ctx, verdict); err != nil {
		return err
	}
	return r.result(ctx, verdict, rep)
}

// callOf is the hash of what ranks must agree on, and of the type, which may not be told.
func callOf(c *wire.Contribution, payload int) string {
	h := fnv.New64a()
	if c.Fold == (wire.Fold{}) && c.Want != wire.WantFold {
		payload = 0
	}
	fmt.Fprintf(h, "%q %d %t %q %d %d %t %d %q", c.Verb, c.Root, c.RootOnly, c.Label, c.Fold.Op, c.Fold.Kind, c.Want == wire.WantPart, payload, c.Type)
	return "c" + strconv.FormatUint(h.Sum64(), 36)
}

func (r *record) size() int       { return len(r.g.roll.ids) }
func (r *record) verdict() string { return r.ch.keys.verdict(r.c.Seq) }

// rootsCall is where all votes in roots' verbs are: those are decided by one rank alone, and compared with its verdict.
const rootsCall = "r"

// name makes the names that come again and again.
func (r *record) name() {
	r.call, r.at = callOf(&r.c, len(r.payload)), hex(r.c.Seq)
	if r.votes = r.ch.keys.votes + r.call + "/"; r.c.RootOnly {
		r.votes = r.ch.keys.votes + rootsCall + "/"
	}
	r.vote = r.votes + short(r.rank)
}

func (r *record) payloads() string              { return r.ch.keys.payloads + hex(r.c.Seq) + "/" }
func (r *record) payloadOf(rank int) string     { return r.payloads() + short(rank) }
func (ch *channel) edges() (first, last string) { return ch.keys.votes + "!", ch.keys.votes + "~" }

// leads reports whether the record is decided by this rank alone.
func (r *record) leads() bool { return r.c.RootOnly && r.c.Root == r.rank }

// ballot is the value of a vote.
func (r *record) ballot() string {
	if r.c.RootOnly {
		return r.at + "/" + r.call
	}
	return r.at
}

// decide brings the record to its verdict, as far as this rank can.
func (r *record) decide(ctx context.Context, voted uint64) (*wire.Reply, error) {
	verdict, err := r.reach(ctx, voted)
	if err != nil && ctx.Err() != nil {
		return r.giveUp(ctx, err)
	}
	return verdict, err
}

// reach brings the record to its verdict while there is time.
func (r *record) reach(ctx context.Context, voted uint64) (*wire.Reply, error) {
	if err := r.prepare(ctx, voted); err != nil {
		return nil, err
	}
	if verdict := r.told(); verdict != nil {
		r.passed()
		return verdict, nil
	}
	if r.c.No != wire.CodeOK {
		r.passed()
		return r.settle(ctx, &wire.Verdict{Code: r.c.No, By: r.rank, Reason: r.c.Reason})
	}
	verdict, n, err := r.put(ctx)
	var refusal wire.Reply
	if err != nil && answered(err, &refusal) == nil { // others are not to wait for a vote that etcd does not take
		r.passed()
		return r.settle(ctx, &wire.Verdict{Code: refusal.Code, By: r.rank, Reason: refusal.Detail})
	}
	if verdict == nil && err == nil {
		verdict, err = r.counted(ctx, n)
	}
	if verdict == nil && err == nil {
		return r.await(ctx)
	}
	return verdict, err
}

// prepare does what must be done before a vote: the record before has a verdict, and those that the rank skipped cannot succeed any more.
func (r *record) prepare(ctx context.Context, voted uint64) error {
	r.mu.Lock()
	before := r.ch.open
	if r.ch.known+1 != r.c.Seq { // what it has not heard may have been that keys were taken out
		clear(r.ch.whole)
	}
	r.mu.Unlock()
	if before != nil && before.c.Seq < r.c.Seq {
		verdict, err := before.settle(ctx, &wire.Verdict{Code: wire.CodeCancelled, By: r.rank, Reason: "it went on without the verdict"})
		if err != nil {
			return err
		}
		before.knows(verdict)
	}
	if voted+1 < r.c.Seq && r.g.state().over == nil {
		return r.skip(ctx, voted)
	}
	return nil
}

// knows notes the verdict: that of the channel's records so far is known to this rank.
func (r *record) knows(verdict *wire.Reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ch.open != nil && r.ch.open.c.Seq <= r.c.Seq {
		r.ch.open = nil
	}
	r.ch.known = max(r.ch.known, r.c.Seq)
	r.ch.given = r.ch.given || r.c.Want != wire.WantNothing || len(r.payload) > 0
	cast := castOf(verdict)
	if cast == nil {
		return
	}
	if cast.RootOnly {
		if r.c.RootOnly { // what it is has been told
			r.ch.whole[r.call] = true
		}
		return
	}
	r.ch.ahead = nil // all have passed what came before, and it was deleted
	r.ch.freed, r.ch.given = max(r.ch.freed, r.c.Seq), r.c.Want != wire.WantNothing || len(r.payload) > 0
	switch verdict.Type {
	case byPurge:
		clear(r.ch.whole)
		fallthrough
	case byAll:
		r.ch.whole[r.call] = true
	}
}

// passed notes that the rank has voted here: it needs nothing that came before.
func (r *record) passed() {
	r.mu.Lock()
	r.ch.voted = max(r.ch.voted, r.c.Seq)
	r.mu.Unlock()
	r.g.forget(r.ch.name, r.c.Seq)
}

// forget forgets verdicts that come before seq, unless another rank of this process may need them.
func (g *group) forget(channel string, seq uint64) {
	const spare = 64
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users > 1 {
		seq -= min(seq, spare)
	}
	for s := range g.decided[channel] {
		if s < seq {
			delete(g.decided[channel], s)
		}
	}
}

// told is the record's verdict, if this process knows it: what ends all open records is that of one which has none.
func (r *record) told() *wire.Reply {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if v := r.g.decided[r.ch.name][r.c.Seq]; v != nil {
		return v
	}
	return r.g.all
}

// finding is what a vote has found.
type finding struct {
	last  bool // all others have voted
	odd   bool // a rank is at another call, or a later record
	count int  // how many ranks have a key for this call, if it is not known that all have
}

// put puts the vote there, once. A generation that is revoked takes votes for records that are open, and opens none.
func (r *record) put(ctx context.Context) (*wire.Reply, finding, error) {
	k := r.g.keys
	when := []cond{r.held(), k.notRevoked(), r.ch.keys.undecided(r.c.Seq)}
	verdict, then := r.ballotOps()
	resp, err := r.g.e.txn(ctx, when, then, nil)
	if err == nil && !resp.Succeeded {
		if refused, again, err := r.refused(ctx); !again || err != nil {
			return refused, finding{}, err
		}
		when[1], when[2] = absent(k.all()), absent(r.verdict())
		resp, err = r.g.e.txn(ctx, when, then, nil)
	}
	if err != nil {
		return nil, finding{}, err
	}
	if !resp.Succeeded {
		refused, _, err := r.refused(ctx)
		return refused, finding{}, err
	}
	r.passed()
	r.mu.Lock()
	r.ch.open, r.ch.quiet = r, nil
	if r.leads() {
		r.ch.ahead = append(r.ch.ahead, led{r.c.Seq, len(r.payload)})
	}
	r.mu.Unlock()
	n := r.findings(resp.Responses)
	if n.last && !r.c.Fold.Valid() {
		return verdict, n, nil
	}
	return nil, n, nil
}

// ballotOps are the operations of a vote: first those that look, then those that put. verdict is that which the first of them puts, if
// it comes to that.
func (r *record) ballotOps() (verdict *wire.Reply, ops []op) {
	r.mu.Lock()
	whole := r.ch.whole[r.call]
	r.mu.Unlock()
	verdict, yes := r.yes(nil, byAll)
	if r.c.Fold.Valid() {
		yes = nil // the verdict brings the fold, which is to be made first
	}
	plain := opTxn(r.isPlain(false), nil, nil)
	ops = []op{opTxn(r.isLast(whole), yes, []op{plain})}
	if !whole {
		first, last := r.ch.edges()
		meta := wire.Request{Op: wire.OpCollect, Timeout: time.Duration(len(r.payload)), Group: r.c}
		meta.Group.Rank, meta.Group.Seq = 0, 0
		ops = append(ops,
			opGet(r.votes, prefixed, countOnly),
			opGet(r.votes, prefixed, byValue, atMost(1)),
			opPut(first, "", 0), opPut(last, "", 0),
			opPut(r.ch.keys.calls+r.call, string(wire.AppendRequest(nil, &meta)), 0))
	}
	if len(r.payload) > 0 {
		ops = append(ops, opPut(r.payloadOf(r.rank), string(r.payload), 0))
	}
	return verdict, append(ops, opPut(r.vote, r.ballot(), 0))
}

// never is a condition that is not so: the seat is there.
func (r *record) never() cond {
	return absent(r.key)
}

// isLast is the condition that this vote decides the record.
func (r *record) isLast(whole bool) (when []cond) {
	switch {
	case r.leads() && !r.crowded():
		return r.isPlain(false)
	case r.c.RootOnly || !whole && r.size() > 1:
		return []cond{r.never()}
	}
	own := r.vote
	if r.rank > 0 {
		when = append(when, valueIs(r.votes, r.ballot(), upTo(own)))
	}
	if r.rank < r.size()-1 {
		when = append(when, valueIs(own+"\x00", r.ballot(), upTo(end(r.votes))))
	}
	return when
}

// isPlain is the condition that no rank is at this record with another call, or at a later one. Votes for this call are in that only if
// there are any.
func (r *record) isPlain(whole bool) []cond {
	first, last := r.ch.edges()
	when := []cond{
		valueBelow(first, r.at, upTo(r.votes)),
		valueBelow(end(r.votes), r.at, upTo(last+"\x00")),
	}
	if whole && !r.c.RootOnly {
		when = append(when, valueBelow(r.votes, hex(r.c.Seq+1), prefixed))
	}
	return when
}

// findings are what the first operations of a vote have found.
func (r *record) findings(rs []*pb.ResponseOp) finding {
	own := rs[0].GetResponseTxn()
	n := finding{last: own.Succeeded}
	if n.odd = !n.last && !own.Responses[0].GetResponseTxn().Succeeded; len(rs) < 5 {
		return n
	}
	n.count = int(rs[1].GetResponseRange().Count)
	if kv := found(rs[2]); kv != nil && string(kv.Value) >= hex(r.c.Seq+1) {
		n.odd = true
	}
	return n
}

// refused is why a vote was not taken: there is a verdict, or the generation is revoked. If that is so, and the record is open: again.
func (r *record) refused(ctx context.Context) (verdict *wire.Reply, again bool, err error) {
	k := r.g.keys
	gets := []op{opGet(r.verdict()), opGet(k.all()), opGet(k.over()), opGet(r.key), opGet(r.ch.keys.votes, prefixed)}
	resp, err := r.g.e.txn(ctx, nil, gets, nil)
	if err != nil {
		return nil, false, err
	}
	rs := resp.Responses
	if kv := found(rs[0]); kv != nil {
		r.passed()
		verdict, err = parseReply(kv.Value)
		return verdict, false, err
	}
	if kv := found(rs[1]); kv != nil {
		verdict, err = parseReply(kv.Value)
		return verdict, false, err
	}
	if kv := found(rs[3]); kv == nil || kv.CreateRevision != r.rev || string(kv.Value) == leftSeat {
		r.s.lost()
		return nil, false, errSession
	}
	for _, kv := range rs[4].GetResponseRange().Kvs {
		if len(kv.Value) >= 16 && string(kv.Value[:16]) == r.at {
			return nil, true, nil
		}
	}
	if kv := found(rs[2]); kv != nil {
		verdict, err = parseReply(kv.Value)
	}
	return verdict, verdict == nil && err == nil, err
}

// late is the verdict for a rank that votes after the decision. If it called something else that is told to it, and revokes the generation.
func (r *record) late(ctx context.Context, verdict *wire.Reply) (*wire.Reply, error) {
	cast := castOf(verdict)
	if cast == nil || core.Agree(cast, &r.c) {
		return verdict, nil
	}
	if r.c.No != wire.CodeOK { // it fails alone: it has called nothing else, and not this
		rep := failed(&wire.Verdict{Code: r.c.No, By: r.rank, Reason: r.c.Reason, Waited: time.Since(r.began)})
		return &rep, nil
	}
	v := clash(cast, &r.c)
	ctx, cancel := r.afterwards(ctx)
	defer cancel()
	if err := r.g.revoke(ctx, v, true); err != nil {
		return nil, err
	}
	rep := failed(v)
	return &rep, nil
}

// counted does what a vote has found asks for; nil is that there is no verdict yet.
func (r *record) counted(ctx context.Context, n finding) (*wire.Reply, error) {
	if n.odd {
		if verdict, err := r.settle(ctx, nil); verdict != nil || err != nil {
			return verdict, err
		}
	}
	switch {
	case r.leads():
		if err := r.makeRoom(ctx); err != nil {
			return nil, err
		}
		return r.succeed(ctx, nil, "")
	case n.last:
		return r.succeed(ctx, nil, byAll)
	case !r.c.RootOnly && n.count >= r.size()-1 && n.count > 0:
		return r.succeedIfAll(ctx)
	}
	return nil, nil
}

// succeedIfAll decides a record for whose call every rank has a key, if all keys have its number.
func (r *record) succeedIfAll(ctx context.Context) (*wire.Reply, error) {
	all := []cond{valueIs(r.votes, r.ballot(), prefixed)}
	gets := []op{opGet(r.votes, prefixed, newestFirst, keysOnly, atMost(1))}
	resp, err := r.g.e.txn(ctx, all, gets, nil)
	if err != nil || !resp.Succeeded || int(resp.Responses[0].GetResponseRange().Count) < r.size() {
		return nil, err
	}
	of := *r
	of.c.Rank = int(lastNumber(found(resp.Responses[0]).Key)) // who came last
	verdict, err := of.succeed(ctx, all, byAll)
	if errors.Is(err, errVoted) {
		return nil, nil
	}
	return verdict, err
}
