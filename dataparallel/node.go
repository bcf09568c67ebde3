package dataparallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
)

// WorkerNode is a worker of a job in which workers may join, leave and fail. It registers, renews its
// lease, and connects to the other workers of its view. Train is the whole loop of a training:
//
//	node, err := dataparallel.WorkerFromEnv() // or &dataparallel.WorkerNode{Address: …, Worker: …}
//	defer node.Close()
//	t := &dataparallel.Training{Goal: steps, Tensors: params}
//	t.Step = func(ctx context.Context, s *dataparallel.Strategy) error {
//		grads := backward(params, batch(t.Completed, s.Rank(), s.Size()))
//		err := s.AllReduceGradients(ctx, grads)
//		if err == nil {
//			update(params, grads)
//		}
//		return err
//	}
//	err = node.Train(ctx, t)
//
// A program with another loop calls Start, uses Strategy until a call fails with an error for which Over
// returns true, and then calls Next, which returns the Strategy of the next view.
//
// A view ends when one of its workers fails or leaves, or another worker joins. Calls of its Strategy then
// fail, with the same error on all ranks. Ranks of each view count from 0. Rank 0 is the worker that has
// been in the job for longest. A rank may have completed a step that failed on another rank.
//
// If a view cannot form with a worker that is new in it, because the worker does not connect within
// JoinTimeout, or has other settings, the workers that were in the view before exclude it and go on.
//
// A WorkerNode is safe for concurrent use. It owns no goroutine itself. Its membership.Member has those
// that renew the lease and watch for views, from Start to Close; its collective.Comm has those of the
// connections, for one view.
type WorkerNode struct {
	Address string       // URL of the store, as muster://host:port; the store may start later
	Store   *store.Store // an open store, instead of Address; Close does not close it
	Worker  membership.Config

	// TLS is used for the connection to the store, and turns on TLS between workers, with certificates
	// that they generate for it. Parameters for TLS in Address turn it on, too. All workers must use
	// TLS, or none.
	TLS *store.TLSFiles
	// Listen is the host or host:port that workers on other nodes connect to. Default: the interface of
	// the default route, and 127.0.0.1 if all workers are on one node. An address that is not loopback
	// requires TLS or Insecure.
	Listen string
	// Dial makes a connection to a worker on another node; nil means a net.Dialer.
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	Insecure bool   // allow connections without TLS between hosts, which the network can read and change
	Host     string // names this node, as in pgroup.Config

	// LivenessTimeout is as in pgroup.Config. It is not used with Store, which has its own.
	LivenessTimeout time.Duration

	// JoinTimeout is how long the workers of a view wait for a new one to connect, before they exclude it;
	// default 30 s. The first view of a worker has no such limit.
	JoinTimeout time.Duration

	Timeout   time.Duration        // of a verb whose ctx has no deadline, and of the connection to the store; default 5 min
	Algorithm collective.Algorithm // the same in all workers
	Logger    *slog.Logger         // default: none
	Trace     trace.Sink           // receives the events of each view's group, Comm and Strategy

	training sync.Mutex // held by Train: two loops would take each other's steps
	steps    sync.Mutex // held by Start, Next and Close
	// The fields below are protected by steps.
	open   *store.Store    // opened by Start, or nil
	formed membership.View // the last view in which all had connected

	mu     sync.Mutex              // protects the fields below; not held during I/O
	life   context.Context         // from Start until Close begins; nil: not started
	stop   context.CancelCauseFunc // ends it
	member *membership.Member
	round  *round // nil: between views
}

// Errors of a WorkerNode match these, or those of packages membership, pgroup and store.
var (
	// ErrStarted: the node was started, and not closed since.
	ErrStarted = errors.New("started already")
	// ErrNotStarted: the node was not started, or was closed.
	ErrNotStarted = errors.New("not started")
	// ErrInsecure: workers would listen without TLS on an address that is not loopback.
	ErrInsecure = store.ErrInsecure
	// ErrFinished: the job has finished without this worker, which was a standby or cut off at the end.
	ErrFinished = membership.ErrFinished
	// ErrNoLauncher: a variable that WorkerFromEnv needs is not set.
	ErrNoLauncher = errors.New("not started by a launcher of elastic jobs")
)

const (
	defaultTimeout = 5 * time.Minute
	defaultTTL     = 10 * time.Second // that of package membership
	duplicatePause = 100 * time.Millisecond
	joinTimeout    = 30 * time.Second
	leaveTime      = time.Second // how long Close waits for the store's reply
)

// Start registers the worker, and returns when it is in a view and connected to the other workers. If an
// earlier process of this worker was killed, its ID may be in use until its lease expires; Start tries
// again, for Worker.TTL at most. ctx bounds Start only. After an error the worker is not registered, and the
// node may be started again.
func (w *WorkerNode) Start(ctx context.Context) error {
	if err := w.check(); err != nil {
		return w.fail("start", err)
	}
	if !w.begin() {
		return w.fail("start", ErrStarted)
	}
	defer w.steps.Unlock()
	ctx, cancel := w.untilClose(ctx)
	defer cancel()
	err := w.enter(ctx)
	if err == nil {
		_, err = w.next(ctx)
	}
	if err != nil {
		w.end()
		return w.fail("start", err)
	}
	return nil
}

