package pgroup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/hostmem"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// inbox is the stream to this rank from another one, on one channel.
type inbox struct {
	mu     sync.Mutex // held during a Recv: a caller that finds it locked gets ErrBusy
	seq    uint64     // messages that this rank has received
	stored uint64     // those of them that were received from the store, which numbers them
	kept   *message   // was received, but is not of the type that Recv has asked for
}

// message is one that was passed in shared memory.
type message struct {
	typ     string
	payload []byte
}

// outbox is the stream from this rank to another one, on one channel.
type outbox struct {
	mu     sync.Mutex // not held while the store has the message
	stored uint64     // messages that were given to the store
	inVain bool       // the last message was not passed in memory
}

// peers has the streams to or from the other ranks.
type peers[T any] struct {
	mu sync.Mutex // protects of
	of map[int]*T
}

func (p *peers[T]) get(rank int) *T {
	p.mu.Lock()
	defer p.mu.Unlock()
	box := p.of[rank]
	if box == nil {
		if p.of == nil {
			p.of = map[int]*T{}
		}
		box = new(T)
		p.of[rank] = box
	}
	return box
}

// Send sends v to dst, which may be this rank. It returns when the store has the message, or dst,
// if that waits for it in memory that the ranks share: dst need not have called Recv. Messages from
// one rank to another on one channel are delivered once, in the order of sending. While 64 messages
// or 16 MiB wait for dst, Send waits. A message that is not received within Config.Expiry expires.
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
		return fmt.Errorf("pgroup: %s of group %q on rank %d: %w: %w", op, g.name, g.rank, store.CodeError(refusalCode(err)), err)
	}
	size = len(payload)
	c := g.stream(dst, typeName[T]())
	box, m := g.outbox.get(dst), g.messages(dst)
	if box.pass(m, &c, payload) {
		g.mem.passed.Add(1)
		return nil
	}
	bounded, cancel := g.withTimeout(ctx, time.Now())
	defer cancel()
	if err := g.store.Send(bounded, c, payload, g.cfg.Expiry); err != nil {
		if !errors.Is(err, ErrUnknown) {
			box.refused(m, dst)
		}
		return g.asRankError(op, 0, err)
	}
	return nil
}

// messages returns the memory for messages to or from peer; nil if the store has them all.
func (g *Group) messages(peer int) *hostmem.Memory {
	if peer == g.rank {
		return nil
	}
	return g.memory()
}

// pass passes a message in m, which may be nil. If it reports false the store must get it.
func (b *outbox) pass(m *hostmem.Memory, c *wire.Contribution, payload []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	passed := m != nil && b.stored > 0 && m.Send(c.Root, b.stored, !b.inVain, c.Type, payload)
	if b.inVain = !passed; passed {
		return true
	}
	b.stored++
	if m != nil {
		m.Stored(c.Root, b.stored)
	}
	return false
}

// refused takes back a message that the store has refused.
func (b *outbox) refused(m *hostmem.Memory, dst int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stored--; m != nil {
		m.Stored(dst, b.stored)
	}
}

// Recv returns the next message from src. If it is not a T the error is a *[TypeError], and the
// message stays for a Recv of another type; Recv[any] takes any. A message that has expired is
// ErrExpired, once. A second Recv from the same rank at the same time is ErrBusy.
func Recv[T any](ctx context.Context, g *Group, src int) (v T, err error) {
	seq, size, start := uint64(0), 0, time.Now()
	if g.cfg.sink != nil {
		defer func() { g.traceRecv(ctx, start, src, seq, size, err) }()
	}
	op := "recv from " + strconv.Itoa(src)
	if err := g.checkPeer(ctx, op, src); err != nil {
		return v, err
	}
	defer g.endCall()
	box := g.inbox.get(src)
	if !box.mu.TryLock() {
		return v, fmt.Errorf("pgroup: %s of group %q on rank %d: %w", op, g.name, g.rank, ErrBusy)
	}
	defer box.mu.Unlock()
	seq = box.seq + 1
	if m := g.messages(src); m != nil && box.kept == nil {
		if typ, payload, ok := m.Receive(ctx, src, box.stored); ok {
			box.kept = &message{typ, payload}
		}
	}
	if msg := box.kept; msg != nil {
		size = len(msg.payload)
		if v, err = parse[T](g, msg, src); err == nil {
			box.seq, box.kept = seq, nil
		}
		return v, err
	}
	bounded, cancel := g.withTimeout(ctx, start)
	defer cancel()
	c := g.stream(src, typeName[T]())
	c.Seq = box.stored + 1
	payload, typ, err := g.store.Recv(bounded, c)
	size = len(payload)
	switch {
	case errors.Is(err, ErrExpired):
		box.seq, box.stored = seq, c.Seq
		fallthrough
	case err != nil:
		return v, g.asRankError(op, 0, err)
	}
	if v, err = parse[T](g, &message{typ, payload}, src); err != nil {
		return v, err
	}
	if box.seq, box.stored = seq, c.Seq; size >= ackAtOnceBytes {
		_ = g.store.Received(bounded, c) // if it fails, the Recv of the next one acknowledges
	}
	return v, nil
}

// ackAtOnceBytes is the size from which Recv acknowledges a message at once: until then the store
// keeps it, and counts it against its sender. A smaller one is acknowledged by the Recv of the next
// message, which saves a round trip.
const ackAtOnceBytes = 64 << 10

// parse decodes a message if its type is one that the caller wants.
func parse[T any](g *Group, msg *message, src int) (v T, err error) {
	want, sent := typeName[T](), msg.typ
	switch {
	case want == anyType && sent == bytesType: // bytes are not encoded
		*any(&v).(*any) = msg.payload
		return v, nil
	case want == anyType || sent == "" || sent == want || sent == anyType && want != bytesType:
	default:
		return v, &TypeError{Group: g.name, From: src, To: g.rank, Sent: sent, Want: want}
	}
	if err := decode(g.cfg.Codec, msg.payload, &v); err != nil {
		var none T
		return none, fmt.Errorf("pgroup: recv from %d of group %q on rank %d: %q that is no %s: %w", src, g.name, g.rank, sent, want, err)
	}
	return v, nil
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

// refusalCode returns the code for an object that cannot be encoded.
func refusalCode(err error) wire.Code {
	if errors.Is(err, store.ErrTooLarge) {
		return wire.CodeTooLarge
	}
	return wire.CodeInvalid
}
