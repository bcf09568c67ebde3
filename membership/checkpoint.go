package membership

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/muster-pg/muster/store"
)

// Checkpoint is a checkpoint that all workers of a view save together. It is complete when each of them
// has called End. If one of them fails before, it is never complete.
type Checkpoint struct {
	ID         string
	Epoch      int64    // of the training, as given to StartCheckpoint
	Path       string   // as given to StartCheckpoint
	Generation uint64   // of the view
	Workers    []Worker // by rank

	slots  []slot
	member *Member
}

// saved is the form of a Checkpoint in the store.
type saved struct {
	Epoch      int64
	Path       string
	Generation uint64
	Slots      []slot
}

// StartCheckpoint begins a checkpoint of the view that Next returned last. One worker calls it and sends
// the ID to the others, which pass it to Checkpoint. epoch and path are for the caller's use.
func (m *Member) StartCheckpoint(ctx context.Context, epoch int64, path string) (*Checkpoint, error) {
	const op = "start of a checkpoint"
	m.mu.Lock()
	view, over := m.given, m.over
	m.mu.Unlock()
	switch {
	case over != nil:
		return nil, m.fail(op, over)
	case view == nil:
		return nil, m.fail(op, fmt.Errorf("%w: Next has returned no view", ErrNotInView))
	case view.ctx.Err() != nil:
		return nil, m.fail(op, context.Cause(view.ctx))
	case !utf8.ValidString(path):
		return nil, m.fail(op, fmt.Errorf("%w: path %q is not UTF-8", ErrInvalid, path))
	}
	s := saved{epoch, path, view.Generation, view.Slots}
	id := fmt.Sprintf("%d-%s", epoch, rand.Text())
	err := m.store.Set(ctx, m.keys.checkpoint(id)+"is", encode(&s), &store.SetOptions{TTL: checkpointTTL})
	if err != nil {
		return nil, m.fail(op, err)
	}
	return m.checkpoint(id, &s), nil
}

// Checkpoint returns the checkpoint with this ID, which another worker may have started. The error
// matches ErrNotFound if it does not exist.
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

// NewestCheckpoint returns the complete checkpoint with the highest epoch; of several with this epoch the
// one that was started last. It may be of an earlier view, of other workers, or of an earlier run of a job
// with this name: the store keeps checkpoints for 24 hours. The error matches ErrNotFound if there is none.
func (m *Member) NewestCheckpoint(ctx context.Context) (*Checkpoint, error) {
	const op = "newest checkpoint"
	all, err := m.checkpoints(ctx)
	if err != nil {
		return nil, m.fail(op, err)
	}
	c := newest(all)
	if c == nil {
		return nil, m.fail(op, fmt.Errorf("%w: of %d checkpoints none is complete", ErrNotFound, len(all)))
	}
	return m.checkpoint(c.id, &c.saved), nil
}

// listed is a checkpoint as the store lists it.
type listed struct {
	saved
	id    string
	rev   store.Revision
	ended map[string]bool // by the name of the registration
	keys  []string        // all of its keys
}

// checkpoints lists the checkpoints of the job.
func (m *Member) checkpoints(ctx context.Context) ([]*listed, error) {
	byID := map[string]*listed{}
	for e, err := range m.store.List(ctx, m.keys.checkpoints) {
		if err != nil {
			return nil, err
		}
		escaped, rest, _ := strings.Cut(strings.TrimPrefix(e.Key, m.keys.checkpoints), "/")
		id, err := url.PathUnescape(escaped)
		if err != nil {
			return nil, foreign(e, err)
		}
		c := byID[id]
		if c == nil {
			c = &listed{id: id, ended: map[string]bool{}}
			byID[id] = c
		}
		c.keys = append(c.keys, e.Key)
		if name, ok := strings.CutPrefix(rest, "ended/"); ok {
			c.ended[name] = true
			continue
		}
		c.rev = e.Rev
		if err := decode(e, &c.saved); err != nil {
			return nil, err
		}
	}
	return slices.Collect(maps.Values(byID)), nil
}

// newest returns the newest of the checkpoints that are complete, or nil.
func newest(all []*listed) (best *listed) {
	for _, c := range all {
		complete := len(c.Slots) > 0 // otherwise it has expired, and an end of it has not
		for _, s := range c.Slots {
			complete = complete && c.ended[path.Base(s.Key)]
		}
		if complete && (best == nil || cmp.Or(cmp.Compare(c.Epoch, best.Epoch), cmp.Compare(c.rev, best.rev)) > 0) {
			best = c
		}
	}
	return best
}

func (m *Member) checkpoint(id string, s *saved) *Checkpoint {
	c := &Checkpoint{ID: id, Epoch: s.Epoch, Path: s.Path, Generation: s.Generation, slots: s.Slots, member: m}
	for _, s := range s.Slots {
		c.Workers = append(c.Workers, s.Worker)
	}
	return c
}

// End records that this worker has saved its part, and reports whether all workers have. It is
// idempotent. The error matches ErrNotInView if this worker is not in the checkpoint's view; a worker
// that was evicted and has joined again is another worker.
func (c *Checkpoint) End(ctx context.Context) (complete bool, err error) {
	if err := c.member.why(); err != nil {
		return false, c.fail("end", err)
	}
	if !slices.ContainsFunc(c.slots, func(s slot) bool { return s.Key == c.member.self.key }) {
		return false, c.fail("end", fmt.Errorf("%w: generation %d has %d workers, and this worker is not one of them", ErrNotInView, c.Generation, len(c.slots)))
	}
	err = c.member.store.Set(ctx, c.key(c.member.self.key), nil, &store.SetOptions{TTL: checkpointTTL})
	if err != nil {
		return false, c.fail("end", err)
	}
	missing, err := c.Missing(ctx)
	return err == nil && len(missing) == 0, err
}

// Missing returns the workers that have not called End, by rank; none if the checkpoint is complete.
func (c *Checkpoint) Missing(ctx context.Context) ([]Worker, error) {
	ended := map[string]bool{}
	for key, err := range c.member.store.Keys(ctx, c.key("")) {
		if err != nil {
			return nil, c.fail("state", err)
		}
		ended[key] = true
	}
	var missing []Worker
	for _, s := range c.slots {
		if !ended[c.key(s.Key)] {
			missing = append(missing, s.Worker)
		}
	}
	return missing, nil
}

// Wait waits until the checkpoint is complete. If ctx ends first, as a View's Context does when a worker
// fails, the error names the keys of the workers that are missing.
func (c *Checkpoint) Wait(ctx context.Context) error {
	all := make([]string, len(c.slots))
	for i, s := range c.slots {
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

// key returns the key that says that the worker with this registration has called End. An empty
// registration gives the prefix of these keys.
func (c *Checkpoint) key(registration string) string {
	return c.member.keys.checkpoint(c.ID) + "ended/" + strings.TrimPrefix(registration, c.member.keys.workers)
}

func (c *Checkpoint) fail(what string, err error) *Error {
	return c.member.fail(fmt.Sprintf("%s of checkpoint %q", what, c.ID), err)
}
