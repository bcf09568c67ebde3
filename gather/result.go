package gather

import (
	"context"
	"iter"
	"sync"
)

// Result is what the first rank of a list received. On other ranks it has no Items. It must be
// released on every rank.
type Result[T any] struct {
	First   bool      // this rank is the first of the list, and has Items
	Outside bool      // this rank is not in the list
	Items   []Item[T] // aligned with the list of ranks

	resources *resources
}

// Item is what one rank sent.
type Item[T any] struct {
	Rank   int // rank in the group
	Absent bool
	Value  T // valid until Release; the first rank's own value is the one that it passed
}

// Present yields the rank and the value of the ranks that are not absent, in the order of the list.
func (r *Result[T]) Present() iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for _, it := range r.Items {
			if !it.Absent && !yield(it.Rank, it.Value) {
				return
			}
		}
	}
}

// Release returns the memory of Items to the ranks that own it, which may then modify it: the
// tensors' Data must no longer be used. It may be called repeatedly, concurrently, and on every
// rank.
func (r *Result[T]) Release() { r.resources.release() }

// WaitReleased waits until the first rank has released what this rank sent. Before that, a tensor
// that was allocated in Options.Arena must not be modified: the first rank may be reading it. Other
// tensors have been copied, and may be modified at once. A ctx without a deadline gets the group's
// Config.Timeout. An error is a *pgroup.RankError that names the first rank: ErrTimeout or
// ErrCancelled if ctx ends before, ErrLost or ErrLeft if the first rank is gone, ErrFailed if a
// gather on the list has failed since. After an error, the first rank may still be reading.
func (r *Result[T]) WaitReleased(ctx context.Context) error { return r.resources.returned(ctx) }

// resources is what a Result holds: on the first rank memory of the others, on the others the
// memory that they share.
type resources struct {
	once sync.Once
	mu   sync.Mutex                      // protects undo while it grows
	undo []func()                        // on the first rank
	wait func(ctx context.Context) error // on the others
}

func (l *resources) release() {
	if l == nil {
		return
	}
	l.once.Do(func() {
		for _, f := range l.undo {
			f()
		}
	})
}

func (l *resources) returned(ctx context.Context) error {
	if l == nil || l.wait == nil {
		return nil
	}
	return l.wait(ctx)
}

// keep adds a function that Release calls.
func (l *resources) keep(undo func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.undo = append(l.undo, undo)
}
