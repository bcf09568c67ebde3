package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/muster-pg/muster/store"
)

// Checkpoint is something that all workers of a view are to save: it is complete when each of them has ended it. If one of
// them is lost before, it never is.
type Checkpoint struct {
	ID         string
	Epoch      int64
	Path       string
	Generation uint64   // of the view whose workers these are
	Workers    []Worker // by rank

	seats  []seat
	member *Member
}

// saved is a Checkpoint as it is in the store.
type saved struct {
	Epoch      int64
	Path       string
	Generation uint64
	Seats      []seat
}

// StartCheckpoint begins a checkpoint of the view that Next gave last. One worker does that, and tells the others the ID, for Checkpoint.
func (m *Member) StartCheckpoint(ctx context.Context, epoch int64, path string) (*Checkpoint, error) {
	const op = "start of a checkpoint"
	m.mu.Lock()
	view, over := m.given, m.over
	m.mu.Unlock()
	switch {
	case over != nil:
		return nil, m.fail(op, over)
	case view == nil:
		return nil, m.fail(op, fmt.Errorf("%w: Next has given none", ErrNotInView))
	case view.ctx.Err() != nil:
		return nil, m.fail(op, context.Cause(view.ctx))
	case !utf8.ValidString(path):
		return nil, m.fail(op, fmt.Errorf("%w: path %q is not UTF-8", ErrInvalid, path))
	}
	s := saved{epoch, path, view.Generation, view.Seats}
	id := fmt.Sprintf("%d-%s", epoch, rand.Text())
	err := m.store.Set(ctx, m.keys.checkpoint(id)+"is", encode(&s), &store.SetOptions{TTL: checkpointTTL})
	if err != nil {
		return nil, m.fail(op, err)
	}
	return m.checkpoint(id, &s), nil
}

// Checkpoint is the checkpoint of this ID, which another worker may have started; ErrNotFound if there is none.
func (m *Member) Checkpoint(ctx context.Context, id string) (*Checkpoint, error) {
	key := m.keys.checkpoint(id) + "is"
	v, err := m.store.Get(ctx, key)
	if err != nil {
		return nil, m.fail(fmt.Sprintf("checkpoint %q", id), err)
	}
	var s saved
	if err := decode(store.Entry{Key: key, Value: v}, &s); err != nil {
		return nil, m.fail(fmt.Sprintf("checkpoint %q", id), err)
	}
	return m.checkpoint(id, &s), nil
}

func (m *Member) checkpoint(id string, s *saved) *Checkpoint {
	c := &Checkpoint{ID: id, Epoch: s.Epoch, Path: s.Path, Generation: s.Generation, seats: s.Seats, member: m}
	for _, s := range s.Seats {
		c.Workers = append(c.Workers, s.Worker)
	}
	return c
}

// End says that this worker has saved its part, and returns whether all have: the last one hears that it is complete, and so
// does whoever calls it again. A worker that is not in the checkpoint's view hears ErrNotInView; one that was evicted and is back is another worker.
func (c *Checkpoint) End(ctx context.Context) (complete bool, err error) {
	if err := c.member.why(); err != nil {
		return false, c.fail("end", err)
	}
	if (&record{Seats: c.seats}).rank(c.member.self.key) < 0 {
		return false, c.fail("end", fmt.Errorf("%w: generation %d has %d workers, and this is none of them", ErrNotInView, c.Generation, len(c.seats)))
	}
	err = c.member.store.Set(ctx, c.key(c.member.self.key), nil, &store.SetOptions{TTL: checkpointTTL})
	if err != nil {
		return false, c.fail("end", err)
	}
	missing, err := c.Missing(ctx)
	return err == nil && len(missing) == 0, err
}

// Missing are the workers that have not ended it, by rank: none if it is complete.
func (c *Checkpoint) Missing(ctx context.Context) ([]Worker, error) {
	ended := map[string]bool{}
	for key, err := range c.member.store.Keys(ctx, c.key("")) {
		if err != nil {
			return nil, c.fail("state", err)
		}
		ended[key] = true
	}
	var missing []Worker
	for _, s := range c.seats {
		if !ended[c.key(s.Key)] {
			missing = append(missing, s.Worker)
		}
	}
	return missing, nil
}

// Wait waits until all workers have ended it. When ctx ends first, which a View's Context does when one of them is lost, the error says who has not.
func (c *Checkpoint) Wait(ctx context.Context) error {
	all := make([]string, len(c.seats))
	for i, s := range c.seats {
		all[i] = c.key(s.Key)
	}
	_, err := c.member.store.Wait(ctx, all...)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return c.fail("wait", err)
}

// key is that of the end of the worker with this registration; that of all of them is without one.
func (c *Checkpoint) key(registration string) string {
	return c.member.keys.checkpoint(c.ID) + "ended/" + strings.TrimPrefix(registration, c.member.keys.workers)
}

func (c *Checkpoint) fail(what string, err error) *Error {
	return c.member.fail(fmt.Sprintf("%s of checkpoint %q", what, c.ID), err)
}
