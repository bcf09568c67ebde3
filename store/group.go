package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// Formed is the result of forming a group, as one rank gets it. Its Members are the member
// arguments of all Joins; a group of more than wire.MaxInline ranks has none, and its ranks call
// Store.Members when they need them.
type Formed = wire.Formed

// Claim identifies the requests of one process for one rank. If the outcome of a Join is unknown, a
// Join with the same Token and a higher Try replaces the earlier one. The zero Claim replaces
// nothing.
type Claim struct {
	Token []byte // at most 64 bytes, unguessable for other processes
	Try   uint64 // 1 for the first Join, incremented for each further one
}

// Join joins the current attempt to form the group c.Group of run c.Run, as c.Rank of c.Size, and
// returns when all ranks have joined at the same time. An attempt has one result for all of its
// ranks. It fails at the earliest of their deadlines (ErrTimeout), or when one of them cancels
// (ErrCancelled), and the error's Failure names exactly the ranks that had not joined. A rank that
// joins later starts the next attempt. If the rank is taken, the error is ErrConflict, and names
// the member that has it. ErrUnknown means that the store did not answer in time: the rank may have
// joined, and is removed again when the store gets the cancel.
//
// With c.Generation the attempt is one of the survivors of that group (shrink): it succeeds when
// each old rank has joined, has left or has failed.
func (s *Store) Join(ctx context.Context, c wire.Contribution, member []byte) (Formed, error) {
	return s.JoinAs(ctx, Claim{}, c, member)
}

// JoinAs is Join that replaces an earlier try of the same claim.
func (s *Store) JoinAs(ctx context.Context, claim Claim, c wire.Contribution, member []byte) (Formed, error) {
	var rep wire.Reply
	if err := s.Do(ctx, &wire.Request{Op: wire.OpJoin, Group: c, Value: nonNil(member), Claim: claim.Token, Attempt: claim.Try}, &rep); err != nil {
		return Formed{}, markUnknown(err)
	}
	r, err := wire.ParseFormed(&rep, c.Rank)
	if err == nil && c.Generation == 0 && (r.Rank != c.Rank || r.Size != c.Size) {
		err = fmt.Errorf("rank %d of %d for rank %d of %d", r.Rank, r.Size, c.Rank, c.Size)
	}
	if err != nil {
		s.leaveFormed(ctx, rep.Rev, r.Rank)
		return Formed{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if mayBeCancelled(ctx) {
		return Formed{}, s.leaveLate(ctx, c, &r)
	}
	return r, nil
}

// Members returns what the ranks of c.Generation gave Join as their member, from rank first on: n of
// them, or all if n is 0. c.Rank is the caller's. A rank that has left or failed is still there.
func (s *Store) Members(ctx context.Context, c wire.Contribution, first, n int) ([][]byte, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpMembers, Group: c, First: int64(first), Count: uint64(max(n, 0))}, &rep)
	return rep.Values, err
}

// mayBeCancelled reports whether the store may have been asked to cancel a call with ctx: at once
// if ctx was cancelled, and ResultGrace after its deadline.
func mayBeCancelled(ctx context.Context) bool {
	switch err := ctx.Err(); {
	case err == nil:
		return false
	case errors.Is(err, context.DeadlineExceeded):
		at, ok := ctx.Deadline()
		return ok && time.Since(at) >= ResultGrace
	}
	return true
}

// leaveLate removes the caller from a group that formed while the caller gave up. The store has
// done that already if the cancel came after the last rank.
func (s *Store) leaveLate(ctx context.Context, c wire.Contribution, r *Formed) error {
	code := failureCode(ctx.Err())
	s.leaveFormed(ctx, r.Generation, r.Rank)
	return &Error{
		Op: wire.OpJoin.String(), Key: c.Group, Code: code, Err: CodeError(code),
		Detail: "the group had formed when this rank gave up, and this rank has left it",
	}
}

// leaveFormed removes the caller from a group that formed, and whose membership it does not use.
func (s *Store) leaveFormed(ctx context.Context, generation uint64, rank int) {
	ctx, cancel := transport.Grace(ctx, ResultGrace)
	defer cancel()
	_ = s.Leave(ctx, wire.Contribution{Generation: generation, Rank: rank}) // a failure is harmless: the rank was removed, or its session ends
}

// Collect casts c.Rank's vote for the record (c.Generation, c.Channel, c.Seq), and returns what
// c.Want asks for when the record is decided. All ranks get the same result; the error's Failure
// says why the record failed. If ctx has ended, Collect votes no, so that other ranks do not wait
// for this one.
func (s *Store) Collect(ctx context.Context, c wire.Contribution, payload []byte) ([][]byte, error) {
	got, _, err := s.CollectLast(ctx, c, payload)
	return got, err
}

