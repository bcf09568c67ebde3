package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/muster-pg/muster/wire"
)

// A roll is a key by the group's name and run. The revision at which it was opened is the number of the generation that it becomes. Ranks
// put their seats into that; who sees that all are there completes the roll, if nobody has withdrawn since: a withdrawal changes the key.

// roll is who a generation consists of.
type roll struct {
	gen     uint64
	rev     int64    // at which all were there
	name    string   // the key of the roll
	ids     []int    // of each rank's seat: the rank itself, or of survivors the one that it had
	labels  []string // of each rank
	members [][]byte
	old     []int64 // of a generation of survivors: the rank that each had
}

func (r *roll) rankOf(id int) int { return slices.Index(r.ids, id) }

// encode is a roll as it is kept at etcd.
func (r *roll) encode() string {
	rep := wire.Reply{Rev: r.gen, N: r.rev, Values: r.members, Keys: append(slices.Clip(r.labels), r.name), Nums: r.old}
	return encodeVerdict(rep)
}

func parseRoll(rep *wire.Reply) *roll {
	n := len(rep.Values)
	r := &roll{gen: rep.Rev, rev: rep.N, members: rep.Values, old: rep.Nums, ids: make([]int, n)}
	r.labels, r.name = rep.Keys[:n], rep.Keys[n]
	for rank := range r.ids {
		if r.ids[rank] = rank; r.old != nil {
			r.ids[rank] = int(r.old[rank])
		}
	}
	return r
}

// rolled takes in that the roll is complete, or has failed.
func (g *group) rolled(rep *wire.Reply, _ int64) {
	if rep.Code != wire.CodeOK {
		g.set(func() { g.over, g.all = rep, rep })
		return
	}
	first := false
	g.set(func() {
		if first = g.roll == nil; first {
			g.roll = parseRoll(rep)
		}
	})
	if first {
		g.e.run(func() { g.watchSeats(rep.N + 1) })
	}
}

// entrance is a roll that is open, as it is kept by its name.
type entrance struct {
	gen, live  uint64 // the generation that it becomes; the one that is there already, or 0
	size, rank int    // what the first who came said
	label      string
}

func complete(gen uint64) string { return fmt.Sprintf("complete %d", gen) }

func (o *entrance) encode() string {
	return fmt.Sprintf("open %d %d %d %d %q", o.gen, o.live, o.size, o.rank, o.label)
}

// parseEntrance is the roll that kv has, open or complete. Its generation is in it once it has changed.
func parseEntrance(kv *mvccpb.KeyValue) (o entrance, open bool, err error) {
	var gen uint64
	if _, err = fmt.Sscanf(string(kv.Value), "complete %d", &gen); err == nil {
		return entrance{live: gen}, false, nil
	}
	if _, err = fmt.Sscanf(string(kv.Value), "open %d %d %d %d %q", &o.gen, &o.live, &o.size, &o.rank, &o.label); err != nil {
		return o, false, fmt.Errorf("etcdstore: %q is no roll: %w", kv.Key, err)
	}
	if o.gen == 0 {
		o.gen = uint64(kv.ModRevision)
	}
	return o, true, nil
}

// applicant is a rank that joins.
type applicant struct {
	e       *Engine
	s       *session
	c       *wire.Contribution
	name    string // the key of the roll
	value   string // of the seat
	began   time.Time
	o       entrance
	nameRev int64 // of the roll as this rank knows it
	seatRev int64
	g       *group
}

// maxSize bounds a world size.
const maxSize = 1 << 20

func (e *Engine) join(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	c := &req.Group
	if c.Generation != 0 {
		return e.joinSurvivors(ctx, req, rep)
	}
	if c.Size < 1 || c.Size > maxSize || c.Rank < 0 || c.Rank >= c.Size {
		return refuse(rep, wire.CodeInvalid, "rank %d of %d", c.Rank, c.Size)
	}
	a := &applicant{e: e, c: c, name: e.root.roll(c), value: e.seatValue(req), began: time.Now()}
	var err error
	if a.s, err = e.open(ctx); err != nil {
		return a.outside(ctx, err, rep)
	}
	ctx, cancel := a.s.within(ctx)
	defer cancel()
	for {
		entered, err := a.enter(ctx, rep)
		if err != nil {
			return a.outside(ctx, err, rep)
		}
		if rep.Code != wire.CodeOK {
			return nil
		}
		if entered {
			break
		}
	}
	defer a.g.letGo()
	return a.await(ctx, rep)
}

