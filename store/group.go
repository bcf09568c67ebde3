package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Roll is who a group consists of, the same for every rank.
type Roll struct {
	Generation uint64   // never used again
	Members    [][]byte // what each rank said of itself in Join
	Ranks      []int    // of a group that was shrunk: the old rank of each
}

// Join enters c.Rank of c.Size into the roll of c.Group and c.Run, and returns when all ranks are
// there at the same time. If ctx ends first the rank is withdrawn, and the error's Verdict names those
// who are missing. A rank that is there already is ErrConflict, with who holds it. With c.Generation the roll is
// that of the survivors of a group: it is complete when every old rank has joined or is gone.
func (s *Store) Join(ctx context.Context, c wire.Contribution, member []byte) (Roll, error) {
	var rep wire.Reply
	if err := s.Do(ctx, &wire.Request{Op: wire.OpJoin, Group: c, Value: present(member)}, &rep); err != nil {
		return Roll{}, err
	}
	r := Roll{Generation: rep.Rev, Members: rep.Values}
	for _, n := range rep.Nums {
		r.Ranks = append(r.Ranks, int(n))
	}
	return r, nil
}

// Collect casts c.Rank's vote for the record (c.Generation, c.Channel, c.Seq) and returns what c.Want asks for,
// once the record is decided. Every rank hears the same verdict; the error's Verdict is why
// it failed. A ctx that has ended is a vote of no; it is cast all the same, so that nobody waits for this rank.
func (s *Store) Collect(ctx context.Context, c wire.Contribution, payload []byte) ([][]byte, error) {
	got, _, err := s.CollectLast(ctx, c, payload)
	return got, err
}

// CollectLast is Collect, and says whose vote decided the record, for which the others waited: the rank that came last, or the root of a verb
// that waits for nobody else. It is -1 if that is not known: of a failure, and from engines that do not tell.
func (s *Store) CollectLast(ctx context.Context, c wire.Contribution, payload []byte) (got [][]byte, last int, err error) {
	if err := ctx.Err(); err != nil && c.No == wire.CodeOK {
		c.No, c.Reason = failureCode(err), err.Error()
	}
	if c.No != wire.CodeOK {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), Grace)
		defer cancel()
	}
	var rep wire.Reply
	err = s.Do(ctx, &wire.Request{Op: wire.OpCollect, Group: c, Value: present(payload)}, &rep)
	last = int(rep.N) - 1
	switch {
	case err != nil:
		return nil, -1, unknown(err)
	case rep.Value != nil:
		return [][]byte{rep.Value}, last, nil
	}
	return rep.Values, last, nil
}

// unknown marks an error that is not the store's word: the record may have been decided either way.
func unknown(err error) error {
	e, ok := errors.AsType[*Error](err)
	if ok && e.Verdict == nil && (errors.Is(e, ErrUnavailable) || e.Code == wire.CodeTimeout || e.Code == wire.CodeCancelled) {
		e.Err = fmt.Errorf("%w: %w", ErrUnknown, e.Err)
	}
	return err
}

// Send puts payload into the stream (c.Generation, c.Rank to c.Root, c.Channel) and returns when the
// store has it. It waits while the stream is full. Nobody hears of it after ttl; 0 is never.
func (s *Store) Send(ctx context.Context, c wire.Contribution, payload []byte, ttl time.Duration) error {
	for {
		var rep wire.Reply
		err := s.Do(ctx, &wire.Request{Op: wire.OpSend, Group: c, Value: present(payload), TTL: min(ttl, ages)}, &rep)
		if rep.Code != wire.CodeNoRoom {
			return err
		}
		err = s.Do(ctx, &wire.Request{Op: wire.OpRoom, Group: c, Delta: int64(len(payload))}, new(wire.Reply))
		if e, ok := errors.AsType[*Error](err); ok {
			e.Op = wire.OpSend.String()
		}
		if err != nil {
			return err
		}
	}
}

// Recv returns message c.Seq of the stream (c.Generation, c.Root to c.Rank, c.Channel), and the type that its
// sender gave. Asking for the next one says that this one is no longer needed. ErrExpired is final for this position.
func (s *Store) Recv(ctx context.Context, c wire.Contribution) (payload []byte, typ string, err error) {
	var rep wire.Reply
	err = s.Do(ctx, &wire.Request{Op: wire.OpRecv, Group: c}, &rep)
	return rep.Value, rep.Type, err
}

// Leave takes c.Rank out of c.Generation: it is not lost, it left. With c.No it aborts the group instead, and
// every rank hears c.Reason.
func (s *Store) Leave(ctx context.Context, c wire.Contribution) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpLeave, Group: c}, new(wire.Reply))
}

// Follow waits until c.Generation is revoked, and returns why: an *Error with the Verdict.
func (s *Store) Follow(ctx context.Context, c wire.Contribution) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpFollow, Group: c}, new(wire.Reply))
}

// Expire returns how many messages of c.Rank expired unread since it last asked.
func (s *Store) Expire(ctx context.Context, c wire.Contribution) (int, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpExpire, Group: c}, &rep)
	return int(rep.N), err
}
