// Package trace says what every verb did.
package trace

import (
	"context"
	"time"
)

// Event is one finished operation.
type Event struct {
	Op         string // "collective.allreduce", …
	Group      string
	Generation uint64
	Seq        uint64
	Rank, Size int
	Last       int // the rank that came last, -1 if not known
	Bytes      int64
	Start, End time.Time
	Waited     time.Duration // of it, for others
	Err        error
}

// Sink receives events. Record must not block; ctx is the verb's, for its parent span.
type Sink interface {
	Record(ctx context.Context, e Event)
}