// begin locks steps and marks the node as started. It returns false, without the lock, if it was started.
func (w *WorkerNode) begin() bool {
	if !w.steps.TryLock() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life != nil {
		w.steps.Unlock()
		return false
	}
	w.life, w.stop = context.WithCancelCause(context.Background())
	return true
}

// untilClose returns a context that ends with ctx or when Close is called.
func (w *WorkerNode) untilClose(ctx context.Context) (context.Context, context.CancelFunc) {
	w.mu.Lock()
	life := w.life
	w.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		unhook()
		cancel(nil)
	}
}

// Next waits for a newer view, closes the connections of the old one, and returns the Strategy of the new
// view when all of its workers have connected. A worker whose lease has expired registers again; one that the
// others have excluded gets membership.ErrExcluded. Call Next when Over returns true: while the view has not
// ended, Next waits.
func (w *WorkerNode) Next(ctx context.Context) (*Strategy, error) {
	if !w.steps.TryLock() {
		return nil, w.fail("next", pgroup.ErrBusy)
	}
	defer w.steps.Unlock()
	if !w.started() {
		return nil, w.fail("next", ErrNotStarted)
	}
	ctx, cancel := w.untilClose(ctx)
	defer cancel()
	s, err := w.next(ctx)
	if err != nil {
		return nil, w.fail("next", err)
	}
	return s, nil
}

// Close removes the worker from its job: to the others, it has left. Verbs, Start and Next in progress fail.
// It may be called more than once, and before Start. The node may be started again.
func (w *WorkerNode) Close() error {
	w.mu.Lock()
	stop := w.stop
	w.mu.Unlock()
	if stop != nil {
		stop(pgroup.ErrClosed)
	}
	w.steps.Lock()
	defer w.steps.Unlock()
	w.end()
	return nil
}

// Over reports whether err, an error of the Strategy, was caused by the end of its view: then call Next. If
// it returns false, err has another cause, and is for the caller to handle. If another rank has cancelled
// the verb, Over waits up to five seconds for the end of the view. An error that the end of the view has caused
// usually matches *membership.ViewError, which says which workers joined, left or failed.
func (w *WorkerNode) Over(err error) bool {
	r := w.current()
	return r != &between && r.view.Over(err)
}

// Strategy returns the Strategy of the current view; nil before Start, after Close, and during Next.
func (w *WorkerNode) Strategy() *Strategy { return w.current().strategy }

// View returns the current view, with its workers and its generation; the zero View if Strategy returns nil.
func (w *WorkerNode) View() membership.View { return w.current().view }

// Comm returns the Comm of the current view, for other collective verbs; nil if Strategy returns nil. The
// node aborts its group when the view ends, and closes it.
func (w *WorkerNode) Comm() *collective.Comm { return w.current().comm }

// Group returns the group of the current view; nil if Strategy returns nil. The node aborts it when the view
// ends, so that its verbs fail on all ranks, and closes it.
func (w *WorkerNode) Group() *pgroup.Group { return w.current().group }

// Rank returns the rank of this worker in the view; -1 if Strategy returns nil.
func (w *WorkerNode) Rank() int {
	if r := w.current(); r != &between {
		return r.view.Rank
	}
	return -1
}

// Size returns the number of workers in the view; 0 if Strategy returns nil.
func (w *WorkerNode) Size() int { return w.current().view.Size() }

// Member returns the registration, for checkpoints; nil if the node is not started. The node closes it.
func (w *WorkerNode) Member() *membership.Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.member
}

func (w *WorkerNode) started() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.life != nil
}

// between is the round between views, without a strategy, a group or workers. It is not modified.
var between round

func (w *WorkerNode) current() *round {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.round, &between)
}

func (w *WorkerNode) fail(op string, err error) error {
	return fmt.Errorf("dataparallel: %s of worker %q: %w", op, w.Worker.ID, err)
}

func (w *WorkerNode) log() *slog.Logger {
	return cmp.Or(w.Logger, slog.New(slog.DiscardHandler))
}

// check returns an error if the configuration is not valid.
func (w *WorkerNode) check() error {
	switch {
	case (w.Address == "") == (w.Store == nil):
		return fmt.Errorf("%w: set one of Address and Store", pgroup.ErrInvalid)
	case w.Timeout < 0 || w.JoinTimeout < 0:
		return fmt.Errorf("%w: Timeout is %v, and JoinTimeout %v", pgroup.ErrInvalid, w.Timeout, w.JoinTimeout)
	case w.Listen != "" && !w.secure() && !link.IsLoopback(w.Listen):
		return fmt.Errorf("%w: Listen is %q: set TLS, or listen on 127.0.0.1, or set Insecure", ErrInsecure, w.Listen)
	}
	return nil
}

// secure reports whether workers may listen on addresses that are not loopback.
func (w *WorkerNode) secure() bool { return w.Insecure || w.encrypts() }

// encrypts reports whether connections use TLS.
func (w *WorkerNode) encrypts() bool {
	if w.TLS != nil {
		return true
	}
	u, err := url.Parse(w.Address)
	if err != nil {
		return false
	}
	q := u.Query()
	return q.Has("ca") || q.Has("cert") || q.Get("tls") == "true"
}
