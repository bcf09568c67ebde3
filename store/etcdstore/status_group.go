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

// sight is a generation as etcd has it at one revision.
type sight struct {
	v        *viewer
	keys     generationKeys
	roll     *roll
	over     *wire.Reply
	all      bool   // what was open is over too
	shrink   uint64 // the generation of its survivors; 0: none
	seats    map[int]uint64
	says     map[int]said
	calls    map[string]*wire.Request // by channel and hash
	channels map[string]*lane
	failures []failure
	votes    int
}

// lane is a channel of a sight.
type lane struct {
	channel
	top  uint64       // the last record that has a verdict
	last map[int]cast // by rank
}

// cast is a rank's last vote on a channel.
type cast struct {
	ballot
	rev int64
}

// failure is the verdict of a record that was no success.
type failure struct {
	lane    *lane
	seq     uint64
	rev     int64
	verdict wire.Verdict
}

// What a status holds of failures.
const (
	statusFailures = 8  // of a generation: the last ones
	statusNamed    = 64 // ranks of a list in one
)

// generation is what there is to tell of a generation; nil if it is over, and nothing failed.
func (v *viewer) generation(ctx context.Context, l listing, complete map[uint64]bool) (*wire.GroupStatus, error) {
	g := &sight{
		v: v, keys: v.e.root.generation(l.gen), seats: map[int]uint64{}, says: map[int]said{}, calls: map[string]*wire.Request{}, channels: map[string]*lane{},
	}
	if err := g.read(ctx); err != nil || g.roll == nil {
		return nil, err
	}
	s := &wire.GroupStatus{Generation: l.gen, Size: len(g.roll.ids), Age: notKnown, Ended: -1}
	s.Name, s.Run = v.e.root.nameOf(l.name)
	ranks := g.ranks()
	var lost []int
	for i := range ranks {
		switch ranks[i].Gone {
		case wire.CodeOK:
			s.Present++
		case wire.CodeLost:
			lost = append(lost, i)
		}
	}
	if g.over != nil && g.over.Verdict != nil {
		s.Over = told(g.over.Verdict)
	}
	if s.Over == nil && len(lost) > 0 { // nobody has said so yet, or there was nobody who could
		s.Over = told(&wire.Verdict{Code: wire.CodeLost, By: -1, Lost: lost, Reason: g.roll.labels[lost[0]]})
	}
	s.Verdicts = g.verdicts()
	if s.Present > 0 {
		s.Ranks = ranks
		g.records(s)
		return s, g.survivors(ctx, s, complete)
	}
	if s.Over == nil && len(s.Verdicts) == 0 {
		return nil, nil
	}
	s.Ended = 0 // nobody knows since when
	return s, nil
}

// part is a range of a generation's keys.
type part struct {
	prefix string
	first  int64
	spans  []span
	take   func(kv *mvccpb.KeyValue) bool
}

// read reads the beginning of all that is of interest at once, which is all there is of most generations, and then the rest.
func (g *sight) read(ctx context.Context) error {
	k := g.keys
	parts := []part{
		{k.verdicts(), statusFirst, nil, g.verdict},
		{k.seats(), statusKeys, []span{keysOnly}, g.seat},
		{k.calls(), statusFirst, nil, g.call},
		{k.votes(), 4 * statusFirst, nil, g.vote},
		{string(k) + "w/", 4 * statusFirst, nil, g.doing},
	}
	var gets []op
	for _, p := range parts {
		gets = append(gets, opGet(p.prefix, append(p.spans, prefixed, atMost(p.first), at(g.v.rev))...))
	}
	resp, err := g.v.e.txn(ctx, nil, gets, nil)
	for i := 0; i < len(parts) && err == nil; i++ {
		p, page := parts[i], resp.Responses[i].GetResponseRange()
		from := p.prefix
		for _, kv := range page.Kvs {
			p.take(kv)
			from = string(kv.Key) + "\x00"
		}
		if page.More {
			err = g.v.scan(ctx, from, end(p.prefix), p.take, p.spans...)
		}
	}
	return err
}

// lane is a channel by its name in keys.
func (g *sight) lane(name string) *lane {
	l := g.channels[name]
	if l == nil {
		l = &lane{channel: channel{name: name, keys: channelKeys{votes: g.keys.votes() + name + "/"}}, last: map[int]cast{}}
		g.channels[name] = l
	}
	return l
}

