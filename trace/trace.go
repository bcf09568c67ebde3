// Package trace records one Event for each operation, when it ends.
//
//	cfg.Trace = trace.Multi(trace.Chrome(file), prom) // every Config with a Sink
//
// A nil Sink records nothing, and costs nothing.
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
	Channel    string // "": the group itself; channels of packages begin with a NUL byte
	Generation uint64
	// identifies the generation: equal on all ranks, and different on another store; 0: unknown
	ID         uint64
	Seq        uint64 // sequence number on the channel, equal on all ranks; 0: none
	Rank, Size int
	Last       int   // the rank that arrived last, for which the others waited; -1: unknown
	Bytes      int64 // bytes that this rank contributed, or that it received if it contributed none
	Start, End time.Time
	Waited     time.Duration // the part of the duration spent waiting for other ranks
	Err        error
}

// Duration returns how long the operation took.
func (e *Event) Duration() time.Duration { return e.End.Sub(e.Start) }

// Sink receives events. Record is called concurrently, by the goroutine of the operation: it must
// not block. ctx is the operation's context, for its parent span, and may have ended. The sink may
// keep the Event.
type Sink interface {
	Record(ctx context.Context, e Event)
}

// Now returns the current time, for the start of an operation whose event goes to s. Without a sink
// it returns the zero time, and reads no clock.
func Now(s Sink) time.Time {
	if s == nil {
		return time.Time{}
	}
	return time.Now()
}

// Record sends e to s, unless that is nil. Without e.End, e ends now.
func Record(ctx context.Context, s Sink, e Event) {
	if s == nil {
		return
	}
	if e.End.IsZero() {
		e.End = time.Now()
	}
	s.Record(ctx, e)
}

// Multi returns a sink that sends to all sinks that are not nil, in their order. It is nil if none
// is left.
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
