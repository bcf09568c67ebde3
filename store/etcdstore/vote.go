package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// A vote is a key of the record, put there by a transaction that also counts the votes. Ranks that agree have the same hashes in their keys,
// so that one count tells how many have come, and the others whether they agree. Who sees that all have, creates the verdict; all wait
// for that key alone.

// channel is what a rank knows of one sequence of its records.
type channel struct {
	keys  channelKeys
	name  string // as it is in keys
	voted uint64 // the last record that the rank has voted in
	whole bool   // every rank has voted in a record of all before this one: each has a last vote
	ahead []led  // records that the rank has led as their root, and others may not have passed
	quiet []led  // records of others' that it has read since it last told them how far it is
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
	cast    string // the hash of what ranks agree on, and of the type
	typ     string
	began   time.Time
}

// noType is the hash of a type that is not told.
const noType = "0000000000000000"

func (st *seat) channel(name string) *channel {
	st.mu.Lock()
	defer st.mu.Unlock()
	ch := st.channels[name]
	if ch == nil {
		keys := st.g.keys.channel(name)
		ch = &channel{keys: keys, name: keys.verdicts[len(st.g.keys.verdicts()+"c/") : len(keys.verdicts)-1]}
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
	if why := malformed(&r.c, r.payload, len(st.g.roll.ids)); why != "" && r.c.No == wire.CodeOK {
		r.c.No, r.c.Reason = wire.CodeInvalid, why
	}
	r.cast, r.typ = hashes(&r.c, len(r.payload))
	verdict, err := r.decide(ctx, voted)
	if err != nil {
		return err
	}
	return r.result(ctx, verdict, rep)
}

// hashes are those of what ranks must agree on: all but the type, and the type.
func hashes(c *wire.Contribution, payload int) (cast, typ string) {
	h := fnv.New64a()
	length := 0
	if c.Want == wire.WantFold || c.Fold != (wire.Fold{}) {
		length = payload
	}
	fmt.Fprintf(h, "%q %d %t %q %d %d %t %d", c.Verb, c.Root, c.RootOnly, c.Label, c.Fold.Op, c.Fold.Kind, c.Want == wire.WantPart, length)
	cast, typ = fmt.Sprintf("%016x", h.Sum64()), noType
	if c.Type != "" {
		t := fnv.New64a()
		_, _ = t.Write([]byte(c.Type))
		typ = fmt.Sprintf("%016x", t.Sum64()|1)
	}
	return cast, typ
}

// malformed is why a vote cannot be part of a record of n ranks, in words; "" if it can.
func malformed(c *wire.Contribution, payload []byte, n int) string {
	switch {
	case c.Root < -1 || c.Root >= n:
		return fmt.Sprintf("root %d of %d", c.Root, n)
	case c.RootOnly && c.Root < 0:
		return "a root's verb without a root"
	case int(c.Want) >= n || c.Want < wire.WantFold:
		return fmt.Sprintf("wants the payload of rank %d of %d", c.Want, n)
	case c.Want == wire.WantPart && (!c.RootOnly || c.Rank == c.Root):
		if _, err := wire.ParseParts(payload, n); err != nil {
			return err.Error()
		}
	case c.Want == wire.WantFold || c.Fold != wire.Fold{}:
		if !c.Fold.Valid() || c.RootOnly {
			return "no such fold"
		}
		if len(payload)%c.Fold.Kind.Size() != 0 {
			return fmt.Sprintf("%d bytes are not numbers of %d bytes", len(payload), c.Fold.Kind.Size())
		}
	}
	return ""
}

func (r *record) prefix() string  { return r.ch.keys.record(r.c.Seq) }
func (r *record) verdict() string { return r.ch.keys.verdict(r.c.Seq) }
func (r *record) vote() string {
	return fmt.Sprintf("%s%s/%s/%08x", r.prefix(), r.cast, r.typ, r.rank)
}
func (r *record) payloadOf(rank int) string {
	return fmt.Sprintf("%s%08x", r.payloads(), rank)
}
func (r *record) payloads() string { return fmt.Sprintf("%s%016x/", r.ch.keys.payloads, r.c.Seq) }

// decide brings the record to its verdict, as far as this rank can.
func (r *record) decide(ctx context.Context, voted uint64) (*wire.Reply, error) {
	if verdict := r.told(); verdict != nil {
		r.passed()
		return r.late(ctx, verdict)
	}
	if err := r.skip(ctx, voted); err != nil {
		return nil, err
	}
	if r.c.No != wire.CodeOK {
		r.passed()
		return r.settle(ctx, &wire.Verdict{Code: r.c.No, By: r.rank, Reason: r.c.Reason})
	}
	verdict, counts, err := r.put(ctx)
	if verdict == nil && err == nil {
		if verdict, err = r.counted(ctx, counts); verdict == nil && err == nil {
			return r.await(ctx)
		}
	}
	if err != nil && ctx.Err() != nil {
		return r.giveUp(ctx, err)
	}
	return verdict, err
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
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users > 1 {
		if seq < 64 {
			return
		}
		seq -= 64
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

// counts are the votes of a record: all, and those of ranks that called the same, with the same type. Types may differ if one is not
// told: that takes a look at the votes.
type counts struct{ all, same int64 }

func (r *record) counting() []clientv3.Op {
	count := func(prefix string) clientv3.Op {
		return clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	}
	return []clientv3.Op{count(r.prefix()), count(r.prefix() + r.cast + "/" + r.typ + "/")}
}

func countsOf(rs []*pb.ResponseOp) counts {
	return counts{rs[0].GetResponseRange().Count, rs[1].GetResponseRange().Count}
}

// put puts the vote there, once: with what it is for, when it came, and how large its payload is. The last one brings the verdict along,
// if that can be seen. A generation that is revoked takes votes for records that are open, and opens none.
func (r *record) put(ctx context.Context) (verdict *wire.Reply, n counts, err error) {
	k := r.g.keys
	when := []clientv3.Cmp{r.held(), absent(r.verdict()), absent(k.all()), absent(r.vote())}
	last, yes := r.last()
	then := append([]clientv3.Op{last}, r.ballot()...)
	for revoked := false; ; revoked = true {
		first := when
		if !revoked {
			first = append(slices.Clip(when), absent(k.over()))
		}
		resp, err := r.g.e.txn(ctx, first, then, nil)
		if err != nil {
			return nil, n, err
		}
		if !resp.Succeeded {
			verdict, n, again, err := r.refused(ctx)
			if !again || err != nil {
				return verdict, n, err
			}
			continue
		}
		r.counts()
		own := resp.Responses[0].GetResponseTxn()
		if own.Succeeded {
			return yes, n, nil
		}
		n = countsOf(own.Responses)
		return nil, counts{n.all + 1, n.same + 1}, nil
	}
}

// counts notes that the vote is there.
func (r *record) counts() {
	r.passed()
	r.mu.Lock()
	r.ch.quiet = nil
	if own := (led{r.c.Seq, len(r.payload)}); r.leads() && !slices.Contains(r.ch.ahead, own) {
		r.ch.ahead = append(r.ch.ahead, own)
	}
	r.mu.Unlock()
}

// leads reports whether the record is decided by this rank alone.
func (r *record) leads() bool { return r.c.RootOnly && r.c.Root == r.rank }

// ballot are the keys of a vote.
func (r *record) ballot() []clientv3.Op {
	meta := wire.Request{Op: wire.OpCollect, ID: uint64(time.Now().UnixNano()), Timeout: time.Duration(len(r.payload)), Group: r.c}
	ops := []clientv3.Op{clientv3.OpPut(r.vote(), string(wire.AppendRequest(nil, &meta)))}
	if len(r.payload) > 0 {
		ops = append(ops, clientv3.OpPut(r.payloadOf(r.rank), string(r.payload)))
	}
	switch {
	case !r.c.RootOnly:
		ops = append(ops, clientv3.OpPut(r.ch.keys.last(r.rank), r.call()))
	case !r.leads():
		ops = append(ops, clientv3.OpPut(r.ch.keys.floor(r.rank), strconv.FormatUint(r.c.Seq-1, 10)))
	}
	return ops
}

// call is what all ranks that agree put for their last vote.
func (r *record) call() string { return fmt.Sprintf("%016x/%s/%s", r.c.Seq, r.cast, r.typ) }

// last decides the record together with a vote that is the last one needed, and counts the votes before it if it is not. It is the last
// if each other rank's last vote is for the same call, or if it is a root's and nobody can have called anything else.
func (r *record) last() (op clientv3.Op, yes *wire.Reply) {
	verdict, then := r.yes(nil)
	own, lasts := r.ch.keys.last(r.rank), r.ch.keys.lasts
	r.mu.Lock()
	whole := r.ch.whole
	r.mu.Unlock()
	never := clientv3.Compare(clientv3.CreateRevision(r.key), "=", 0) // the seat is there
	when := []clientv3.Cmp{never}
	switch {
	case r.leads() && !r.crowded():
		when = []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(r.prefix()).WithPrefix(), "=", 0)}
	case !r.c.RootOnly && len(r.g.roll.ids) == 1:
		when = nil
	case !r.c.RootOnly && whole && !r.c.Fold.Valid():
		when = nil // of an empty range etcd says that its values are not equal
		if r.rank > 0 {
			when = append(when, clientv3.Compare(clientv3.Value(lasts).WithRange(own), "=", r.call()))
		}
		if r.rank < len(r.g.roll.ids)-1 {
			when = append(when, clientv3.Compare(clientv3.Value(own+"\x00").WithRange(end(lasts)), "=", r.call()))
		}
	}
	return clientv3.OpTxn(when, then, r.counting()), verdict
}

// refused is why a vote was not taken: the verdict, or it is there already, or the generation is revoked and the record open: then again.
func (r *record) refused(ctx context.Context) (verdict *wire.Reply, n counts, again bool, err error) {
	k := r.g.keys
	gets := append(r.counting(), clientv3.OpGet(r.verdict()), clientv3.OpGet(k.all()), clientv3.OpGet(k.over()), clientv3.OpGet(r.vote()), clientv3.OpGet(r.key))
	resp, err := r.g.e.txn(ctx, nil, gets, nil)
	if err != nil {
		return nil, n, false, err
	}
	n = countsOf(resp.Responses)
	rs := resp.Responses[2:]
	if kv := found(rs[0]); kv != nil {
		if verdict, err = parseReply(kv.Value); err == nil {
			r.passed()
			verdict, err = r.late(ctx, verdict)
		}
		return verdict, n, false, err
	}
	if kv := found(rs[1]); kv != nil {
		verdict, err = parseReply(kv.Value)
		return verdict, n, false, err
	}
	if kv := found(rs[3]); kv != nil { // an attempt before this one
		r.passed()
		return nil, n, false, nil
	}
	if kv := found(rs[4]); kv == nil || kv.CreateRevision != r.rev || string(kv.Value) == leftSeat {
		r.s.lost()
		return nil, n, false, errSession
	}
	if kv := found(rs[2]); kv != nil && n.all == 0 {
		verdict, err = parseReply(kv.Value)
		return verdict, n, false, err
	}
	return nil, n, true, nil
}

// late is the verdict for a rank that votes after the decision. If it called something else that is told to it, and revokes the generation.
func (r *record) late(ctx context.Context, verdict *wire.Reply) (*wire.Reply, error) {
	cast := castOf(verdict)
	if cast == nil || agree(cast, &r.c) {
		return verdict, nil
	}
	if r.c.No != wire.CodeOK { // it fails alone: it has called nothing else, and not this
		rep := failed(&wire.Verdict{Code: r.c.No, By: r.rank, Reason: r.c.Reason, Waited: time.Since(r.began)})
		return &rep, nil
	}
	v := clash(cast, &r.c)
	if err := r.g.revoke(ctx, v, true); err != nil {
		return nil, err
	}
	rep := failed(v)
	return &rep, nil
}

// counted does what the counts of votes ask for; nil is that there is no verdict yet.
func (r *record) counted(ctx context.Context, n counts) (*wire.Reply, error) {
	switch {
	case n.all != n.same:
		return r.settle(ctx, nil)
	case r.leads():
		if err := r.makeRoom(ctx); err != nil {
			return nil, err
		}
		return r.succeed(ctx)
	case !r.c.RootOnly && int(n.all) == len(r.g.roll.ids):
		return r.succeed(ctx)
	}
	return nil, nil
}

// await waits for the verdict. Now and then it counts again: who was to create it may be gone.
func (r *record) await(ctx context.Context) (*wire.Reply, error) {
	pause := lookFirst
	look := time.NewTimer(jitter(pause))
	defer look.Stop()
	for {
		s := r.g.state()
		if verdict := r.told(); verdict != nil {
			return verdict, nil
		}
		if r.hopeless() {
			if verdict, err := r.inTurn(ctx, nil); verdict != nil || err != nil && ctx.Err() == nil {
				return verdict, err
			}
		}
		select {
		case <-s.changed:
		case <-look.C:
			verdict, err := r.recount(ctx)
			if verdict != nil || err != nil && ctx.Err() == nil {
				return verdict, err
			}
			pause = min(2*pause, lookMost)
			look.Reset(jitter(pause))
		case <-ctx.Done():
			return r.giveUp(ctx, context.Cause(ctx))
		}
	}
}

// recount looks at the record again.
func (r *record) recount(ctx context.Context) (*wire.Reply, error) {
	gets := append(r.counting(), clientv3.OpGet(r.verdict()), clientv3.OpGet(r.g.keys.all()), clientv3.OpGet(r.g.keys.over()))
	resp, err := r.g.e.txn(ctx, nil, gets, nil)
	if err != nil {
		return nil, err
	}
	for _, x := range resp.Responses[2:4] {
		if kv := found(x); kv != nil {
			r.g.learn(kv)
			return r.told(), nil
		}
	}
	if kv := found(resp.Responses[4]); kv != nil { // nobody may have heard who is lost
		r.g.learn(kv)
		if _, err := r.g.lookAtSeats(ctx); err != nil {
			return nil, err
		}
	}
	if r.c.RootOnly {
		return nil, nil
	}
	return r.counted(ctx, countsOf(resp.Responses))
}

// hopeless reports whether somebody is gone, so that the record may not be decided by a yes any more.
func (r *record) hopeless() bool {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return len(r.g.gone) > 0 && (!r.c.RootOnly || r.g.gone[r.c.Root] != wire.CodeOK)
}

// inTurn settles the record, unless somebody else does so first.
func (r *record) inTurn(ctx context.Context, why *wire.Verdict) (*wire.Reply, error) {
	turn := time.NewTimer(r.g.turn())
	defer turn.Stop()
	for {
		s := r.g.state()
		if verdict := r.told(); verdict != nil {
			return verdict, nil
		}
		select {
		case <-s.changed:
		case <-turn.C:
			return r.settle(ctx, why)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// giveUp is the end of a rank's time: it decides the record, if that is open, and waits a moment for its verdict.
func (r *record) giveUp(ctx context.Context, cause error) (*wire.Reply, error) {
	why := &wire.Verdict{Code: wire.CodeTimeout, By: -1}
	switch {
	case r.seat.ctx.Err() != nil, errors.Is(cause, store.ErrClosed), errors.Is(cause, store.ErrSession):
		return nil, cause
	case errors.Is(cause, context.DeadlineExceeded):
	case errors.Is(cause, context.Canceled):
		why = &wire.Verdict{Code: wire.CodeCancelled, By: r.rank}
	default:
		return nil, cause
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.Grace)
	defer cancel()
	last, stop := r.within(last)
	defer stop()
	settle := r.settle
	if why.By < 0 {
		settle = r.inTurn
	}
	verdict, err := settle(last, why)
	if err != nil || verdict == nil {
		return nil, cause
	}
	return verdict, nil
}
