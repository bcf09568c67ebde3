package etcdstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// mostDoing bounds how many missing ranks an error describes; the others are only named.
const mostDoing = 16

// mostLooked bounds how many votes are looked at for that.
const mostLooked = 10_000

// describe adds to v what each of its missing ranks does instead.
func (r *record) describe(ctx context.Context, v *wire.Verdict) {
	if len(v.Missing) > 0 {
		v.Doing = r.g.doing(ctx, v.Missing)
	}
}

// doing says what ranks do instead of what is asked of them: which open record they wait in, or what they said.
func (g *group) doing(ctx context.Context, ranks []int) (what []string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	ranks = ranks[:min(len(ranks), mostDoing)]
	gets := []op{
		opGet(g.keys.votes(), prefixed, atMost(mostLooked), newestFirst),
		opGet(g.keys.verdicts()+"c/", prefixed, keysOnly, atMost(mostLooked)),
		opGet(g.keys.calls(), prefixed),
	}
	for _, rank := range ranks {
		gets = append(gets, opGet(g.keys.doing(rank)))
	}
	resp, err := g.e.txn(ctx, nil, gets, nil)
	if err != nil {
		return nil
	}
	lasts := g.lasts(resp.Responses[:3])
	for i, rank := range ranks {
		said := ""
		if kv := found(resp.Responses[3+i]); kv != nil {
			said = string(kv.Value)
		}
		what = append(what, g.doingOf(rank, said, lasts[rank]))
	}
	return what
}

// lasts says of each rank what it waits in, or was in last: of all channels, the last that is open, or else the last.
func (g *group) lasts(rs []*pb.ResponseOp) map[int]string {
	decided, calls, lasts := map[string]bool{}, map[string]*wire.Request{}, map[int]string{}
	for _, kv := range rs[1].GetResponseRange().Kvs {
		decided[strings.TrimPrefix(string(kv.Key), g.keys.verdicts()+"c/")] = true
	}
	for _, kv := range rs[2].GetResponseRange().Kvs {
		if req, err := parseRequest(kv.Value); err == nil {
			calls[strings.TrimPrefix(string(kv.Key), g.keys.calls())] = req
		}
	}
	waiting := map[int]bool{}
	for _, kv := range rs[0].GetResponseRange().Kvs {
		name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), g.keys.votes()), "/")
		ch := &channel{keys: channelKeys{votes: g.keys.votes() + name + "/"}}
		b, ok := ch.parseBallot(kv)
		call := calls[name+"/"+b.call]
		open := !decided[name+"/"+hex(b.seq)]
		if !ok || call == nil || waiting[b.rank] || !open && lasts[b.rank] != "" {
			continue
		}
		waiting[b.rank] = open
		if lasts[b.rank] = fmt.Sprintf("in no call; its last was %s #%d", core.Describe(&call.Group), b.seq); open {
			lasts[b.rank] = fmt.Sprintf("in %s #%d", core.Describe(&call.Group), b.seq)
		}
	}
	return lasts
}

func (g *group) doingOf(rank int, said, last string) string {
	switch g.goneness(rank) {
	case wire.CodeLost:
		return "lost"
	case wire.CodeLeft:
		return "left"
	}
	if at := strings.LastIndexByte(said, '|'); at >= 0 {
		if began, err := time.Parse(time.RFC3339Nano, said[at+1:]); err == nil {
			return fmt.Sprintf("in %s for %s", said[:at], since(began))
		}
	}
	if last != "" {
		return last
	}
	return "in no call"
}

// since is how long ago a time of another process's clock was.
func since(at time.Time) time.Duration { return core.Rough(max(0, time.Since(at))) }

// says tells others what a rank waits in, and since when. The result takes that back. Nobody waits for either: a call is not to miss its
// deadline for what only others want to know.
func (st *seat) says(what string, began time.Time) (done func()) {
	key, value := st.g.keys.doing(st.rank), what+"|"+began.Format(time.RFC3339Nano)
	over := make(chan struct{})
	st.g.e.run(func() {
		_, _ = st.g.e.txn(st.ctx, []cond{st.held()}, []op{opPut(key, value, st.s.lease)}, nil)
		select {
		case <-over: // another call may have said something meanwhile
			_, _ = st.g.e.txn(st.ctx, []cond{valueIs(key, value)}, []op{opDelete(key)}, nil)
		case <-st.ctx.Done():
		}
	})
	return func() { close(over) }
}

// saysAfter is how long a rank waits in a send or a recv until it says so: most are shorter.
const saysAfter = 50 * time.Millisecond
