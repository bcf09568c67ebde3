// Package trace says what every verb did: one Event as it ends.
//
//	var seen trace.Memory
//	cfg.Trace = trace.Multi(&seen, prom) // wherever a Config has a Sink
//	...
//	fmt.Println(seen.Total("collective.allreduce").Seconds())
//
// A nil Sink is nobody who listens, and costs nothing.
package trace

import (
	"context"
	"slices"
	"time"
)

// Event is one finished operation.
type Event struct {
	Op         string // "pgroup.barrier", "collective.allreduce", "store.get", …
	Group      string
	Channel    string // of the group, whose records have numbers of their own; "" is the group itself; behind the scenes, as of packages on top, it starts with a NUL byte
	Generation uint64
	ID         uint64 // of this generation, the same on all ranks, and another one on another store; 0 if not known
	Seq        uint64 // of the verb, on its channel; the same on all ranks. 0: it has none
	Rank, Size int
	Last       int   // the rank that came last, and the others waited for; -1 if not known
	Bytes      int64 // that this rank gave; of those that only got some, those
	Start, End time.Time
	Waited     time.Duration // of it, for others
	Err        error
}

// Duration is how long the operation took.
func (e *Event) Duration() time.Duration { return e.End.Sub(e.Start) }

// Sink receives events. Record is called by many goroutines at once, on the way of the verb that it tells of: it must not block. ctx is the
// verb's, for its parent span, and may have ended. An Event is the sink's to keep.
type Sink interface {
	Record(ctx context.Context, e Event)
}

// Now is when an operation begins whose event goes to s. Without a sink it is the zero time, and no clock is read.
func Now(s Sink) time.Time {
	if s == nil {
		return time.Time{}
	}
	return time.Now()
}

// Record gives e to s, if there is one. Without e.End, e ends now.
func Record(ctx context.Context, s Sink, e Event) {
	if s == nil {
		return
	}
	if e.End.IsZero() {
		e.End = time.Now()
	}
	s.Record(ctx, e)
}

// Multi records to each of sinks, in their order; to those of them that are not nil. It is nil if none is.
func Multi(sinks ...Sink) Sink {
	there := slices.DeleteFunc(slices.Clone(sinks), func(s Sink) bool { return s == nil })
	switch len(there) {
	case 0:
		return nil
	case 1:
		return there[0]
	}
	return multi(there)
}

type multi []Sink

func (m multi) Record(ctx context.Context, e Event) {
	for _, s := range m {
		s.Record(ctx, e)
	}
}
