package testcluster

import (
	"context"
	"slices"
	"sync"

	"github.com/muster-pg/muster/trace"
)

// Events is a trace.Sink that keeps all events.
type Events struct {
	mu  sync.Mutex // protects all
	all []trace.Event
}

// Record implements trace.Sink.
func (s *Events) Record(_ context.Context, e trace.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, e)
}

// All returns the events, the oldest first.
func (s *Events) All() []trace.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// Of returns the events of op, the oldest first.
func (s *Events) Of(op string) []trace.Event {
	return slices.DeleteFunc(s.All(), func(e trace.Event) bool { return e.Op != op })
}
