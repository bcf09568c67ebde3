package pgroup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// inboxes are the streams to this rank on one channel, by source.
type inboxes struct {
	mu sync.Mutex // protects of
	of map[int]*inbox
}

// inbox is the position of this rank in the stream from another rank.
type inbox struct {
	mu       sync.Mutex // held during a Recv: a caller that finds it locked gets ErrBusy
	received uint64     // messages; protected by mu
}

func (in *inboxes) from(src int) *inbox {
	in.mu.Lock()
	defer in.mu.Unlock()
	box := in.of[src]
	if box == nil {
		if in.of == nil {
			in.of = map[int]*inbox{}
		}
		box = new(inbox)
		in.of[src] = box
	}
	return box
}

// Send sends v to dst, which may be this rank. It returns when the store has the message: dst need
// not have called Recv. Messages from one rank to another on one channel are delivered once, in the
// order of sending. While 64 messages or 16 MiB wait for dst, Send waits. A message that is not
// received within Config.Expiry expires.
func Send[T any](ctx context.Context, g *Group, dst int, v T) (err error) {
	size := 0
	if g.cfg.sink != nil {
		defer func(start time.Time) { g.traceOp(ctx, "send", start, size, err) }(time.Now())
	}
	op := "send to " + strconv.Itoa(dst)
	if err := g.checkPeer(ctx, op, dst); err != nil {
		return err
	}
	defer g.endCall()
	payload, err := encode(g.cfg.Codec, nil, &v)
	if err != nil {
		return fmt.Errorf("pgroup: %s of group %q on rank %d: %w", op, g.name, g.rank, invalidObject(err))
	}
	size = len(payload)
	bounded, cancel := g.withTimeout(ctx)
	defer cancel()
	c := g.stream(dst, typeName[T]())
	if err := g.store.Send(bounded, c, payload, g.cfg.Expiry); err != nil {
		return g.asRankError(op, 0, err)
	}
	return nil
}

// Recv returns the next message from src. If it is not a T the error is a *[TypeError], and the
// message stays for a Recv of another type; Recv[any] takes any. A message that has expired is
// ErrExpired, once. A second Recv from the same rank at the same time is ErrBusy.
func Recv[T any](ctx context.Context, g *Group, src int) (v T, err error) {
	var c wire.Contribution
	var payload []byte
	if g.cfg.sink != nil {
		defer func(start time.Time) { g.traceRecv(ctx, start, src, c.Seq, len(payload), err) }(time.Now())
	}
	op := "recv from " + strconv.Itoa(src)
	if err := g.checkPeer(ctx, op, src); err != nil {
		return v, err
	}
	defer g.endCall()
	box := g.inboxes.from(src)
	if !box.mu.TryLock() {
		return v, fmt.Errorf("pgroup: %s of group %q on rank %d: %w", op, g.name, g.rank, ErrBusy)
	}
	defer box.mu.Unlock()
	bounded, cancel := g.withTimeout(ctx)
	defer cancel()
	c = g.stream(src, typeName[T]())
	c.Seq = box.received + 1
	var sent string
	payload, sent, err = g.store.Recv(bounded, c)
	if err != nil {
		if errors.Is(err, ErrExpired) {
			box.received++
		}
		return v, g.asRankError(op, 0, err)
	}
	if err := parse(g, payload, sent, src, &v); err != nil {
		var none T
		return none, err
	}
	if box.received++; len(payload) >= ackAtOnceBytes {
		_ = g.store.Received(bounded, c) // if it fails, the Recv of the next one acknowledges
	}
	return v, nil
}

// ackAtOnceBytes is the size from which Recv acknowledges a message at once: until then the store
// keeps it, and counts it against its sender. A smaller one is acknowledged by the Recv of the next
// message, which saves a round trip.
const ackAtOnceBytes = 64 << 10

// parse decodes a message into *v if its type is one that the caller wants.
func parse[T any](g *Group, payload []byte, sent string, src int, v *T) error {
	want := typeName[T]()
	switch {
	case want == anyType && sent == bytesType: // bytes are not encoded
		*any(v).(*any) = payload
		return nil
	case want == anyType || sent == "" || sent == want || sent == anyType && want != bytesType:
	default:
		return &TypeError{Group: g.name, From: src, To: g.rank, Sent: sent, Want: want}
	}
	if err := decode(g.cfg.Codec, payload, v); err != nil {
		return fmt.Errorf("pgroup: recv from %d of group %q on rank %d: %q that is no %s: %w", src, g.name, g.rank, sent, want, err)
	}
	return nil
}

// stream returns the Contribution of a send to peer, or a receive from it.
func (g *Group) stream(peer int, typ string) wire.Contribution {
	return wire.Contribution{Generation: g.generation, Rank: g.rank, Root: peer, Channel: g.channel, Type: typ}
}

// checkPeer refuses invalid calls without a round trip, and begins a call otherwise: endCall must
// end it.
func (g *Group) checkPeer(ctx context.Context, op string, peer int) error {
	if err := g.beginCall(op); err != nil {
		return err
	}
	err := ctx.Err()
	switch {
	case peer < 0 || peer >= g.size:
		err = invalid("%s of group %q on rank %d: rank %d of a group of %d: ranks are 0 to %d", op, g.name, g.rank, peer, g.size, g.size-1)
	case err != nil:
		code := wire.CodeCancelled
		if errors.Is(err, context.DeadlineExceeded) {
			code = wire.CodeTimeout
		}
		err = g.rankError(op, &wire.Failure{Code: code, By: g.rank, Reason: "before the call"}, err)
	}
	if err != nil {
		g.endCall()
	}
	return err
}

// invalidObject makes an encoding error match ErrInvalid, or ErrTooLarge.
func invalidObject(err error) error {
	if errors.Is(err, store.ErrTooLarge) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
}

// refusalCode returns the code of a vote of no for an object that cannot be encoded.
func refusalCode(err error) wire.Code {
	if errors.Is(err, store.ErrTooLarge) {
		return wire.CodeTooLarge
	}
	return wire.CodeInvalid
}
