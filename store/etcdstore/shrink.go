package etcdstore

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// survivor is a rank of a generation that joins the one of its survivors. That is opened by a key of the old one; its seats have the old
// ranks for their numbers.
type survivor struct {
	*applicant
	from *seat
}

func (e *Engine) joinSurvivors(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	return onSeat((*seat).shrink)(e, ctx, req, rep)
}

func (st *seat) shrink(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	own := *req
	own.Group.Label = st.g.roll.labels[st.rank]
	name := st.g.keys.shrink()
	a := &applicant{e: st.g.e, s: st.s, c: &own.Group, name: name, value: st.g.e.seatValue(&own), began: time.Now()}
	a.c.Size = maxSize + 1 // never that many: it is complete when all who are there have come
	if _, err := a.e.txn(ctx, []cond{absent(name), st.held()}, []op{opPut(name, "", 0)}, nil); err != nil {
		return err
	}
	for {
		kv, err := a.e.entry(ctx, name)
		if err != nil || kv == nil {
			return err
		}
		a.o.gen, a.nameRev = uint64(kv.CreateRevision), kv.ModRevision
		entered, err := a.sit(ctx, rep)
		if err != nil && ctx.Err() != nil { // it may have entered, and then has to withdraw
			a.g, entered, err = a.e.followed(a.o.gen, a.nameRev), true, nil
		}
		if err != nil || rep.Code != wire.CodeOK {
			return err
		}
		if entered {
			break
		}
		if kv, err = a.e.entry(ctx, st.key); err != nil {
			return err
		}
		if kv == nil || kv.CreateRevision != st.rev { // the others have one without this rank
			st.s.lost()
			return errSession
		}
	}
	defer a.g.letGo()
	return (&survivor{a, st}).await(ctx, rep)
}

// await waits until all who are left have come.
func (v *survivor) await(ctx context.Context, rep *wire.Reply) error {
	for look := true; ; look = true {
		s, old := v.g.state(), v.from.g.state()
		if s.roll != nil {
			return v.succeed(ctx, s.roll, rep)
		}
		if look {
			if err := v.complete(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			if v.g.state().roll != nil {
				continue
			}
		}
		select {
		case <-s.changed:
		case <-old.changed:
		case <-time.After(jitter(lookFirst)):
			if kv, err := v.e.entry(ctx, v.g.keys.rolled()); err == nil && kv != nil {
				v.g.learn(kv)
			}
		case <-ctx.Done():
			return v.withdraw(ctx, rep)
		}
	}
}

// complete completes the generation of survivors, if every rank of the old one has come, or is gone.
func (v *survivor) complete(ctx context.Context) error {
	from, to := v.from.g.keys, v.g.keys
	gets := []op{opGet(from.seats(), prefixed), opGet(to.seats(), prefixed), opGet(v.name), opGet(to.rolled())}
	resp, err := v.e.txn(ctx, nil, gets, nil)
	if err != nil {
		return err
	}
	if kv := found(resp.Responses[3]); kv != nil { // who is in it may have left it again
		v.g.learn(kv)
		return nil
	}
	seats := resp.Responses[1].GetResponseRange().Kvs
	missing := v.from.g.roll.missing(resp.Responses[0].GetResponseRange().Kvs, seats)
	name := found(resp.Responses[2])
	if len(seats) == 0 || len(missing) > 0 || name == nil {
		return nil
	}
	old := v.from.g.roll
	r := roll{gen: v.o.gen, rev: resp.Header.Revision, name: old.name}
	if err := r.read(seats); err != nil {
		return err
	}
	for _, kv := range seats {
		r.old = append(r.old, int64(lastNumber(kv.Key)))
	}
	when := []cond{absent(to.rolled()), unchanged(from.seats(), resp.Header.Revision), present(v.from.key), changedAt(v.name, name.ModRevision)}
	live := opTxn([]cond{valueIs(old.name, complete(v.from.g.gen))}, []op{opPut(old.name, complete(v.o.gen), 0)}, nil)
	_, err = v.e.txn(ctx, when, []op{opPut(to.rolled(), r.encode(), 0), opPut(v.e.root.listed(v.o.gen), old.name, 0), live}, nil)
	return err
}

// missing are the ranks of r that are there by its seats, and have not come to those of its survivors.
func (r *roll) missing(seats, survivors []*mvccpb.KeyValue) (ranks []int) {
	come := map[int]bool{}
	for _, kv := range survivors {
		come[int(lastNumber(kv.Key))] = true
	}
	for _, kv := range seats {
		if rank := r.rankOf(int(lastNumber(kv.Key))); !come[rank] && string(kv.Value) != leftSeat {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// succeed is the answer to a rank of the new generation. The old one is over for it.
func (v *survivor) succeed(ctx context.Context, r *roll, rep *wire.Reply) error {
	if err := v.joined(r, rep); err != nil {
		return err
	}
	ctx, cancel := v.from.afterwards(ctx)
	defer cancel()
	return v.from.vacate(ctx, errRetired)
}

// withdraw takes the rank out of the survivors that are coming together.
func (v *survivor) withdraw(ctx context.Context, rep *wire.Reply) error {
	cause := context.Cause(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.Grace)
	defer cancel()
	late := errors.Is(cause, context.DeadlineExceeded)
	if !late && !errors.Is(cause, context.Canceled) {
		return cause
	}
	when := []cond{absent(v.g.keys.rolled())}
	gets := []op{opGet(v.from.g.keys.seats(), prefixed), opGet(v.g.keys.seats(), prefixed)}
	then := append([]op{opDelete(v.g.keys.seat(v.c.Rank)), opPut(v.name, "", 0)}, gets...) // nobody completes it who has counted this seat
	resp, err := v.e.txn(ctx, when, then, []op{opGet(v.g.keys.rolled()), opGet(v.g.keys.seat(v.c.Rank))})
	if err != nil {
		return cause
	}
	if !resp.Succeeded {
		v.g.learn(found(resp.Responses[0]))
		if seat := found(resp.Responses[1]); seat != nil {
			v.seatRev = seat.CreateRevision
		}
		return v.succeed(ctx, v.g.state().roll, rep)
	}
	verdict := &wire.Verdict{Code: wire.CodeTimeout, By: -1, Waited: time.Since(v.began)}
	if !late {
		verdict.Code, verdict.By = wire.CodeCancelled, v.from.rank
	}
	for _, rank := range v.from.g.roll.missing(resp.Responses[2].GetResponseRange().Kvs, resp.Responses[3].GetResponseRange().Kvs) {
		if rank != v.from.rank {
			verdict.Missing = append(verdict.Missing, rank)
		}
	}
	verdict.Doing = v.from.g.doing(ctx, verdict.Missing)
	*rep = failed(verdict)
	return nil
}
