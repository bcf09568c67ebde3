// Package membership tracks the workers of a job while they join, leave and fail. Each change makes a
// new View, which all workers agree on: who is in the job, and at which rank.
//
//	m, err := membership.Join(ctx, s, membership.Config{Job: "train", ID: host, Addr: addr, Min: 2, Max: 8})
//	defer m.Close()
//	for {
//		view, err := m.Next(ctx) // ranks and workers, once there are Min
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
// No process coordinates the job. Its state is keys and leases in a store, below membership/JOB/. A
// worker's registration is bound to a lease that the worker renews in the background. The lease ends
// with the worker's session: a worker that is killed is out when the reconnect timeout of the server
// has passed, 0.5 s by default, and one that is frozen or cut off after Config.TTL at most.
//
// Of the live workers, the one that registered first decides the next view; if it fails, the next one
// does. It replaces the key of the view by a compare-and-swap, so that each generation is decided
// once. Ranks are dense and follow the order of registration: workers that stay keep their order.
// All workers see views in the same order, but not each of them sees all views: Next returns the
// newest.
package membership

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/muster-pg/muster/store"
)

// Errors of this package match one of these with errors.Is, or an error of the store or a context.
var (
	// ErrDuplicate: another live worker of the job has this ID. The error names its address.
	ErrDuplicate = errors.New("id in use")
	// ErrEvicted: the lease of this worker has expired. It may Join again.
	ErrEvicted = errors.New("evicted")
	// ErrExcluded: another worker has removed this worker with View.Exclude, because their view could not
	// form with it. The error matches ErrEvicted, too.
	ErrExcluded = errors.New("excluded")
	// ErrFinished: the work of the job is done; see View.Finish.
	ErrFinished = errors.New("finished")
	// ErrOver: the view has ended. The error is a *ViewError.
	ErrOver = errors.New("view over")
	// ErrNotInView: this worker is not in the view.
	ErrNotInView = errors.New("not in the view")
	// ErrMismatch: the workers of the job have different values of Min, Max or Settings.
	ErrMismatch = store.ErrMismatch
	// ErrInvalid: a Config is not valid.
	ErrInvalid = store.ErrInvalid
	// ErrNotFound: the checkpoint does not exist.
	ErrNotFound = store.ErrNotFound
	// ErrClosed: this Member was closed, or has left.
	ErrClosed = store.ErrClosed
)

const (
	defaultTTL = 10 * time.Second
	maxName    = 256 // bytes of a job, an id, an address or settings
	// retention is how long the store keeps a view that no worker renews. After that the job is
	// forgotten, and another job of this name begins with generation 1.
	retention = time.Hour
	// checkpointTTL is how long the store keeps a checkpoint. Leave says which ones go earlier.
	checkpointTTL = 24 * time.Hour
	// closeWait is how long Close waits for the store's reply.
	closeWait = time.Second
)

// Config describes this worker, and the size of views.
type Config struct {
	Job  string // the same in all workers of the job
	ID   string // of this worker, unique in the job
	Addr string // given to the other workers; may be empty

	// Min and Max are the fewest and the most workers of a view, the same in all workers of the job.
	// A Max of 0 means Min. A worker that joins a view of Max workers is a standby: it waits until one
	// of them is gone.
	Min, Max int
	// Settings is text that must be the same in all workers of the job too, as the options of a program.
	// The error of a worker that has another one than the first worker quotes both. May be empty.
	Settings string
	// Settle is how long rank 0 waits for more workers when there are at least Min and fewer than
	// Max, even after a worker has failed or left.
	Settle time.Duration
	TTL    time.Duration // of the worker's lease; default 10 s
	// Launch names the launch of this job: the same in all its workers, and in no earlier job of this name. A
	// worker that starts when the work of its launch is done gets ErrFinished from Join. Without a name it
	// begins the work anew. MUSTER_LAUNCH has that of muster run. May be empty.
	Launch string
}

// withDefaults returns c with its defaults filled in, or the error of check.
func (c Config) withDefaults() (Config, error) {
	c.Max = cmp.Or(c.Max, c.Min)
	if err := c.check(); err != nil {
		return c, &Error{Op: "join", Job: c.Job, ID: c.ID, Rank: -1, Err: err}
	}
	c.TTL = cmp.Or(c.TTL, defaultTTL)
	return c, nil
}

func (c *Config) check() error {
	for _, n := range []struct {
		field, value string
		empty        bool
	}{{"Job", c.Job, false}, {"ID", c.ID, false}, {"Addr", c.Addr, true}, {"Settings", c.Settings, true}, {"Launch", c.Launch, true}} {
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
		return fmt.Errorf("%w: Config.Min is %d: a view has at least one worker", ErrInvalid, c.Min)
	case c.Max < c.Min:
		return fmt.Errorf("%w: Config.Max is %d, less than Config.Min, %d", ErrInvalid, c.Max, c.Min)
	case c.Settle < 0:
		return fmt.Errorf("%w: Config.Settle is %v", ErrInvalid, c.Settle)
	case c.TTL < 0:
		return fmt.Errorf("%w: Config.TTL is %v", ErrInvalid, c.TTL)
	}
	return nil
}

// Worker identifies a worker to the others.
type Worker struct{ ID, Addr string }

func (w Worker) String() string {
	if w.Addr == "" {
		return fmt.Sprintf("%q", w.ID)
	}
	return fmt.Sprintf("%q at %s", w.ID, w.Addr)
}

// Error is a failed operation of a worker. It wraps one of the errors above, or one of the store.
type Error struct {
	Op     string // "join", "next", "leave", "checkpoint", …
	Job    string
	ID     string // of the worker
	Rank   int    // in the view that Next returned last; -1 before that
	Detail string // the cause, as far as Err does not say it
	Err    error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "membership: %s of worker %q", e.Op, e.ID)
	if e.Rank >= 0 {
		fmt.Fprintf(&b, " (rank %d)", e.Rank)
	}
	fmt.Fprintf(&b, " in job %q: %v", e.Job, e.Err)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	return b.String()
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }
