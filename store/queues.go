package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// QueueKey returns the key of the entry that exists while queue has values, for Wait and Watch. It
// has the numbers of the queue's values, which are entries with keys below this one. Deleting it
// loses the values, which stay allocated.
func QueueKey(queue string) string { return wire.QueueKey(queue) }

// Push appends value to queue, atomically. Names of queues are separate from keys: a queue and a
// key may have the same name. A queue is limited only by the store (ErrFull).
func (s *Store) Push(ctx context.Context, queue string, value []byte) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpPush, Key: queue, Value: nonNil(value)}, new(wire.Reply))
}

// Pop removes and returns the first value of queue. It waits until there is one.
func (s *Store) Pop(ctx context.Context, queue string) ([]byte, error) {
	for {
		value, n, err := s.TryPop(ctx, queue)
		if err != nil || n > 0 {
			return value, err
		}
		if _, err := s.Wait(ctx, QueueKey(queue)); err != nil {
			if e, ok := errors.AsType[*Error](err); ok {
				e.Op, e.Key = "pop", clip(queue)
			}
			return nil, err
		}
	}
}

// TryPop removes and returns the first of the n values of queue, atomically, so that each value is
// returned once. If there are none, n is 0. If ctx ends while the reply is on its way, TryPop waits
// for it for up to ResultGrace. After ErrUnknown the value may have been removed.
func (s *Store) TryPop(ctx context.Context, queue string) (value []byte, n int, err error) {
	req, rep := wire.Request{Op: wire.OpPop, Key: queue}, wire.Reply{}
	if err := ctx.Err(); err != nil {
		return nil, 0, failure(&req, err)
	}
	ctx, cancel := withResultGrace(ctx)
	defer cancel()
	if err = s.Do(ctx, &req, &rep); errors.Is(err, ErrNotFound) {
		return nil, 0, nil
	}
	return rep.Value, int(rep.N), err
}

// withResultGrace returns ctx extended by ResultGrace, for a reply that must not be lost.
func withResultGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	long, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(ResultGrace, func() { cancel(context.Cause(ctx)) }) })
	return long, func() {
		stop()
		cancel(nil)
	}
}

// QueueLen returns the number of values in queue.
func (s *Store) QueueLen(ctx context.Context, queue string) (int, error) {
	head, err := s.Get(ctx, QueueKey(queue))
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	h, ok := wire.ParseQueueHead(head)
	if !ok {
		detail := fmt.Sprintf("the value at the key %q was not written by push: delete that key", QueueKey(queue))
		return 0, &Error{Op: "queue length", Key: queue, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: detail}
	}
	return int(h.Len()), nil
}
