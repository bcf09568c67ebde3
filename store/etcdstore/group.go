package etcdstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// group is a generation as this engine follows it, while one of its ranks is here: the verdicts of its records, why it is revoked, and
// who is gone. Two goroutines of the engine watch for that.
type group struct {
	e    *Engine
	gen  uint64
	keys generationKeys
	ctx  context.Context // while it is followed
	end  context.CancelFunc

	mu      sync.Mutex // protects the fields below
	users   int        // seats, and calls that wait for the roll
	changed chan struct{}
	roll    *roll
	over    *wire.Reply // why it is revoked
	all     *wire.Reply // and what that means for open records
	decided map[string]map[uint64]*wire.Reply
	gone    map[int]wire.Code
}

// follow begins to follow a generation from a revision on, or goes on with that. Whoever calls it calls letGo too.
func (e *Engine) followed(gen uint64, from int64) *group {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.groups[gen]; g != nil {
		g.mu.Lock()
		g.users++
		g.mu.Unlock()
		return g
	}
	g := &group{
		e: e, gen: gen, keys: e.root.generation(gen), users: 1, changed: make(chan struct{}),
		decided: map[string]map[uint64]*wire.Reply{}, gone: map[int]wire.Code{},
	}
	g.ctx, g.end = context.WithCancel(e.life)
	e.groups[gen] = g
	if !e.closed {
		e.running.Go(func() { g.watchVerdicts(from) })
	}
	return g
}

func (g *group) letGo() {
	g.e.mu.Lock()
	defer g.e.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users--; g.users == 0 {
		g.end()
		delete(g.e.groups, g.gen)
	}
}

// watchVerdicts learns what is decided, in its order: a record that is not decided when the generation is revoked for all never is otherwise.
func (g *group) watchVerdicts(from int64) {
	learn := func(events []*clientv3.Event) bool {
		for _, ev := range events {
			g.learn(ev.Kv)
		}
		return false
	}
	for g.ctx.Err() == nil {
		err := g.e.watch(g.ctx, g.keys.verdicts(), from, learn, clientv3.WithPrefix(), clientv3.WithFilterDelete())
		if !errors.Is(err, store.ErrCompacted) && !g.failed(err) {
			return
		}
		resp, err := g.e.get(g.ctx, g.keys.verdicts(), prefixed)
		if err != nil {
			continue
		}
		for _, kv := range resp.Kvs {
			g.learn(kv)
		}
		from = resp.Header.Revision + 1
	}
}

// failed tells of a watch that etcd refuses, and waits before it is tried again: rights may come back. Those who wait for a record look by
// themselves meanwhile. It reports false when the generation is not followed any more.
func (g *group) failed(err error) bool {
	if g.ctx.Err() != nil {
		return false
	}
	g.e.o.Logger.Warn("etcd: watch", "generation", g.gen, "err", err)
	return rest(g.ctx, jitter(lookMost)) == nil
}

// learn takes in what is below the generation's verdicts.
func (g *group) learn(kv *mvccpb.KeyValue) {
	rep, err := parseReply(kv.Value)
	if err != nil {
		g.e.o.Logger.Warn("etcd: this is no verdict", "key", string(kv.Key), "err", err)
		return
	}
	switch key := string(kv.Key); key {
	case g.keys.rolled():
		g.rolled(rep, kv.ModRevision)
	case g.keys.over():
		g.set(func() { g.over = rep })
	case g.keys.all():
		g.set(func() { g.all = rep })
	case g.keys.shrink():
	default:
		channel, seq, ok := strings.Cut(strings.TrimPrefix(key, g.keys.verdicts()+"c/"), "/")
		if ok {
			g.set(func() { g.note(channel, lastNumber([]byte("/"+seq)), rep) })
		}
	}
}

// note keeps the verdict of a record. Called with mu.
func (g *group) note(channel string, seq uint64, rep *wire.Reply) {
	if g.decided[channel] == nil {
		g.decided[channel] = map[uint64]*wire.Reply{}
	}
	if g.decided[channel][seq] == nil {
		g.decided[channel][seq] = rep
	}
}

// set changes what is known, and wakes those who wait.
func (g *group) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	close(g.changed)
	g.changed = make(chan struct{})
}

// watchSeats learns who is gone: who has left has said so, and who is lost has a seat no more.
func (g *group) watchSeats(from int64) {
	learn := func(events []*clientv3.Event) bool {
		for _, ev := range events {
			how := wire.CodeLost
			if ev.Type == clientv3.EventTypePut {
				if how = wire.CodeLeft; string(ev.Kv.Value) != leftSeat {
					continue
				}
			}
			g.leaves(int(lastNumber(ev.Kv.Key)), how)
		}
		return false
	}
	for g.ctx.Err() == nil {
		err := g.e.watch(g.ctx, g.keys.seats(), from, learn, clientv3.WithPrefix())
		if !errors.Is(err, store.ErrCompacted) && !g.failed(err) {
			return
		}
		if rev, err := g.lookAtSeats(g.ctx); err == nil {
			from = rev + 1
		}
	}
}

