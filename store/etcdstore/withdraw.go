package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// How a rank gets out of a roll that does not become complete: because its time is over, or because the roll ends for all.

// outside is the end of a rank that has not come into the roll, as far as it knows: its time was over before.
func (a *applicant) outside(ctx context.Context, err error, rep *wire.Reply) error {
	cause := context.Cause(ctx)
	if !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, context.Canceled) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.Grace)
	defer cancel()
	kv, err := a.e.entry(ctx, a.name)
	if err != nil {
		return cause
	}
	var o entrance
	if kv != nil {
		if o, _, err = parseEntrance(kv); err != nil {
			return err
		}
	}
	a.o = o
	k := a.e.root.generation(o.gen)
	seat := k.seat(a.c.Rank)
	mine := []cond{valueIs(seat, a.value), absent(k.rolled())}
	out, orElse := []op{opDelete(seat)}, []op(nil)
	if kv != nil && o.gen != 0 {
		same := changedAt(a.name, kv.ModRevision)
		mine, out = append(mine, same), a.emptied(k, &o)
		orElse = append(orElse, opTxn([]cond{same, absent(k.seats(), prefixed)}, []op{a.closed(&o)}, nil))
	}
	if _, err := a.e.txn(ctx, mine, out, orElse); err != nil {
		return cause
	}
	return a.overdue(ctx, k, cause, rep)
}

// closed takes a roll out that does not become complete.
func (a *applicant) closed(o *entrance) op {
	if o.live != 0 {
		return opPut(a.name, complete(o.live), 0)
	}
	return opDelete(a.name)
}

// emptied takes the seat out of an open roll, and changes that, so that nobody completes it who has counted this seat. Who is the last to
// go takes the roll out too.
func (a *applicant) emptied(k generationKeys, o *entrance) []op {
	seat := k.seat(a.c.Rank)
	alone := []cond{absent(k.seats(), upTo(seat)), absent(seat+"\x00", upTo(end(k.seats())))}
	return []op{opDelete(seat), opTxn(alone, []op{a.closed(o)}, []op{opPut(a.name, o.encode(), 0)})}
}

// fail ends the roll of name if etcd will never take it, as with more data than its limit: everybody in it hears so. Otherwise it returns err.
func (a *applicant) fail(ctx context.Context, o *entrance, name *mvccpb.KeyValue, err error) error {
	var no wire.Reply
	if answered(err, &no) != nil || no.Code != wire.CodeTooLarge {
		return err
	}
	v := &wire.Verdict{Code: no.Code, By: -1, Reason: fmt.Sprintf("what the %d ranks bring, together: %s", a.c.Size, no.Detail)}
	when := []cond{changedAt(a.name, name.ModRevision), absent(a.g.keys.rolled())}
	_, err = a.e.txn(ctx, when, []op{opPut(a.g.keys.rolled(), encodeVerdict(failed(v)), 0), a.closed(o)}, nil)
	return err
}

// withdraw takes the rank out of a roll that is not complete.
func (a *applicant) withdraw(ctx context.Context, rep *wire.Reply) error {
	cause := context.Cause(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.Grace)
	defer cancel()
	if !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, context.Canceled) {
		return cause // the seat goes with the session
	}
	for {
		kv, err := a.e.entry(ctx, a.name)
		if err != nil {
			return cause
		}
		out, err := a.unsitAt(ctx, kv)
		switch {
		case err != nil:
			return cause
		case out:
			return a.overdue(ctx, a.g.keys, cause, rep)
		}
		if err := a.lookAgain(ctx); err != nil {
			return cause
		}
		if s := a.g.state(); s.roll != nil {
			return a.joined(s.roll, rep)
		} else if s.over != nil {
			*rep = copyReply(s.over)
			return nil
		}
	}
}

func (a *applicant) unsit(ctx context.Context) error {
	_, err := a.e.txn(ctx, nil, []op{opDelete(a.g.keys.seat(a.c.Rank))}, nil)
	return err
}

// unsitAt takes the seat out of the roll that kv has.
func (a *applicant) unsitAt(ctx context.Context, kv *mvccpb.KeyValue) (bool, error) {
	when, then := []cond{absent(a.g.keys.rolled())}, []op{opDelete(a.g.keys.seat(a.c.Rank))}
	if kv != nil {
		o, open, err := parseEntrance(kv)
		if err != nil {
			return false, err
		}
		if open && o.gen == a.o.gen {
			when = append(when, changedAt(a.name, kv.ModRevision))
			then = a.emptied(a.g.keys, &o)
		}
	}
	resp, err := a.e.txn(ctx, when, then, nil)
	return err == nil && resp.Succeeded, err
}

// overdue is the verdict for a rank that has withdrawn.
func (a *applicant) overdue(ctx context.Context, k generationKeys, cause error, rep *wire.Reply) error {
	resp, err := a.e.get(ctx, k.seats(), prefixed, keysOnly)
	if err != nil {
		return cause
	}
	v := &wire.Verdict{Code: wire.CodeTimeout, By: -1, Waited: time.Since(a.began)}
	if errors.Is(cause, context.Canceled) {
		v.Code, v.By = wire.CodeCancelled, a.c.Rank
	}
	there := map[int]bool{a.c.Rank: true}
	for _, kv := range resp.Kvs {
		there[int(lastNumber(kv.Key))] = true
	}
	for rank := range a.c.Size {
		if !there[rank] {
			v.Missing = append(v.Missing, rank)
		}
	}
	if a.o.live != 0 {
		v.Reason = fmt.Sprintf("generation %d of this group is still live", a.o.live)
	}
	*rep = failed(v)
	return nil
}