// seatValue is what a seat says of its rank. The number in it is another one for each call.
func (e *Engine) seatValue(req *wire.Request) string {
	own := wire.Request{Op: wire.OpJoin, ID: uint64(time.Now().UnixNano())<<8 | e.count.Add(1)&0xff, Value: req.Value, Group: req.Group}
	return string(wire.AppendRequest(nil, &own))
}

// enter opens the roll if need be, and puts the seat there; without an error or an answer it is to be called again until it has.
func (a *applicant) enter(ctx context.Context, rep *wire.Reply) (bool, error) {
	kv, err := a.e.entry(ctx, a.name)
	if err != nil {
		return false, err
	}
	if kv == nil {
		return false, a.openRoll(ctx, 0, 0)
	}
	o, open, err := parseEntrance(kv)
	if err != nil {
		return false, err
	}
	if o.live != 0 {
		if held, err := a.isHeld(ctx, o.live, rep); held || err != nil {
			return false, err
		}
	}
	switch {
	case !open:
		return false, a.openRoll(ctx, o.live, kv.ModRevision)
	case o.size != a.c.Size:
		return false, a.disagree(ctx, o, kv, rep)
	}
	a.o, a.nameRev = o, kv.ModRevision
	return a.sit(ctx, rep)
}

// openRoll opens a roll, if its key still has a revision; if not, somebody else has.
func (a *applicant) openRoll(ctx context.Context, live uint64, rev int64) error {
	o := entrance{live: live, size: a.c.Size, rank: a.c.Rank, label: a.c.Label}
	_, err := a.e.txn(ctx, []cond{changedAt(a.name, rev)}, []op{opPut(a.name, o.encode(), 0)}, nil)
	return err
}

// isHeld reports whether the rank is still there in the live generation.
func (a *applicant) isHeld(ctx context.Context, live uint64, rep *wire.Reply) (bool, error) {
	r, err := a.e.rollOf(ctx, live)
	if r == nil || err != nil || a.c.Rank >= len(r.ids) {
		return false, err
	}
	seat, err := a.e.entry(ctx, a.e.root.generation(live).seat(r.ids[a.c.Rank]))
	if err != nil || seat == nil || string(seat.Value) == leftSeat {
		return false, err
	}
	return true, refuse(rep, wire.CodeConflict, "rank %d is held by %s, in generation %d", a.c.Rank, r.labels[a.c.Rank], live)
}

// disagree ends the roll, because the caller came with another world size: everybody in it hears who said what. A roll in which nobody is
// any more is opened anew.
func (a *applicant) disagree(ctx context.Context, o entrance, kv *mvccpb.KeyValue, rep *wire.Reply) error {
	k := a.e.root.generation(o.gen)
	v := &wire.Verdict{
		Code: wire.CodeMismatch, By: -1,
		Reason: fmt.Sprintf("rank %d (%s) has a world size of %d, rank %d (%s) has %d", o.rank, o.label, o.size, a.c.Rank, a.c.Label, a.c.Size),
	}
	same := changedAt(a.name, kv.ModRevision)
	nobody := absent(k.seats(), prefixed)
	anew := entrance{live: o.live, size: a.c.Size, rank: a.c.Rank, label: a.c.Label}
	put := opPut(a.name, anew.encode(), 0)
	closed := a.closed(&o)
	mismatch := opTxn([]cond{same, absent(k.rolled())}, []op{opPut(k.rolled(), encodeVerdict(failed(v)), 0), closed}, nil)
	resp, err := a.e.txn(ctx, []cond{same, nobody}, []op{put}, []op{mismatch})
	if err == nil && !resp.Succeeded && resp.Responses[0].GetResponseTxn().Succeeded {
		*rep = failed(v)
	}
	return err
}

// sit puts the seat into the roll.
func (a *applicant) sit(ctx context.Context, rep *wire.Reply) (bool, error) {
	k := a.e.root.generation(a.o.gen)
	key := k.seat(a.c.Rank)
	when := []cond{absent(key), absent(k.rolled()), changedAt(a.name, a.nameRev)}
	then := []op{opPut(key, a.value, a.s.lease), opGet(k.seats(), prefixed, countOnly)}
	resp, err := a.e.txn(ctx, when, then, []op{opGet(key)})
	if err != nil {
		return false, a.lossOr(ctx, err, rep)
	}
	a.seatRev = resp.Header.Revision
	there := 0
	if resp.Succeeded {
		there = int(resp.Responses[1].GetResponseRange().Count)
	} else {
		kv := found(resp.Responses[0])
		if kv == nil {
			return false, nil // the roll has changed
		}
		if string(kv.Value) != a.value { // otherwise it is an attempt before this one
			return false, a.conflict(kv, rep)
		}
		a.seatRev = kv.CreateRevision
	}
	a.g = a.e.followed(a.o.gen, a.seatRev)
	if there == a.c.Size {
		_ = a.complete(ctx) // if it cannot, who waits tries again
	}
	return true, nil
}