// verdict takes in what is below a generation's verdicts.
func (g *sight) verdict(kv *mvccpb.KeyValue) bool {
	key := string(kv.Key)
	if key == g.keys.shrink() {
		g.shrink = uint64(kv.CreateRevision)
		return true
	}
	rep, err := parseReply(kv.Value)
	if err != nil {
		return true
	}
	switch key {
	case g.keys.rolled():
		if rep.Code == wire.CodeOK && len(rep.Keys) > len(rep.Values) {
			g.roll = parseRoll(rep)
		}
	case g.keys.over():
		g.over = rep
	case g.keys.all():
		g.all, g.over = true, cmp.Or(g.over, rep)
	default:
		name, _, _ := strings.Cut(strings.TrimPrefix(key, g.keys.verdicts()+"c/"), "/")
		l := g.lane(name)
		l.top = max(l.top, lastNumber(kv.Key))
		if rep.Code != wire.CodeOK && rep.Verdict != nil {
			g.failures = append(g.failures, failure{l, lastNumber(kv.Key), kv.ModRevision, *rep.Verdict})
		}
	}
	return true
}

// seat takes in whose process holds a seat: none if its rank has left, since that is under no lease.
func (g *sight) seat(kv *mvccpb.KeyValue) bool {
	g.seats[int(lastNumber(kv.Key))] = uint64(kv.Lease)
	return true
}

func (g *sight) call(kv *mvccpb.KeyValue) bool {
	if req, err := parseRequest(kv.Value); err == nil {
		g.calls[strings.TrimPrefix(string(kv.Key), g.keys.calls())] = req
	}
	return true
}

func (g *sight) vote(kv *mvccpb.KeyValue) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), g.keys.votes()), "/")
	l := g.lane(name)
	b, ok := l.parseBallot(kv)
	if before := l.last[b.rank]; ok && g.callOf(l, b.call) != nil && (before.rev == 0 || b.seq > before.seq) {
		l.last[b.rank] = cast{b, kv.ModRevision}
	}
	g.votes++
	return g.votes < statusVotes
}

func (g *sight) doing(kv *mvccpb.KeyValue) bool {
	if s, ok := g.v.parseSaid(string(kv.Value)); ok {
		g.says[int(lastNumber(kv.Key))] = s
	}
	return true
}

// callOf is what ranks agree on by a hash; nil if nobody knows.
func (g *sight) callOf(l *lane, hash string) *wire.Contribution {
	if req := g.calls[l.name+"/"+hash]; req != nil {
		return &req.Group
	}
	return nil
}

// ranks are those of the roll, each with its last call.
func (g *sight) ranks() []wire.RankStatus {
	ranks := make([]wire.RankStatus, len(g.roll.ids))
	for rank, id := range g.roll.ids {
		r := wire.RankStatus{Rank: rank, Label: g.roll.labels[rank], Ago: notKnown, Heard: notKnown}
		session, there := g.seats[id]
		switch {
		case !there:
			r.Gone = wire.CodeLost
		case session == 0:
			r.Gone = wire.CodeLeft
		}
		r.Session = session
		g.last(&r)
		if w, ok := g.says[rank].wait(); ok && r.Gone == wire.CodeOK {
			r.Waits = []wire.WaitStatus{w}
		}
		ranks[rank] = r
	}
	return ranks
}

// last adds a rank's last call, on whatever channel.
func (g *sight) last(r *wire.RankStatus) {
	rev := int64(0)
	for _, l := range g.channels {
		b, ok := l.last[r.Rank]
		if !ok || b.rev <= rev {
			continue
		}
		c := g.callOf(l, b.call)
		rev, r.Verb, r.Seq, r.Ago = b.rev, c.Verb, b.seq, g.since(r.Rank, c, b.seq)
	}
}

// since is for how long a rank says that it has been in a call.
func (g *sight) since(rank int, c *wire.Contribution, seq uint64) time.Duration {
	if s, ok := g.says[rank]; ok && s.what == fmt.Sprintf("%s #%d", core.Describe(c), seq) {
		return s.ago
	}
	return notKnown
}

// open is a record that has votes, and no verdict.
type open struct {
	lane *lane
	seq  uint64
	c    *wire.Contribution
	rev  int64 // of its first vote
}

