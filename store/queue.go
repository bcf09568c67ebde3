package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-pg/muster/wire"
)

// A queue is an entry with the numbers of its values, in their order, which is there while the queue is not empty, and an entry for
// each value. A value is put there before its number, and taken out by whoever has taken its number out, so that nobody sees half of it.

// QueueKey is the key of the entry that is there while there is something in queue: for Wait and Watch. Who deletes it loses the values, and
// they stay where they are.
func QueueKey(queue string) string { return queue + "\x00queue" }

const (
	// numberLen is the length of a value's number.
	numberLen = 8
	// mostQueued bounds the numbers: a Swap has room for them twice.
	mostQueued = wire.MaxValue / 4
)

func queuedKey(queue string, number []byte) string {
	return QueueKey(queue) + "/" + hex.EncodeToString(number)
}

// Push puts value at the end of queue, which has room for 524,288; one more is ErrFull. The names of queues are no keys: there may be a
// queue and a key of the same name. Queues are meant to be short: Pop and TryPop copy 8 bytes for each value that is there, several times,
// which with 100,000 of them is 2 MB, and about a millisecond.
func (s *Store) Push(ctx context.Context, queue string, value []byte) error {
	number := binary.LittleEndian.AppendUint64(nil, rand.Uint64())
	if err := s.Set(ctx, queuedKey(queue, number), value, &SetOptions{Reads: 1}); err != nil {
		return err
	}
	n, err := s.Append(ctx, QueueKey(queue), number)
	if err == nil && n > mostQueued {
		err = s.unpush(ctx, queue, number)
	}
	if err != nil && !errors.Is(err, ErrUnknown) {
		last, cancel := aMomentMore(ctx)
		defer cancel()
		_, _ = s.Delete(last, queuedKey(queue, number))
	}
	return err
}

// unpush takes a number out that is one too many.
func (s *Store) unpush(ctx context.Context, queue string, number []byte) error {
	full := &Error{Op: "push", Key: queue, Code: wire.CodeFull, Err: ErrFull, Detail: fmt.Sprintf("a queue has room for %d values", mostQueued/numberLen)}
	numbers, err := s.queued(ctx, queue)
	for err == nil {
		i := 0
		for i < len(numbers) && !bytes.Equal(numbers[i:i+numberLen], number) {
			i += numberLen
		}
		if i == len(numbers) { // somebody has popped it
			return nil
		}
		rest := slices.Concat(numbers[:i], numbers[i+numberLen:])
		if numbers, err = s.Swap(ctx, QueueKey(queue), numbers, rest); err == nil {
			return full
		}
		if errors.Is(err, ErrConflict) {
			numbers, err = asNumbers(queue, numbers)
		}
	}
	return err
}

// Pop takes the first value of queue. It waits until there is one.
func (s *Store) Pop(ctx context.Context, queue string) ([]byte, error) {
	for {
		value, n, err := s.TryPop(ctx, queue)
		if err != nil || n > 0 {
			return value, err
		}
		if _, err := s.Wait(ctx, QueueKey(queue)); err != nil {
			return nil, err
		}
	}
}

// TryPop takes the first of the n values of queue. If there are none, n is 0.
func (s *Store) TryPop(ctx context.Context, queue string) (value []byte, n int, err error) {
	numbers, err := s.queued(ctx, queue)
	for err == nil && len(numbers) > 0 {
		rest := numbers[numberLen:]
		if len(rest) == 0 {
			rest = nil // an empty queue is none
		}
		now, err := s.Swap(ctx, QueueKey(queue), numbers, rest)
		switch {
		case errors.Is(err, ErrConflict): // somebody was faster
			if numbers, err = asNumbers(queue, now); err != nil {
				return nil, 0, err
			}
		case err != nil:
			return nil, 0, err
		default:
			value, err = s.popped(ctx, queuedKey(queue, numbers[:numberLen]))
			if !errors.Is(err, ErrNotFound) {
				return value, len(numbers) / numberLen, err
			}
			numbers = rest // its Push has failed, and taken it back
		}
	}
	return nil, 0, err
}

// popped is a value that is nobody else's any more: a ctx that ends just now must not lose it.
func (s *Store) popped(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := aMomentMore(ctx)
	defer cancel()
	var rep wire.Reply
	if err := s.Do(ctx, &wire.Request{Op: wire.OpTake, Keys: []string{key}}, &rep); err != nil {
		return nil, err
	}
	return rep.Values[0], nil
}

// aMomentMore is ctx, and a moment more for what must not be left half done.
func aMomentMore(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(Grace, cancel) })
	return long, func() {
		stop()
		cancel()
	}
}

// QueueLen is how many values are in queue.
func (s *Store) QueueLen(ctx context.Context, queue string) (int, error) {
	numbers, err := s.queued(ctx, queue)
	return len(numbers) / numberLen, err
}

// queued are the numbers of queue's values.
func (s *Store) queued(ctx context.Context, queue string) ([]byte, error) {
	numbers, err := s.Get(ctx, QueueKey(queue))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return asNumbers(queue, numbers)
}

// asNumbers is what a queue's entry holds; nil is that there is none. Anybody may have set it to something else: then it would be there, and
// have nothing in it.
func asNumbers(queue string, v []byte) ([]byte, error) {
	if v != nil && len(v) == 0 || len(v)%numberLen != 0 {
		detail := fmt.Sprintf("what is at the key %q is no queue, but %d bytes: delete it", QueueKey(queue), len(v))
		return nil, &Error{Op: "queue", Key: queue, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: detail}
	}
	return v, nil
}
