package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// QueueKey is the key of the entry that is there while there is something in queue: for Wait and Watch. It has the numbers of
// the queue's values, which are entries with keys that begin with this one. A client that deletes it loses the values, and
// they stay where they are.
func QueueKey(queue string) string { return wire.QueueKey(queue) }

// Push puts value at the end of queue: one operation, which takes effect whole or not at all. The names of queues are no
// keys: there may be a queue and a key of the same name. A queue has as much room as the store (ErrFull).
func (s *Store) Push(ctx context.Context, queue string, value []byte) error {
	return s.Do(ctx, &wire.Request{Op: wire.OpPush, Key: queue, Value: present(value)}, new(wire.Reply))
}

// Pop takes the first value of queue. It waits until there is one.
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

// TryPop takes the first of the n values of queue: one operation, so that each value is given once. If there are none, n is 0.
// A ctx that ends while the answer is on its way gets it, if it comes within Grace. If that is ErrUnknown, the value may be
// taken.
func (s *Store) TryPop(ctx context.Context, queue string) (value []byte, n int, err error) {
	req, rep := wire.Request{Op: wire.OpPop, Key: queue}, wire.Reply{}
	if err := ctx.Err(); err != nil {
		return nil, 0, failure(&req, err)
	}
	ctx, cancel := aMomentMore(ctx)
	defer cancel()
	if err = s.Do(ctx, &req, &rep); errors.Is(err, ErrNotFound) {
		return nil, 0, nil
	}
	return rep.Value, int(rep.N), err
}

// aMomentMore is ctx, and a moment more for an answer that must not be lost.
func aMomentMore(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	long, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(Grace, func() { cancel(context.Cause(ctx)) }) })
	return long, func() {
		stop()
		cancel(nil)
	}
}

// QueueLen is how many values are in queue.
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
		detail := fmt.Sprintf("the entry at the key %q is no queue, but %d bytes: delete it", QueueKey(queue), len(head))
		return 0, &Error{Op: "queue length", Key: queue, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: detail}
	}
	return int(h.Len()), nil
}