func (a *applicant) conflict(kv *mvccpb.KeyValue, rep *wire.Reply) error {
	who := "somebody"
	if req, err := parseRequest(kv.Value); err == nil {
		who = req.Group.Label
	}
	return refuse(rep, wire.CodeConflict, "rank %d is held by %s, who waits for the others", a.c.Rank, who)
}

// lossOr is err, unless that is the loss of the session.
func (a *applicant) lossOr(ctx context.Context, err error, rep *wire.Reply) error {
	if !isLeaseGone(err) {
		return err
	}
	return a.s.lossOr(ctx, rep, "the session's lease")
}

// complete completes the roll, if all are there.
func (a *applicant) complete(ctx context.Context) error {
	k := a.e.root.generation(a.o.gen)
	resp, err := a.e.txn(ctx, nil, []op{opGet(a.name), opGet(k.seats(), prefixed)}, nil)
	if err != nil {
		return err
	}
	name, seats := found(resp.Responses[0]), resp.Responses[1].GetResponseRange().Kvs
	if name == nil || len(seats) < a.c.Size {
		return nil
	}
	o, open, err := parseEntrance(name)
	if err != nil || !open || o.gen != a.o.gen {
		return err
	}
	r := roll{gen: o.gen, rev: resp.Header.Revision, name: a.name}
	if err := r.read(seats); err != nil {
		return err
	}
	when := []cond{changedAt(a.name, name.ModRevision), absent(k.rolled())}
	then := []op{opPut(k.rolled(), r.encode(), 0), opPut(a.name, complete(o.gen), 0), opPut(a.e.root.listed(o.gen), a.name, 0)}
	if resp, err = a.e.txn(ctx, when, then, nil); err != nil {
		return a.fail(ctx, &o, name, err)
	}
	if resp.Succeeded {
		a.e.sweep(ctx, o.gen)
	}
	return nil
}

// read takes in what seats say of their ranks.
func (r *roll) read(seats []*mvccpb.KeyValue) error {
	for _, kv := range seats {
		req, err := parseRequest(kv.Value)
		if err != nil {
			return fmt.Errorf("etcdstore: %q is no seat: %w", kv.Key, err)
		}
		r.labels = append(r.labels, req.Group.Label)
		r.members = append(r.members, req.Value)
	}
	return nil
}

// await waits until the roll is complete, or withdraws from it. Now and then it looks whether it is: who was to complete it may be gone.
func (a *applicant) await(ctx context.Context, rep *wire.Reply) error {
	look := time.NewTimer(jitter(lookFirst))
	defer look.Stop()
	for {
		s := a.g.state()
		switch {
		case s.roll != nil:
			return a.joined(s.roll, rep)
		case s.over != nil:
			_ = a.unsit(context.WithoutCancel(ctx))
			*rep = copyReply(s.over)
			return nil
		}
		select {
		case <-s.changed:
		case <-look.C:
			if err := a.lookAgain(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			look.Reset(jitter(lookFirst))
		case <-ctx.Done():
			return a.withdraw(ctx, rep)
		}
	}
}

func (a *applicant) lookAgain(ctx context.Context) error {
	kv, err := a.e.entry(ctx, a.g.keys.rolled())
	if err != nil {
		return err
	}
	if kv != nil {
		a.g.learn(kv)
		return nil
	}
	return a.complete(ctx)
}

// joined is the answer to a rank of a roll that is complete.
func (a *applicant) joined(r *roll, rep *wire.Reply) error {
	id := a.c.Rank
	if a.c.Generation == 0 {
		*rep = wire.Reply{Rev: r.gen, Values: copyValues(r.members)}
	} else {
		*rep = wire.Reply{Rev: r.gen, Values: copyValues(r.members), Nums: slices.Clone(r.old)}
	}
	a.e.mu.Lock()
	a.g.mu.Lock()
	a.g.users++
	a.g.mu.Unlock()
	a.e.mu.Unlock()
	a.s.take(a.g, r.rankOf(id), a.g.keys.seat(id), a.seatRev)
	return nil
}

func copyValues(values [][]byte) [][]byte {
	own := make([][]byte, len(values))
	for i, v := range values {
		own[i] = slices.Clone(v)
	}
	return own
}
