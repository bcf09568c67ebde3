package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/store"
)

const (
	// stateTTL is how long the store keeps the state of a job whose agents have all been killed.
	stateTTL = 24 * time.Hour
	// endedTTL is how long it keeps the outcome of a job for nodes that have not read it: spares, and
	// nodes that were about to enter.
	endedTTL = 5 * time.Minute
)

// shared is the state of a job in the store.
type shared struct {
	store *store.Store
	key   string
}

// get returns the value of the key; nil if there is none.
func (s *shared) get(ctx context.Context) ([]byte, error) {
	raw, err := s.store.Get(ctx, s.key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return raw, err
}

func (s *shared) decode(raw []byte) (*state, error) {
	st := &state{}
	if raw == nil {
		return st, nil
	}
	if err := json.Unmarshal(raw, st); err != nil {
		return nil, fmt.Errorf("key %q was not written by muster run: %w", s.key, err)
	}
	return st, nil
}

// update replaces the state by what change makes of it, and returns that. change may be called
// several times, with what other agents have written meanwhile. A state without nodes and outcome is
// deleted.
func (s *shared) update(ctx context.Context, change func(*state)) (*state, error) {
	raw, err := s.get(ctx)
	for err == nil {
		st, err := s.decode(raw)
		if err != nil {
			return nil, err
		}
		change(st)
		var next []byte
		ttl := stateTTL
		if st.Outcome != "" {
			ttl = endedTTL
		}
		if len(st.Nodes) > 0 || st.Outcome != "" {
			if next, err = json.Marshal(st); err != nil {
				return nil, err
			}
		}
		if raw == nil && next == nil {
			return st, nil
		}
		now, err := s.store.SwapFor(ctx, s.key, raw, next, ttl)
		if err == nil {
			return st, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return nil, err
		}
		raw = now
	}
	return nil, err
}

// follow calls see with the state, and again after each change, until ctx ends.
func (s *shared) follow(ctx context.Context, see func(*state)) {
	const firstPause, mostPause = 10 * time.Millisecond, time.Second
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, mostPause) {
		_ = s.watch(ctx, see) // without a store, the lease of the node decides whether that takes too long
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// renew makes a change at once, and again each time that this time has passed, until ctx ends. So the state
// does not expire while nothing else changes it.
func (s *shared) renew(ctx context.Context, every time.Duration, change func(*state)) {
	for {
		_, _ = s.update(ctx, change) // or the next time
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
	}
}

// watch is follow until the first error.
func (s *shared) watch(ctx context.Context, see func(*state)) error {
	after, err := s.store.Revision(ctx)
	if err != nil {
		return err
	}
	raw, err := s.get(ctx)
	if err != nil {
		return err
	}
	show := func(raw []byte) error {
		st, err := s.decode(raw)
		if err == nil && raw != nil {
			see(st)
		}
		return err
	}
	if err := show(raw); err != nil {
		return err
	}
	for e, err := range s.store.Watch(ctx, s.key, after) {
		if err == nil {
			err = show(e.Value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
