package etcdstore

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/muster-pg/muster/wire"
)

// A status is what etcd has of groups, all of it as of one revision. It is read in ranges of bounded size, one after the other: none is
// large for etcd, and votes go on between them. Nothing at etcd says when it was put there: times are known only where ranks have said so.

// How much is read at once, and in all.
const (
	statusFirst = 64      // keys of a range of which nothing is known yet
	statusKeys  = 4096    // keys of any
	statusBytes = 1 << 20 // of a range, by the size of those before it
	statusVotes = 1 << 18 // votes of a generation that are looked at: those of more ranks than it has, for several calls
	statusEnded = 16      // generations that are over and failed: the last ones
)

// notKnown is the value of a number, or of a time, that etcd cannot know.
const notKnown = -1

// viewer makes a status.
type viewer struct {
	e      *Engine
	prefix string
	now    time.Time
	rev    int64 // as of which it is; 0 until the first answer
	loose  bool  // it is of several moments, since that revision does not stay
	all    wire.Status
}

// status answers OpStatus in one page.
func (e *Engine) status(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	v := &viewer{e: e, prefix: req.Key, now: time.Now()}
	err := v.look(ctx)
	if is2(err, rpctypes.ErrGRPCCompacted) { // meanwhile, by somebody who keeps no history
		v = &viewer{e: e, prefix: req.Key, now: time.Now(), loose: true}
		err = v.look(ctx)
	}
	if err == nil {
		rep.Keys, rep.Value = wire.AppendStatus([]string{}, []byte{}, &v.all)
	}
	return err
}

func (v *viewer) look(ctx context.Context) error {
	if err := v.rolls(ctx); err != nil {
		return err
	}
	n, err := v.generations(ctx)
	if err != nil || v.prefix != "" {
		return err
	}
	keys, err := v.e.counted.count(func() (int64, error) {
		resp, err := v.e.get(ctx, v.e.root.entry(""), prefixed, countOnly, at(v.rev))
		return resp.GetCount(), err
	})
	if err != nil {
		return err
	}
	v.all.Server = &wire.ServerStatus{
		Up: notKnown, Durable: true, Groups: int64(n), Keys: keys, Sessions: notKnown, Calls: notKnown, Bytes: notKnown,
		Conns: notKnown, Came: notKnown, Refused: notKnown, Slow: notKnown, Lost: notKnown, Watching: notKnown, History: notKnown,
		Compacted: notKnown, Log: notKnown,
	}
	return nil
}

// tally is how many keys there were. etcd looks at each of them to count them, while it takes no vote: so that is a hundredth of the time
// at most.
type tally struct {
	mu   sync.Mutex // protects the fields below
	n    int64
	next time.Time // until then n is good enough
}

func (t *tally) count(ask func() (int64, error)) (n int64, err error) {
	const quick = 10 * time.Millisecond
	began := time.Now()
	t.mu.Lock()
	n, next := t.n, t.next
	t.mu.Unlock()
	if began.Before(next) {
		return n, nil
	}
	if n, err = ask(); err != nil {
		return 0, err
	}
	if took := time.Since(began); took > quick {
		t.mu.Lock()
		t.n, t.next = n, time.Now().Add(100*took)
		t.mu.Unlock()
	}
	return n, nil
}

// scan calls each for the keys from from up to to, until that returns false.
func (v *viewer) scan(ctx context.Context, from, to string, each func(kv *mvccpb.KeyValue) bool, spans ...span) error {
	for some := int64(statusFirst); from < to; {
		resp, err := v.e.get(ctx, from, append(slices.Clip(spans), upTo(to), atMost(some), at(v.rev))...)
		if err != nil {
			return err
		}
		if v.rev == 0 && !v.loose {
			v.rev = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if !each(kv) {
				return nil
			}
			from = string(kv.Key) + "\x00"
		}
		if !resp.More {
			return nil
		}
		some = nextPage(resp)
	}
	return nil
}

// nextPage is how many keys are read after resp.
func nextPage(resp *pb.RangeResponse) int64 {
	n, size := int64(len(resp.Kvs)), int64(1)
	for _, kv := range resp.Kvs {
		size += int64(len(kv.Key) + len(kv.Value))
	}
	return max(1, min(8*n, statusKeys, n*statusBytes/size))
}

// below is what rolls of groups begin with whose names begin with the prefix.
func (v *viewer) below() string { return v.e.root.rolls() + url.PathEscape(v.prefix) }

// nameOf is the group and the run that a roll's key has.
func (k keys) nameOf(roll string) (group, run string) {
	group, run, _ = strings.Cut(strings.TrimPrefix(roll, k.rolls()), "/")
	return unescaped(group), unescaped(run)
}

// unescaped is a name, or what is in its place if it is none.
func unescaped(s string) string {
	if name, err := url.PathUnescape(s); err == nil {
		return name
	}
	return s
}

