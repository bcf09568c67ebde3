package etcdstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// A verdict is a key that is created once: whoever loses that race takes what is there. A no is created on the condition that no vote has
// come since the votes were read that it is about, so that it names nobody who has voted.

// succeed decides the record by everybody's yes, or the root's, if when is so too.
func (r *record) succeed(ctx context.Context, when []cond, by string) (*wire.Reply, error) {
	var folded []byte
	if r.c.Fold.Valid() {
		var err error
		if folded, err = r.fold(ctx); err != nil {
			return nil, err
		}
		if len(folded) > mostFolded {
			folded = nil
		}
	}
	if !r.c.RootOnly { // it takes out what is of other records
		when = append(slices.Clip(when), r.ch.keys.undecided(r.c.Seq))
	}
	yes, then := r.yes(folded, by)
	verdict, err := r.create(ctx, when, then)
	if err == nil && verdict == nil {
		verdict = yes
	}
	return verdict, err
}

// mostFolded is the size of a fold that a verdict brings to all. Of a larger one each makes its own.
const mostFolded = 64 << 10

// The type of a verdict says how it came to everybody's yes.
const (
	byAll   = "all"   // every rank has a key for the call
	byPurge = "purge" // the same, and the keys for other calls were taken out
)

// mostCalls is for how many calls of a channel ranks have keys, before those of others are taken out.
const mostCalls = 8

// yes is the verdict of success, which brings the vote that came last, and what puts it there. With everybody's yes, all have passed what came before: that is freed.
func (r *record) yes(folded []byte, by string) (*wire.Reply, []op) {
	cast := r.c
	cast.Reason = ""
	yes := &wire.Reply{Value: folded, Verdict: &wire.Verdict{By: -1, Clash: []wire.Contribution{cast}}}
	if r.c.RootOnly {
		return yes, []op{opPut(r.verdict(), encodeVerdict(*yes), 0)}
	}
	r.mu.Lock()
	then := r.ch.free(r.c.Seq)
	r.mu.Unlock()
	yes.Type = by
	r.mu.Lock()
	crowd := len(r.ch.whole) >= mostCalls && !r.ch.whole[r.call]
	r.mu.Unlock()
	if crowd && by != "" {
		yes.Type = byPurge
		k, own := r.ch.keys, r.votes
		then = append(then,
			opDelete(k.votes+"c", upTo(own)), opDelete(end(own), upTo(k.votes+rootsCall)),
			opDelete(k.calls, upTo(k.calls+r.call)), opDelete(k.calls+r.call+"\x00", upTo(end(k.calls))))
	}
	return yes, append(then, opPut(r.verdict(), encodeVerdict(*yes), 0))
}

// free deletes what is left of records before seq. etcd looks at every key of a range that it has not compacted yet, also if that was
// deleted long ago: so the range begins where the last one ended, and now and then at the beginning, for what came late. Called with mu.
func (ch *channel) free(seq uint64) []op {
	const all = 512
	if seq <= 1 {
		return nil
	}
	k, from := ch.keys, hex(ch.freed)
	if seq%all == 0 || ch.freed >= seq {
		from = ""
	}
	then := []op{opDelete(k.verdicts+from, upTo(k.verdicts+hex(seq)))}
	if ch.given || from == "" {
		then = append(then, opDelete(k.payloads+from, upTo(k.payloads+hex(seq))))
	}
	return then
}

// create creates the verdict, if when is so. It returns the verdict that is there instead; nil without an error is that it was created.
func (r *record) create(ctx context.Context, when []cond, then []op) (*wire.Reply, error) {
	when = append([]cond{absent(r.verdict()), absent(r.g.keys.all())}, when...)
	resp, err := r.g.e.txn(ctx, when, then, []op{opGet(r.verdict()), opGet(r.g.keys.all())})
	if err != nil || resp.Succeeded {
		return nil, err
	}
	for _, x := range resp.Responses {
		if kv := found(x); kv != nil {
			return parseReply(kv.Value)
		}
	}
	return nil, errVoted
}

// errVoted is that somebody has voted meanwhile.
var errVoted = fmt.Errorf("etcdstore: somebody has voted meanwhile")

