package vllm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// inbox counts what this rank has received. There is one: vLLM's keys do not name senders.
type inbox struct {
	sync.Mutex        // held during a receive
	from       int    // valid if n > 0
	n          uint64 // messages
}

// outbox counts what this rank has sent to another.
type outbox struct {
	sync.Mutex // held during a send
	claimed    bool
	n          uint64 // messages
}

// SendObj sends v to dst, and returns when the store has it. Messages are delivered in the order of
// sending. If another rank has sent to dst, the error is pgroup.ErrConflict: see the package
// comment.
func SendObj(ctx context.Context, g *Group, dst int, v any) error {
	return g.send(ctx, dst, object, v)
}

// RecvObj returns the next object that src has sent to this rank. An object that does not fit into
// a T is pgroup.ErrMismatch, and stays for a RecvObj of another type; RecvObj[any] receives any
// plain value. An object that would import or call something is ErrRefused, and is skipped;
// an expired one is pgroup.ErrExpired, and is skipped too. Receiving from another rank than the one
// that sends to this one is pgroup.ErrConflict.
func RecvObj[T any](ctx context.Context, g *Group, src int) (T, error) {
	var v, none T
	if err := g.recv(ctx, src, object, &v); err != nil {
		return none, err
	}
	return v, nil
}

// Send sends a tensor to dst, as SendObj does. dst receives it with Recv, or vLLM's recv.
func (g *Group) Send(ctx context.Context, dst int, t *tensor.Tensor) error {
	return g.send(ctx, dst, array, t)
}

// Recv returns the next tensor that src has sent to this rank with Send, or vLLM's send. Objects
// and tensors are counted together: they must be received in the order of sending. An object under
// the key of a tensor is pgroup.ErrMismatch, and is skipped.
func (g *Group) Recv(ctx context.Context, src int) (*tensor.Tensor, error) {
	var t *tensor.Tensor
	if err := g.recv(ctx, src, array, &t); err != nil {
		return nil, err
	}
	return t, nil
}

func (g *Group) send(ctx context.Context, dst int, m payloadKind, v any) error {
	c := &call{Group: g, op: "send to " + strconv.Itoa(dst)}
	if err := c.check(dst); err != nil {
		return err
	}
	b, err := c.encode(m, v)
	if err != nil {
		return err
	}
	box := &g.out[dst]
	return c.exclusive(ctx, &box.Mutex, func(ctx context.Context) error {
		c.seq = box.n + 1
		if err := c.claim(ctx, box, dst); err != nil {
			return err
		}
		if err := g.put(ctx, m.messageKey(dst, box.n), b); err != nil {
			return c.asRankError(err)
		}
		box.n++
		text := fmt.Sprintf("%d %d", g.cfg.Rank, box.n)
		if err := g.store.Set(ctx, note(sent, dst), []byte(text), nil); err != nil {
			return c.asRankError(err)
		}
		return nil
	})
}

// encode returns v as a pickle.
func (c *call) encode(m payloadKind, v any) ([]byte, error) {
	if t, ok := v.(*tensor.Tensor); ok && m == array {
		if err := t.Check(); err != nil {
			return nil, c.invalid("%v", err)
		}
	}
	b, err := pickle.Append(nil, v)
	if err != nil {
		return nil, c.invalid("%v", err)
	}
	return b, nil
}

// claim makes this rank the only sender to dst, before its first message.
func (c *call) claim(ctx context.Context, box *outbox, dst int) error {
	if box.claimed {
		return nil
	}
	mine := strconv.Itoa(c.cfg.Rank)
	stored, err := c.store.Get(ctx, note(sent, dst))
	if errors.Is(err, store.ErrNotFound) {
		for _, m := range []payloadKind{object, array} {
			if c.has(ctx, m.messageKey(dst, 0)) {
				return c.conflictingPeer(fmt.Sprintf("a rank of Python sends to rank %d: there is a key %q", dst, m.messageKey(dst, 0)), nil)
			}
		}
		stored, err = c.store.Swap(ctx, note(sent, dst), nil, []byte(mine+" 0"))
	}
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return c.asRankError(err)
	}
	if who, _, _ := strings.Cut(string(stored), " "); who != mine { // otherwise an earlier try of this call succeeded
		return c.conflictingPeer(fmt.Sprintf("rank %s sends to rank %d", who, dst), err)
	}
	box.claimed = true
	return nil
}

// conflictingPeer returns the error of a second sender, or of a second source.
func (c *call) conflictingPeer(why string, err error) error {
	const hint = ", and vLLM's keys do not name the sender: one of two messages would be lost, or taken for the other; broadcast instead"
	return c.rankError(&wire.Failure{Code: wire.CodeConflict, By: -1, Reason: why + hint}, err)
}

func (g *Group) recv(ctx context.Context, src int, m payloadKind, v any) error {
	c := &call{Group: g, op: "recv from " + strconv.Itoa(src)}
	if err := c.check(src); err != nil {
		return err
	}
	in := &g.in
	return c.exclusive(ctx, &in.Mutex, func(ctx context.Context) error {
		c.seq = in.n + 1
		if in.n > 0 && in.from != src {
			return c.conflictingPeer(fmt.Sprintf("rank %d has sent to this rank", in.from), nil)
		}
		err := c.receive(ctx, need{key: m.messageKey(g.cfg.Rank, in.n), from: src, n: in.n, m: m, message: true}, v)
		if consumed(err) && in.n == 0 {
			if wrong := c.checkSender(ctx, src); wrong != nil {
				return wrong
			}
		}
		if consumed(err) {
			in.from = src
			in.n++
		}
		return err
	})
}

// checkSender checks with the first message that src has sent it. Python ranks do not publish that.
func (c *call) checkSender(ctx context.Context, src int) error {
	stored, err := c.store.Get(ctx, note(sent, c.cfg.Rank))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return c.asRankError(err)
	}
	if who, _, _ := strings.Cut(string(stored), " "); who != strconv.Itoa(src) {
		return c.conflictingPeer(fmt.Sprintf("rank %s sends to this rank", who), nil)
	}
	return nil
}

// receive waits for n and decodes it into *v.
func (c *call) receive(ctx context.Context, n need, v any) error {
	values, err := c.await(ctx, []need{n})
	if err != nil {
		return err
	}
	return c.parse(values[0], n, v)
}