// CollectLast is Collect, and also returns the rank whose vote decided the record: the straggler
// that the others waited for, or the root of an operation that waits for the root only. last is −1
// if the record failed, or the engine does not report it.
func (s *Store) CollectLast(ctx context.Context, c wire.Contribution, payload []byte) (got [][]byte, last int, err error) {
	if err := ctx.Err(); err != nil && c.No == wire.CodeOK {
		c.No, c.Reason = failureCode(err), cmp.Or(causeOf(ctx), err.Error())
	}
	if c.No != wire.CodeOK {
		var cancel context.CancelFunc
		ctx, cancel = transport.Grace(ctx, ResultGrace)
		defer cancel()
	}
	var rep wire.Reply
	err = s.Do(ctx, &wire.Request{Op: wire.OpCollect, Group: c, Value: nonNil(payload)}, &rep)
	last = int(rep.N) - 1
	switch {
	case err != nil:
		return nil, -1, markUnknown(err)
	case rep.Value != nil:
		return [][]byte{rep.Value}, last, nil
	}
	return rep.Values, last, nil
}

// markUnknown adds ErrUnknown to an error that is not the store's result: the record may have been
// decided either way.
func markUnknown(err error) error {
	e, ok := errors.AsType[*Error](err)
	if ok && !errors.Is(e, ErrUnknown) && e.Failure == nil && (errors.Is(e, ErrUnavailable) || e.Code == wire.CodeTimeout || e.Code == wire.CodeCancelled) {
		e.Err = fmt.Errorf("%w: %w", ErrUnknown, e.Err)
	}
	return err
}

// Send appends payload to the stream (c.Generation, c.Rank to c.Root, c.Channel), and returns when
// the store has it. It waits while the stream is full. The message expires after ttl; 0: never.
func (s *Store) Send(ctx context.Context, c wire.Contribution, payload []byte, ttl time.Duration) error {
	for {
		var rep wire.Reply
		err := s.Do(ctx, &wire.Request{Op: wire.OpSend, Group: c, Value: nonNil(payload), TTL: min(ttl, maxTimeout)}, &rep)
		if rep.Code != wire.CodeWouldBlock {
			return err
		}
		err = s.Do(ctx, &wire.Request{Op: wire.OpSendReady, Group: c, Length: int64(len(payload))}, new(wire.Reply))
		if e, ok := errors.AsType[*Error](err); ok {
			e.Op = wire.OpSend.String()
		}
		if err != nil {
			return err
		}
	}
}

// Recv returns message c.Seq of the stream (c.Generation, c.Root to c.Rank, c.Channel), and the
// type that its sender gave. The store keeps the message, so that c.Rank can ask again, until
// Received or a Recv of the next one acknowledges it. ErrExpired is final for this position.
func (s *Store) Recv(ctx context.Context, c wire.Contribution) (payload []byte, typ string, err error) {
	var rep wire.Reply
	err = s.Do(ctx, &wire.Request{Op: wire.OpRecv, Group: c}, &rep)
	return rep.Value, rep.Type, err
}

// Received acknowledges the messages up to c.Seq of the stream that Recv reads: the store no longer keeps them.
func (s *Store) Received(ctx context.Context, c wire.Contribution) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpAck, Group: c}, new(wire.Reply))
}

// CloseChannel ends c.Rank's use of c.Channel: of its records, if the rank has voted there, and of
// the streams that it has used. Its calls that wait there return ErrClosed. Operations and messages
// of other ranks that need it fail (ErrSkipped). The store frees the channel when all ranks that
// use it have closed it. The rank's next call on the name begins another use, with sequence numbers
// and positions from 1.
func (s *Store) CloseChannel(ctx context.Context, c wire.Contribution) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpCloseChannel, Group: c}, new(wire.Reply))
}

// Leave removes c.Rank from c.Generation: it has left, and has not failed. With c.No it aborts the
// group instead, and all ranks get c.Reason.
func (s *Store) Leave(ctx context.Context, c wire.Contribution) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpLeave, Group: c}, new(wire.Reply))
}

// Follow waits until c.Generation is revoked, and returns the reason: an *Error with the Failure.
func (s *Store) Follow(ctx context.Context, c wire.Contribution) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpFollow, Group: c}, new(wire.Reply))
}

// Progress reports what c.Rank of c.Generation does, and how far it is. The report counts as progress if
// p.Done has risen, or the phase has changed, at most 16 times between two votes of the rank. A rank
// that has reported, and then makes no progress for the Stall of a vote, or for p.Stall if that is
// longer, fails the operation that waits for it (ErrStalled). A rank reports at most once a second,
// and whenever its phase changes; a Phase without an ID ends the last one.
func (s *Store) Progress(ctx context.Context, c wire.Contribution, p wire.Phase) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpProgress, Group: c, Phase: p}, new(wire.Reply))
}

// Expire returns how many messages of c.Rank have expired unread since the last call.
func (s *Store) Expire(ctx context.Context, c wire.Contribution) (int, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpExpired, Group: c}, &rep)
	return int(rep.N), err
}