// lookAtSeats learns who is gone from who is there.
func (g *group) lookAtSeats(ctx context.Context) (rev int64, err error) {
	resp, err := g.e.get(ctx, g.keys.seats(), prefixed)
	if err != nil {
		return 0, err
	}
	there := map[int]bool{}
	for _, kv := range resp.Kvs {
		there[int(lastNumber(kv.Key))] = true
		if string(kv.Value) == leftSeat {
			g.leaves(int(lastNumber(kv.Key)), wire.CodeLeft)
		}
	}
	for _, id := range g.roll.ids {
		if !there[id] {
			g.leaves(id, wire.CodeLost)
		}
	}
	return resp.Header.Revision, nil
}

// leaves notes that a seat is empty. If its rank is lost the generation is revoked.
func (g *group) leaves(id int, how wire.Code) {
	rank := g.roll.rankOf(id)
	first := false
	g.set(func() {
		if first = rank >= 0 && g.gone[rank] == wire.CodeOK; first {
			g.gone[rank] = how
		}
	})
	if first && how == wire.CodeLost {
		g.e.run(func() {
			v := &wire.Verdict{Code: how, By: -1, Lost: []int{rank}, Reason: g.roll.labels[rank]}
			_ = g.revoke(g.ctx, v, false)
		})
	}
}

// revoke ends the generation: for what comes later, and if all is true for what is open too. The first one counts.
func (g *group) revoke(ctx context.Context, v *wire.Verdict, all bool) error {
	if !all && g.awaitRevoked(ctx) {
		return nil
	}
	value := encodeVerdict(failed(v))
	over := opTxn([]cond{absent(g.keys.over())}, []op{opPut(g.keys.over(), value, 0)}, nil)
	when, then := []cond{present(g.keys.rolled())}, []op{over}
	if all {
		when, then = append(when, absent(g.keys.all())), append(then, opPut(g.keys.all(), value, 0))
	}
	_, err := g.e.txn(ctx, when, then, nil)
	return err
}

// awaitRevoked waits a moment for somebody else to revoke the generation: all have heard of a loss at once.
func (g *group) awaitRevoked(ctx context.Context) bool {
	turn := time.NewTimer(g.turn())
	defer turn.Stop()
	for {
		s := g.state()
		if s.over != nil {
			return true
		}
		select {
		case <-s.changed:
		case <-turn.C:
			return false
		case <-ctx.Done():
			return true
		}
	}
}

// turn is how long this rank leaves it to others to decide what all of them can: the first who does spares them that.
func (g *group) turn() time.Duration {
	n := 0
	if s := g.state(); s.roll != nil {
		n = len(s.roll.ids)
	}
	if n < 4 {
		return 0
	}
	return jitter(min(time.Duration(n)*500*time.Microsecond, store.Grace/3))
}

// known is what is known of a generation at a moment.
type known struct {
	roll      *roll
	over, all *wire.Reply
	changed   <-chan struct{} // closed when it is no longer so
}

func (g *group) state() known {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := known{g.roll, g.over, g.all, g.changed}
	if k.over == nil {
		k.over = g.all
	}
	return k
}

func (g *group) goneness(rank int) wire.Code {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gone[rank]
}

// absence is the answer to a call that needs rank, if that is gone, or if the generation is revoked; nil if it is not.
func (g *group) absence(rank int) *wire.Reply {
	rep := wire.Reply{}
	switch g.goneness(rank) {
	case wire.CodeLost:
		rep = failed(&wire.Verdict{Code: wire.CodeLost, By: -1, Lost: []int{rank}, Reason: g.roll.labels[rank]})
	case wire.CodeLeft:
		rep = failed(&wire.Verdict{Code: wire.CodeLeft, By: -1, Left: []int{rank}})
	default:
		return g.state().over
	}
	return &rep
}

// encodeVerdict is rep as it is kept at etcd.
func encodeVerdict(rep wire.Reply) string {
	return string(wire.AppendReply(nil, wire.OpCollect, 0, &rep))
}

func parseReply(b []byte) (*wire.Reply, error) {
	h, err := wire.ParseHeader(b, wire.MaxReply)
	if err != nil {
		return nil, err
	}
	var rep wire.Reply
	return &rep, rep.Parse(h, b[wire.HeaderLen:])
}

func parseRequest(b []byte) (*wire.Request, error) {
	h, err := wire.ParseHeader(b, wire.MaxBody)
	if err != nil {
		return nil, err
	}
	var req wire.Request
	return &req, req.Parse(h, b[wire.HeaderLen:])
}
