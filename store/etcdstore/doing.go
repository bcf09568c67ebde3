package etcdstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(mostLooked), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend)}
	gets := []clientv3.Op{clientv3.OpGet(g.keys.votes(), opts...), clientv3.OpGet(g.keys.verdicts()+"c/", clientv3.WithPrefix(), clientv3.WithKeysOnly())}
	for _, rank := range ranks {
		gets = append(gets, clientv3.OpGet(g.keys.doing(rank)))
	}
	resp, err := g.e.txn(ctx, nil, gets, nil)
	if err != nil {
		for range ranks {
			what = append(what, "unknown")
		}
		return what
	}
	decided := map[string]bool{}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		decided[strings.TrimPrefix(string(kv.Key), g.keys.verdicts()+"c/")] = true
	}
	open, last := map[int]string{}, map[int]string{}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		key := string(kv.Key)
		record := recordOf(strings.TrimPrefix(key, g.keys.votes()))
		rank := int(lastNumber(kv.Key))
		switch {
		case strings.Contains(key, "/"+skipMark+"/"):
		case decided[record] && last[rank] == "":
			last[rank] = key
		case !decided[record] && open[rank] == "":
			open[rank] = key
		}
	}
	for i, rank := range ranks {
		said := ""
		if kv := found(resp.Responses[2+i]); kv != nil {
			said = string(kv.Value)
		}
		what = append(what, g.doingOf(ctx, rank, said, open[rank], last[rank]))
	}
	return what
}

// recordOf is the channel and the sequence of a vote's key, without what all votes begin with.
func recordOf(key string) string {
	parts := strings.SplitN(key, "/", 3)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

func (g *group) doingOf(ctx context.Context, rank int, said, open, last string) string {
	switch g.goneness(rank) {
	case wire.CodeLost:
		return "lost"
	case wire.CodeLeft:
		return "left"
	}
	for _, x := range []struct{ key, format string }{{open, "in %s #%d for %s"}, {last, "in no call; its last was %s #%d, %s ago"}} {
		if said != "" {
			break
		}
		if x.key == "" {
			continue
		}
		kv, err := g.e.entry(ctx, x.key)
		if err != nil || kv == nil {
			continue
		}
		if req, err := parseRequest(kv.Value); err == nil {
			return fmt.Sprintf(x.format, describe(&req.Group), req.Group.Seq, since(time.Unix(0, int64(req.ID))))
		}
	}
	if what, at, ok := strings.Cut(said, "|"); ok {
		began, _ := time.Parse(time.RFC3339Nano, at)
		return fmt.Sprintf("in %s for %s", what, since(began))
	}
	return "in no call"
}

// describe is a verb as its caller would write it.
func describe(c *wire.Contribution) string {
	s := c.Verb
	if c.Root >= 0 {
		s += fmt.Sprintf("(root %d)", c.Root)
	}
	if c.Channel != "" {
		s += " on channel " + c.Channel
	}
	return s
}

// since is how long ago a time of another process's clock was, to two digits that matter.
func since(at time.Time) time.Duration {
	d := max(0, time.Since(at))
	for unit := time.Duration(1); ; unit *= 10 {
		if d/unit < 100 {
			return d / unit * unit
		}
	}
}

// says tells others what a rank waits in, once it has waited for a moment: most do not. The result takes that back.
func (st *seat) says(what string) (done func()) {
	began := time.Now().Format(time.RFC3339Nano)
	key := st.g.keys.doing(st.rank)
	ctx, cancel := context.WithCancel(st.ctx)
	ended := make(chan struct{})
	st.g.e.run(func() {
		defer close(ended)
		if rest(ctx, saysAfter) != nil {
			return
		}
		put := clientv3.OpPut(key, what+"|"+began, clientv3.WithLease(st.s.lease))
		if _, err := st.g.e.txn(st.ctx, []clientv3.Cmp{st.held()}, []clientv3.Op{put}, nil); err != nil {
			return
		}
		<-ctx.Done()
		_, _ = st.g.e.txn(st.ctx, nil, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	})
	return func() {
		cancel()
		select {
		case <-ended:
		case <-st.g.e.life.Done():
		}
	}
}

const saysAfter = 50 * time.Millisecond