// records tells of the oldest records that are open. Of each rank only the last vote can be in one.
func (g *sight) records(s *wire.GroupStatus) {
	if g.all {
		return
	}
	var list []open
	for _, l := range g.channels {
		of := map[uint64]open{}
		for _, b := range l.last {
			if at, there := of[b.seq]; b.seq > l.top && (!there || b.rev < at.rev) {
				of[b.seq] = open{l, b.seq, g.callOf(l, b.call), b.rev}
			}
		}
		for _, o := range of {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b open) int { return cmp.Compare(a.rev, b.rev) })
	s.Open = len(list)
	for _, o := range list[:min(len(list), wire.StatusRecords)] {
		s.Records = append(s.Records, g.record(o, s.Ranks))
	}
}

func (g *sight) record(o open, ranks []wire.RankStatus) wire.RecordStatus {
	s := wire.RecordStatus{Channel: unescaped(o.lane.name), Seq: o.seq, Verb: o.c.Verb, Root: o.c.Root, For: notKnown}
	for rank := range ranks {
		switch b, ok := o.lane.last[rank]; {
		case ok && b.seq == o.seq:
			s.Came.Add(rank)
			s.For = max(s.For, g.since(rank, o.c, o.seq))
		case !o.c.RootOnly || rank == o.c.Root:
			s.Missing.Add(rank)
		}
	}
	if s.Missing.Count == 0 && o.c.RootOnly { // its root waits for room
		s.Missing = o.slowest(ranks)
	}
	return s
}

// slowest are the readers of a root that are furthest behind.
func (o *open) slowest(ranks []wire.RankStatus) (slowest wire.Ranks) {
	low := o.seq
	for rank := range ranks {
		if at := o.lane.last[rank].seq; rank != o.c.Root && ranks[rank].Gone == wire.CodeOK {
			if at < low {
				low, slowest = at, wire.Ranks{}
			}
			if at == low {
				slowest.Add(rank)
			}
		}
	}
	return slowest
}

// survivors tells of the generation of survivors, while that comes together.
func (g *sight) survivors(ctx context.Context, s *wire.GroupStatus, complete map[uint64]bool) error {
	if g.shrink == 0 || complete[g.shrink] {
		return nil
	}
	come, err := g.v.applicants(ctx, g.v.e.root.generation(g.shrink))
	if err != nil || len(come) == 0 {
		return err
	}
	rec := wire.RecordStatus{Verb: "shrink", Root: -1, For: notKnown}
	seated := map[int]bool{}
	for _, r := range come {
		seated[r.Rank] = true
		rec.For = max(rec.For, r.Ago)
	}
	for rank := range g.roll.ids {
		switch {
		case seated[rank]:
			rec.Came.Add(rank)
		case s.Ranks[rank].Gone == wire.CodeOK:
			rec.Missing.Add(rank)
		}
	}
	s.Open++
	s.Records = append(s.Records, rec)
	return nil
}

// verdicts are the last failures, as far as they are kept: the next success takes out those before it.
func (g *sight) verdicts() (list []wire.VerdictStatus) {
	slices.SortFunc(g.failures, func(a, b failure) int { return cmp.Compare(a.rev, b.rev) })
	for _, f := range g.failures[max(0, len(g.failures)-statusFailures):] {
		s := told(&f.verdict)
		s.Channel, s.Seq, s.Verb = unescaped(f.lane.name), f.seq, g.verbOf(f.lane, f.seq)
		list = append(list, *s)
	}
	return list
}

// verbOf is the verb of a record, as far as its votes still tell.
func (g *sight) verbOf(l *lane, seq uint64) string {
	for _, b := range l.last {
		if b.seq == seq {
			return g.callOf(l, b.call).Verb
		}
	}
	return "a call"
}

// told is v with not too much in it.
func told(v *wire.Verdict) *wire.VerdictStatus {
	s := &wire.VerdictStatus{Ago: notKnown, Verdict: *v}
	for _, ranks := range []*[]int{&s.Verdict.Missing, &s.Verdict.Lost, &s.Verdict.Left} {
		s.More += max(0, len(*ranks)-statusNamed)
		*ranks = (*ranks)[:min(len(*ranks), statusNamed)]
	}
	return s
}