// settle looks at all votes, and decides the record if they do, or if why does: a no, or a time that is over. nil is that it stays open.
func (r *record) settle(ctx context.Context, why *wire.Verdict) (*wire.Reply, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		gets := []op{
			opGet(r.ch.keys.votes, prefixed), opGet(r.verdict()), opGet(r.g.keys.all()),
			opGet(r.ch.keys.calls, prefixed),
		}
		resp, err := r.g.e.txn(ctx, nil, gets, nil)
		if err != nil {
			return nil, err
		}
		for _, x := range resp.Responses[1:3] {
			if kv := found(x); kv != nil {
				return parseReply(kv.Value)
			}
		}
		votes, err := r.read(resp.Responses[0].GetResponseRange().Kvs, resp.Responses[3].GetResponseRange().Kvs)
		if err != nil {
			return nil, err
		}
		verdict, err := r.judged(ctx, votes, why, resp.Header.Revision)
		if err != errVoted { //nolint:errorlint // it is nobody else's
			return verdict, err
		}
		if err := rest(ctx, jitter(pause)); err != nil {
			return nil, err
		}
	}
}

// judged decides the record by its votes, as they were at a revision.
func (r *record) judged(ctx context.Context, votes *votes, why *wire.Verdict, rev int64) (*wire.Reply, error) {
	v, yes := r.judge(votes, why)
	switch {
	case yes:
		of := *r
		of.c.Rank = votes.casts[len(votes.casts)-1].Rank // who came last
		return of.succeed(ctx, nil, "")
	case v == nil:
		return nil, nil
	}
	v.Waited = time.Since(r.began)
	r.describe(ctx, v)
	rep := failed(v)
	when, then := []cond{unchanged(r.ch.keys.votes, rev)}, []op{opPut(r.verdict(), encodeVerdict(rep), 0)}
	if why != nil && why.By == r.rank {
		when = append(when, r.held())
	}
	if v.Code == wire.CodeMismatch {
		k, value := r.g.keys, encodeVerdict(rep)
		then = append(then, opPut(k.all(), value, 0))
		then = append(then, opTxn([]cond{absent(k.over())}, []op{opPut(k.over(), value, 0)}, nil))
	}
	verdict, err := r.create(ctx, when, then)
	if verdict == nil && err == nil {
		verdict = &rep
	}
	return verdict, err
}

// votes are those of a record, in the order in which they came.
type votes struct {
	casts   []wire.Contribution
	sizes   []int  // of their payloads
	yes     []bool // by rank
	skipped []int  // ranks that have gone on without a vote
}

// read finds the votes of the record among those of its channel.
func (r *record) read(kvs, calls []*mvccpb.KeyValue) (*votes, error) {
	names := map[string]*wire.Request{}
	for _, kv := range calls {
		req, err := parseRequest(kv.Value)
		if err != nil {
			return nil, fmt.Errorf("etcdstore: %q is no call: %w", kv.Key, err)
		}
		names[strings.TrimPrefix(string(kv.Key), r.ch.keys.calls)] = req
	}
	v := &votes{yes: make([]bool, r.size())}
	beyond := make([]bool, r.size())
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) })
	for _, kv := range kvs {
		b, ok := r.ch.parseBallot(kv)
		switch {
		case !ok || b.rank >= len(beyond):
		case b.seq > r.c.Seq:
			beyond[b.rank] = true
		case b.seq == r.c.Seq && names[b.call] != nil:
			c := names[b.call].Group
			c.Rank, c.Seq, c.Generation = b.rank, b.seq, r.c.Generation
			v.casts, v.sizes = append(v.casts, c), append(v.sizes, int(names[b.call].Timeout))
			v.yes[b.rank] = true
		}
	}
	for rank, on := range beyond {
		if on && !v.yes[rank] {
			v.skipped = append(v.skipped, rank)
		}
	}
	return v, nil
}

// ballot is a vote, as it is kept.
type ballot struct {
	rank int
	seq  uint64
	call string
}

func (ch *channel) parseBallot(kv *mvccpb.KeyValue) (b ballot, ok bool) {
	call, _, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), ch.keys.votes), "/")
	if !ok {
		return b, false
	}
	b.rank, b.call = int(lastNumber(kv.Key)), call
	seq, own, _ := strings.Cut(string(kv.Value), "/")
	if call == rootsCall {
		b.call = own
	}
	b.seq = lastNumber([]byte("/" + seq))
	return b, true
}

