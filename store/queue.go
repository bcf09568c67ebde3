package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
)

// A queue is an entry with the numbers of its values, in their order, which is there while the queue is not empty, and an entry for
// each value. A value is put there before its number, and taken out by whoever has taken its number out, so that nobody sees half of it.

// QueueKey is the key of the entry that is there while there is something in queue: for Wait, Watch and Delete.
func QueueKey(queue string) string { return queue + "\x00queue" }

// numberLen is the length of a value's number.
const numberLen = 8

func queuedKey(queue string, number []byte) string {
	return fmt.Sprintf("%s/%x", QueueKey(queue), number)
}

// Push puts value at the end of queue. The names of queues are no keys: there may be a queue and a key of the same name.
func (s *Store) Push(ctx context.Context, queue string, value []byte) error {
	number := binary.LittleEndian.AppendUint64(nil, rand.Uint64())
	if err := s.Set(ctx, queuedKey(queue, number), value, &SetOptions{Reads: 1}); err != nil {
		return err
	}
	_, err := s.Append(ctx, QueueKey(queue), number)
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
	for err == nil && len(numbers) >= numberLen {
		rest := numbers[numberLen:]
		if len(rest) == 0 {
			rest = nil // an empty queue is none
		}
		now, err := s.Swap(ctx, QueueKey(queue), numbers, rest)
		switch {
		case errors.Is(err, ErrConflict): // somebody was faster
			numbers = now
		case err != nil:
			return nil, 0, err
		default:
			value, err = s.Get(ctx, queuedKey(queue, numbers[:numberLen]))
			return value, len(numbers) / numberLen, err
		}
	}
	return nil, 0, err
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
	return numbers, err
}
