// Package coordinator is membership: workers come, go and are lost, and each change is a View that all agree on.
//
//	m, err := coordinator.Join(ctx, s, coordinator.Config{Job: "train", ID: host, Addr: addr, Min: 2, Max: 8})
//	defer m.Close()
//	for {
//		view, err := m.Next(ctx) // ranks and workers, once they are enough
//		...
//		g, err := pgroup.Create(view.Context(ctx), view.Config())
//		err = train(view.Context(ctx), g)
//		if err == nil {
//			return m.Leave(ctx)
//		}
//		if !view.Over(err) {
//			return err
//		}
//	}
//
// There is no process that coordinates: it is keys and leases in a store, below coordinator/JOB/. A worker's registration goes with its lease,
// which the worker keeps alive by itself, and which ends with its session: a worker that is killed is out as soon as the
// store gives its session up, half a second later if nothing else was said to the server, and one that is frozen or cut off after Config.TTL at most.
//
// The worker that registered first among those who live decides views, for all: a view is a key that is created once. If
// that worker dies, the next one does. Ranks are dense and follow the order of registration, so that those who stay keep theirs in their
// order. Everybody sees the views in the same order, and perhaps not all of them: what Next gives is the newest.
package coordinator

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/muster-pg/muster/store"
)

// What an error of this package matches, with errors.Is, beside those of the store, and the ends of contexts.
var (
	// ErrDuplicate: another worker of the job that lives has this id. The error says where it is.
	ErrDuplicate = errors.New("id in use")
	// ErrEvicted: the store gave up this worker, which was away, or silent, for too long. It may Join again.
	ErrEvicted = errors.New("evicted")
	// ErrOver: a view is over. The error is a *ViewError.
	ErrOver = errors.New("view over")
	// ErrNotInView: this worker is not in the view that is meant.
	ErrNotInView = errors.New("not in the view")
	// ErrMismatch: the workers of a job are told different Min or Max.
	ErrMismatch = store.ErrMismatch
	// ErrInvalid: a Config makes no sense.
	ErrInvalid = store.ErrInvalid
	// ErrNotFound: there is no such checkpoint.
	ErrNotFound = store.ErrNotFound
	// ErrClosed: this Member was closed, or has left.
	ErrClosed = store.ErrClosed
)

const (
	defaultTTL = 10 * time.Second
	maxName    = 256 // bytes of a job, an id or an address
	// retention is how long a view is kept when nobody is there who renews it: its job is then forgotten, and another of its name
	// begins with generation 1.
	retention = time.Hour
	// checkpointTTL is how long checkpoints are kept, if the last worker did not Leave before.
	checkpointTTL = 24 * time.Hour
	// closeWait is how long Close waits for the store to hear of it.
	closeWait = time.Second
)

// Config says who this worker is, and how many a view has.
type Config struct {
	Job  string // all of its workers say the same
	ID   string // of this worker, unique in the job
	Addr string // what the others are told of where it is

	// A view has Min to Max workers; Max 0 is Min. All workers of a job say the same. Who comes when there are Max is a standby, and
	// waits until there is room.
	Min, Max int
	// Settle is how long to wait for more when there are Min; that of rank 0 counts. It is waited too after a worker was
	// lost or left, and not if there are Max.
	Settle time.Duration
	TTL    time.Duration // a worker silent for longer is out; default 10 s
}

// withDefaults checks c and fills in what it leaves out.
func (c Config) withDefaults() (Config, error) {
	if c.Max == 0 {
		c.Max = c.Min
	}
	if err := c.check(); err != nil {
		return c, &Error{Op: "join", Job: c.Job, ID: c.ID, Rank: -1, Err: err}
	}
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	return c, nil
}

func (c *Config) check() error {
	for _, n := range []struct {
		field, value string
		empty        bool
	}{{"Job", c.Job, false}, {"ID", c.ID, false}, {"Addr", c.Addr, true}} {
		switch {
		case n.value == "" && !n.empty:
			return fmt.Errorf("%w: Config.%s is empty", ErrInvalid, n.field)
		case len(n.value) > maxName:
			return fmt.Errorf("%w: Config.%s has %d bytes, the limit is %d", ErrInvalid, n.field, len(n.value), maxName)
		case !utf8.ValidString(n.value):
			return fmt.Errorf("%w: Config.%s is not UTF-8", ErrInvalid, n.field)
		}
	}
	switch {
	case c.Min < 1:
		return fmt.Errorf("%w: Config.Min is %d: a view has a worker at least", ErrInvalid, c.Min)
	case c.Max < c.Min:
		return fmt.Errorf("%w: Config.Max is %d, less than Config.Min, %d", ErrInvalid, c.Max, c.Min)
	case c.Settle < 0:
		return fmt.Errorf("%w: Config.Settle is %v", ErrInvalid, c.Settle)
	case c.TTL < 0:
		return fmt.Errorf("%w: Config.TTL is %v", ErrInvalid, c.TTL)
	}
	return nil
}

// Worker is a worker as the others know it.
type Worker struct{ ID, Addr string }

func (w Worker) String() string {
	if w.Addr == "" {
		return fmt.Sprintf("%q", w.ID)
	}
	return fmt.Sprintf("%q at %s", w.ID, w.Addr)
}

// Error is what a worker could not do. It wraps one of the errors above, or one of the store.
type Error struct {
	Op     string // "join", "next", "leave", "checkpoint", …
	Job    string
	ID     string // of the worker
	Rank   int    // in the view that Next gave last; -1 if it has not
	Detail string // what a user needs to know beyond Err
	Err    error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "coordinator: %s of worker %q", e.Op, e.ID)
	if e.Rank >= 0 {
		fmt.Fprintf(&b, " (rank %d)", e.Rank)
	}
	fmt.Fprintf(&b, " in job %q: %v", e.Job, e.Err)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	return b.String()
}

// Unwrap returns what is wrapped.
func (e *Error) Unwrap() error { return e.Err }