// judge says how votes decide: by everybody's yes, or by a no with its reason. Neither is that they do not.
func (r *record) judge(v *votes, why *wire.Verdict) (no *wire.Verdict, yes bool) {
	cast := r.c
	if len(v.casts) > 0 {
		cast = v.casts[0]
	}
	for i, c := range v.casts {
		if !core.Agree(&cast, &c) {
			return clash(&cast, &c), false
		}
		if size := cast.Fold.Kind.Size(); size > 0 && v.sizes[i] != v.sizes[0] {
			reason := fmt.Sprintf("%d numbers to fold, rank %d has %d", v.sizes[i]/size, v.casts[0].Rank, v.sizes[0]/size)
			return &wire.Verdict{Code: wire.CodeInvalid, By: c.Rank, Reason: reason}, false
		}
		if cast.Type == "" && c.Type != "" {
			cast = c
		}
	}
	elects := func(rank int) bool { return !cast.RootOnly || rank == cast.Root }
	var missing []int
	gone := &wire.Verdict{By: -1}
	for rank, voted := range v.yes {
		if !elects(rank) || voted {
			continue
		}
		missing = append(missing, rank)
		switch r.g.goneness(rank) {
		case wire.CodeLost:
			gone.Lost, gone.Code, gone.Reason = append(gone.Lost, rank), wire.CodeLost, r.g.roll.labels[rank]
		case wire.CodeLeft:
			if gone.Left = append(gone.Left, rank); gone.Code == wire.CodeOK {
				gone.Code = wire.CodeLeft
			}
		}
	}
	switch {
	case why != nil && why.By >= 0:
		return refusing(why, missing), false
	case len(v.casts) > 0 && gone.Code != wire.CodeOK:
		return gone, false
	}
	for _, rank := range v.skipped {
		if len(v.casts) > 0 && elects(rank) && !v.yes[rank] {
			return refusing(&wire.Verdict{Code: wire.CodeSkipped, By: rank, Reason: "it went on to a later call"}, missing), false
		}
	}
	return r.complete(v, &cast, missing, why)
}

// complete is judge when nobody stands against a yes.
func (r *record) complete(v *votes, cast *wire.Contribution, missing []int, why *wire.Verdict) (no *wire.Verdict, yes bool) {
	held := cast.RootOnly && r.g.goneness(cast.Root) == wire.CodeOK // its root may be waiting for room
	if len(v.casts) > 0 && len(missing) == 0 && !held {
		return nil, true
	}
	if why == nil {
		return nil, false
	}
	own := *why
	if own.Missing = missing; len(missing) == 0 && held {
		own.Missing = r.slowest()
	}
	return &own, false
}

// refusing is the verdict of a rank's no.
func refusing(why *wire.Verdict, missing []int) *wire.Verdict {
	v := *why
	v.Missing = slices.DeleteFunc(missing, func(rank int) bool { return rank == v.By })
	if len(v.Missing) == 0 {
		v.Missing = nil
	}
	return &v
}

// clash is the verdict of two ranks that disagree.
func clash(a, b *wire.Contribution) *wire.Verdict {
	return &wire.Verdict{Code: wire.CodeMismatch, By: -1, Clash: []wire.Contribution{*a, *b}}
}

// castOf is what ranks have agreed on in a record that has succeeded; nil if it has not.
func castOf(verdict *wire.Reply) *wire.Contribution {
	if verdict.Code != wire.CodeOK || verdict.Verdict == nil || len(verdict.Verdict.Clash) == 0 {
		return nil
	}
	return &verdict.Verdict.Clash[0]
}

// skip has the records fail that the rank has not voted in and that others wait in: nobody is to wait for its vote. Who comes to one of
// them later sees that this rank has gone on: among the votes for other calls, where all look.
func (r *record) skip(ctx context.Context, voted uint64) error {
	resp, err := r.g.e.get(ctx, r.ch.keys.votes, prefixed)
	if err != nil {
		return err
	}
	open := map[uint64]bool{}
	for _, kv := range resp.Kvs {
		if b, ok := r.ch.parseBallot(kv); ok && b.seq > voted && b.seq < r.c.Seq {
			open[b.seq] = true
		}
	}
	x := *r
	on := opPut(r.ch.keys.votes+rootsCall+"/"+short(r.rank), r.at+"/on", 0)
	if _, err := r.g.e.txn(ctx, []cond{r.held()}, []op{on}, nil); err != nil {
		return err
	}
	for seq := range open {
		x.c.Seq = seq
		x.name()
		if _, err := x.settle(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}