// rolls tells of groups that come together.
func (v *viewer) rolls(ctx context.Context) error {
	var open []entrance
	var names []string
	err := v.scan(ctx, v.below(), end(v.below()), func(kv *mvccpb.KeyValue) bool {
		if o, is, err := parseEntrance(kv); err == nil && is {
			open, names = append(open, o), append(names, string(kv.Key))
		}
		return true
	})
	for i := 0; i < len(open) && err == nil; i++ {
		err = v.roll(ctx, &open[i], names[i])
	}
	return err
}

func (v *viewer) roll(ctx context.Context, o *entrance, name string) error {
	there, err := v.applicants(ctx, v.e.root.generation(o.gen))
	if err != nil || len(there) == 0 { // who was in it has been killed
		return err
	}
	g := wire.GroupStatus{Size: o.size, Present: len(there), Age: notKnown, Ended: -1, Open: 1}
	g.Name, g.Run = v.e.root.nameOf(name)
	rec := wire.RecordStatus{Verb: "create", Root: -1}
	next := 0
	for _, r := range there {
		rec.Missing.AddSpan(next, r.Rank-1)
		rec.Came.Add(r.Rank)
		rec.For = max(rec.For, r.Ago)
		next = r.Rank + 1
	}
	rec.Missing.AddSpan(next, o.size-1)
	g.Age, g.Ranks, g.Records = rec.For, there, []wire.RecordStatus{rec}
	v.all.Groups = append(v.all.Groups, g)
	return nil
}

// applicants are those who have a seat in a generation that comes together.
func (v *viewer) applicants(ctx context.Context, k generationKeys) (there []wire.RankStatus, err error) {
	err = v.scan(ctx, k.seats(), end(k.seats()), func(kv *mvccpb.KeyValue) bool {
		r := wire.RankStatus{Rank: int(lastNumber(kv.Key)), Session: uint64(kv.Lease), Verb: "create", Ago: notKnown, Heard: notKnown}
		if req, err := parseRequest(kv.Value); err == nil {
			r.Label, r.Ago = req.Group.Label, v.seated(req.ID)
		}
		there = append(there, r)
		return true
	})
	return there, err
}

// seated is how long ago a seat was taken, by its number: that has the time, but for its uppermost byte. See Engine.seatValue.
func (v *viewer) seated(id uint64) time.Duration {
	const year = 365 * 24 * time.Hour
	ago := time.Duration((uint64(v.now.UnixNano())<<8 - id) >> 8)
	if ago > year { // its clock is ahead of this one
		return 0
	}
	return ago
}

// listing is a generation that is, or was, complete.
type listing struct {
	gen  uint64
	name string // the key of its roll
}

// generations tells of those, and returns how many there are.
func (v *viewer) generations(ctx context.Context) (n int, err error) {
	var list []listing
	complete := map[uint64]bool{}
	first := v.e.root.listed(0)
	first = first[:len(first)-len(hex(0))]
	err = v.scan(ctx, first, end(first), func(kv *mvccpb.KeyValue) bool {
		gen := lastNumber(kv.Key)
		complete[gen] = true
		if strings.HasPrefix(string(kv.Value), v.below()) {
			list = append(list, listing{gen, string(kv.Value)})
		}
		return true
	})
	var over []wire.GroupStatus
	for i := 0; i < len(list) && err == nil; i++ {
		var s *wire.GroupStatus
		switch s, err = v.generation(ctx, list[i], complete); {
		case s == nil:
		case s.Ended < 0:
			v.all.Groups = append(v.all.Groups, *s)
		default:
			over = append(over, *s)
			over = over[max(0, len(over)-statusEnded):]
		}
	}
	v.all.Groups = append(v.all.Groups, over...)
	return len(complete), err
}

// ago is how long ago something was, by another process's clock.
func (v *viewer) ago(at time.Time) time.Duration { return max(0, v.now.Sub(at)) }

// said is what a rank says that it waits in.
type said struct {
	what string
	ago  time.Duration
}

// parseSaid is what seat.says has put there.
func (v *viewer) parseSaid(value string) (s said, ok bool) {
	i := strings.LastIndexByte(value, '|')
	if i < 0 {
		return s, false
	}
	began, err := time.Parse(time.RFC3339Nano, value[i+1:])
	return said{value[:i], v.ago(began)}, err == nil
}

// wait is the send or recv that a rank waits in. Its tag is known to nobody else.
func (s said) wait() (w wire.WaitStatus, ok bool) {
	w.For = s.ago
	for verb, words := range map[string]string{"send": "send to rank %d", "recv": "recv from rank %d"} {
		if n, _ := fmt.Sscanf(s.what, words, &w.Peer); n == 1 {
			w.Verb = verb
			return w, true
		}
	}
	return w, false
}
