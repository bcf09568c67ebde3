package transport

import (
	"sync"
	"sync/atomic"
)

// Budget bounds the bytes that many connections hold together. A nil Budget has no bound.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Take takes n bytes from the budget, or returns them if n is negative.
func (b *Budget) Take(n int) {
	if b != nil && n != 0 {
		b.used.Add(int64(n))
	}
}

// Used returns the number of bytes taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// Fits reports whether n bytes are left.
func (b *Budget) Fits(n int) bool { return b == nil || b.used.Load()+int64(n) <= b.limit }

// Reserve takes n bytes if they are left, and reports whether they were; a negative n returns bytes.
// Of several callers at the same time no two take the same bytes.
func (b *Budget) Reserve(n int) bool {
	if b == nil {
		return true
	}
	if used := b.used.Add(int64(n)); n > 0 && used > b.limit {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

// Body is bytes that may wait in several outboxes, and count once. They must not be modified.
type Body struct {
	Bytes []byte

	mu      sync.Mutex // protects the fields below
	waiting int        // number of outboxes that have it
	budget  *Budget    // of the first of them
}

// retain counts one more outbox.
func (b *Body) retain(budget *Budget) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting++; b.waiting == 1 {
		b.budget = budget
		budget.Take(len(b.Bytes))
	}
}

// release counts one outbox less.
func (b *Body) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting--; b.waiting == 0 {
		b.budget.Take(-len(b.Bytes))
	}
}
