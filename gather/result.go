package gather

import (
	"context"
	"iter"
	"sync"
)

// Result is what the first rank of a list got. On the others it has no Items. It is to be released on every rank.
type Result[T any] struct {
	First   bool      // this rank is the first of the list, and has Items
	Outside bool      // this rank is not in the list
	Items   []Item[T] // aligned with the list of ranks

	loan *loan
}

// Item is what one rank gave.
type Item[T any] struct {
	Rank   int // in the group
	Absent bool
	Value  T // until Release; of the first rank itself it is what it passed
}

// Present yields rank and value of those that are not absent, in the order of the list.
func (r *Result[T]) Present() iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for _, it := range r.Items {
			if !it.Absent && !yield(it.Rank, it.Value) {
				return
			}
		}
	}
}

// Release gives the memory of Items back to the ranks that it is of, who may now change it: their tensors' Data must not be
// touched any more. It may be called twice, from many goroutines, and on every rank.
func (r *Result[T]) Release() { r.loan.release() }

// Returned waits until the first rank has released what this rank gave. Before that, a tensor that was born in Options.Arena
// must not be changed: the first rank may be reading it. Other tensors have been copied, and may be changed at once.
// Without a deadline ctx gets the group's Config.Timeout. An error is a *pgroup.RankError that names the first rank: ErrTimeout or ErrCancelled if
// ctx ends before, ErrLost or ErrLeft if the first rank is gone, ErrFailed if a gather on the list has failed since. It may be reading still.
func (r *Result[T]) Returned(ctx context.Context) error { return r.loan.returned(ctx) }

// loan is what a Result keeps of others, or others of it.
type loan struct {
	once sync.Once
	mu   sync.Mutex                      // protects undo while it grows
	undo []func()                        // on the first rank
	lent func(ctx context.Context) error // on the others
}

func (l *loan) release() {
	if l == nil {
		return
	}
	l.once.Do(func() {
		for _, f := range l.undo {
			f()
		}
	})
}

func (l *loan) returned(ctx context.Context) error {
	if l == nil || l.lent == nil {
		return nil
	}
	return l.lent(ctx)
}

// keep adds to what Release undoes.
func (l *loan) keep(undo func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.undo = append(l.undo, undo)
}
