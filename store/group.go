package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Roll is who a group consists of, the same for every rank.
type Roll struct {
	Generation uint64   // never used again
	Members    [][]byte // what each rank said of itself in Join
	Ranks      []int    // of a group that was shrunk: the old rank of each
}

// Claim identifies the requests of one process for one rank. If the outcome of a Join is unknown, a Join with the same
// Token and a higher Try replaces what the earlier one may hold. The zero Claim replaces nothing.
type Claim struct {
	Token []byte // at most 64 bytes, which no other process can guess
	Try   uint64 // 1 for the first Join, and one more for each that follows
}

// Join enters c.Rank of c.Size into the current attempt to form the group of c.Group and c.Run, and returns when all
// ranks are there at the same time. The attempt has one outcome for all ranks in it: it fails at the earliest of their
// deadlines (ErrTimeout), or when one of them cancels (ErrCancelled), and the error's Verdict names exactly the ranks that
// had not come. A rank that comes later opens the next attempt. A rank that is there already is ErrConflict, with
// who holds it. An error that matches ErrUnknown says that the store did not answer in time: the rank may have joined, and if so it is
// taken out again as soon as the store hears of it.
//
// With c.Generation the attempt is one of the survivors of that group: it succeeds when every old rank has joined or is gone.
func (s *Store) Join(ctx context.Context, c wire.Contribution, member []byte) (Roll, error) {
	return s.JoinAs(ctx, Claim{}, c, member)
}

// JoinAs is Join, which replaces an earlier try of the same claim.
func (s *Store) JoinAs(ctx context.Context, claim Claim, c wire.Contribution, member []byte) (Roll, error) {
	var rep wire.Reply
	if err := s.Do(ctx, &wire.Request{Op: wire.OpJoin, Group: c, Value: present(member), Old: claim.Token, Rev: claim.Try}, &rep); err != nil {
		return Roll{}, unknown(err)
	}
	r := Roll{Generation: rep.Rev, Members: rep.Values}
	for _, n := range rep.Nums {
		r.Ranks = append(r.Ranks, int(n))
	}
	if gaveUp(ctx) {
		return Roll{}, s.leaveLate(ctx, c, &r)
	}
	return r, nil
}

// gaveUp reports whether the store may have been sent a cancel of a call with ctx: at once if ctx is cancelled, and Grace
// after its deadline.
func gaveUp(ctx context.Context) bool {
	switch err := ctx.Err(); {
	case err == nil:
		return false
	case errors.Is(err, context.DeadlineExceeded):
		at, ok := ctx.Deadline()
		return ok && time.Since(at) >= Grace
	}
	return true
}

// leaveLate takes the caller out of a group that formed while it gave up. The store has done so already if the cancel came after
// the last rank.
func (s *Store) leaveLate(ctx context.Context, c wire.Contribution, r *Roll) error {
	code := failureCode(ctx.Err())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Grace)
	defer cancel()
	rank := c.Rank
	if c.Generation != 0 {
		rank = slices.Index(r.Ranks, rank)
	}
	_ = s.Leave(ctx, wire.Contribution{Generation: r.Generation, Rank: rank}) // or it was taken out, or its session ends
	return &Error{
		Op: wire.OpJoin.String(), Key: c.Group, Code: code, Err: CodeError(code),
		Detail: "the group had formed when this rank gave up, and this rank has left it",
	}
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
		c.No, c.Reason = failureCode(err), cmp.Or(causeOf(ctx), err.Error())
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
	if ok && !errors.Is(e, ErrUnknown) && e.Failure == nil && (errors.Is(e, ErrUnavailable) || e.Code == wire.CodeTimeout || e.Code == wire.CodeCancelled) {
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
		if rep.Code != wire.CodeWouldBlock {
			return err
		}
		err = s.Do(ctx, &wire.Request{Op: wire.OpSendReady, Group: c, Delta: int64(len(payload))}, new(wire.Reply))
		if e, ok := errors.AsType[*Error](err); ok {
			e.Op = wire.OpSend.String()
		}
		if err != nil {
			return err
		}
	}
}

// Recv returns message c.Seq of the stream (c.Generation, c.Root to c.Rank, c.Channel), and the type that its
// sender gave. The store keeps the message, so that c.Rank can ask again, until Received or a Recv of the next one
// acknowledges it. ErrExpired is final for this position.
func (s *Store) Recv(ctx context.Context, c wire.Contribution) (payload []byte, typ string, err error) {
	var rep wire.Reply
	err = s.Do(ctx, &wire.Request{Op: wire.OpRecv, Group: c}, &rep)
	return rep.Value, rep.Type, err
}

// Received acknowledges the messages up to c.Seq of the stream that Recv reads: the store no longer keeps them.
func (s *Store) Received(ctx context.Context, c wire.Contribution) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpAck, Group: c}, new(wire.Reply))
}

// CloseChannel ends c.Rank's use of c.Channel: of its records, if the rank has voted there, and of the streams that it has
// used. Its calls that wait there end (ErrClosed). Verbs and messages of other ranks that need it fail (ErrSkipped). The store
// frees the channel when all ranks that use it have closed it. The rank's next call on the name begins another
// use, with sequence numbers and positions from 1.
func (s *Store) CloseChannel(ctx context.Context, c wire.Contribution) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpCloseChannel, Group: c}, new(wire.Reply))
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
	err := s.Do(ctx, &wire.Request{Op: wire.OpExpired, Group: c}, &rep)
	return int(rep.N), err
}
