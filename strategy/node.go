package strategy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
)

// WorkerNode is a worker of an elastic job. It registers, sends its heartbeats, and is connected to
// the others of the view that it is in:
//
//	node := &strategy.WorkerNode{Address: "muster://store:7070", Worker: membership.Config{Job: "train", ID: host, Min: 2, Max: 8}}
//	err := node.Start(ctx) // returns in a view
//	defer node.Close()
//	for s := node.Strategy(); ; {
//		err := train(ctx, s) // begins with s.BroadcastTensors(ctx, 0, params)
//		if !node.Over(err) {
//			return err
//		}
//		if s, err = node.Next(ctx); err != nil {
//			return err
//		}
//	}
//
// The view ends when one of its workers fails or leaves, or another one joins. Then the operations
// of its strategy fail, on all ranks with the same result, and Next returns the strategy of the
// next view, whose ranks are 0, 1, 2, … again. Rank 0 is the worker that has been there for
// longest; the others, new ones among them, get their weights from it. A rank may have finished a
// step whose verb failed on another.
//
// The node has no goroutine of its own: those that send heartbeats and watch for views belong to
// its membership.Member, from Start to Close, and those of the connections to the collective.Comm,
// from one view to the next. It is safe for concurrent use.
type WorkerNode struct {
	Address string       // URL of the store, as muster://host:port; it need not be up yet
	Store   *store.Store // one that is open, instead; Close leaves it open
	Worker  membership.Config

	// TLS is for the store, which may ask for a certificate, and turns on TLS between workers, with
	// certificates that they make for it. An Address that names its TLS turns it on too. All
	// workers use it, or none.
	TLS *store.TLSFiles
	// Listen is the host or host:port that workers on other nodes connect to; default: the
	// interface of the default route, and 127.0.0.1 if there are no other nodes. Beyond loopback it
	// takes TLS, or Insecure.
	Listen   string
	Insecure bool   // gradients may cross a network unencrypted, where others can read and change them
	Host     string // names this node, as in pgroup.Config

	// LivenessTimeout is for how long a worker may be silent before it is lost, as in
	// pgroup.Config. The Store has its own.
	LivenessTimeout time.Duration

	Timeout   time.Duration        // of a verb whose ctx has no deadline, and of waiting for the store; default 5 min
	Algorithm collective.Algorithm // of the strategies, the same for all workers
	Logger    *slog.Logger         // default: none
	Trace     trace.Sink           // gets an event for every operation of strategies and their Comms

	steps sync.Mutex   // keeps Start, Next and Close apart
	open  *store.Store // that Start has opened; guarded by steps

	mu     sync.Mutex              // protects the fields below; not held during I/O
	life   context.Context         // from Start until Close begins; nil: not started
	stop   context.CancelCauseFunc // ends it
	member *membership.Member
	round  *round // nil: between views
}

// The errors of a node's own; others are those of membership, pgroup and store.
var (
	// ErrStarted: Start was called before, and Close was not.
	ErrStarted = errors.New("started already")
	// ErrNotStarted: Start was not called, or Close was.
	ErrNotStarted = errors.New("not started")
	// ErrInsecure: workers would listen beyond loopback without TLS.
	ErrInsecure = store.ErrInsecure
)

const (
	defaultTimeout = 5 * time.Minute
	defaultTTL     = 10 * time.Second // that of package membership
	duplicatePause = 100 * time.Millisecond
	leaveTime      = time.Second // how long Close waits for the store's answer
)

// Start registers the worker, and returns when it is in a view and connected to the others. A
// worker that was killed may come back before the store has given up its former life; its id is in
// use until then, and Start tries again, for Worker.TTL at most. ctx bounds the start alone. After
// an error nothing is left of it, and the node may be started again.
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

// begin takes the lock, and makes the node a started one.
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

// untilClose is ctx, and ends when Close begins.
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

// Next waits for a view that is newer than that of Strategy, closes that, and returns the strategy
// of the new one, when all of its workers have come to it. A worker that was evicted, since it was
// away for too long, registers again. Call it when Over says so: while the view holds, it waits.
func (w *WorkerNode) Next(ctx context.Context) (*AllReduce, error) {
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

// Close ends the worker's part in its job; to the others, it has left. Verbs, Start and Next that
// are in progress fail. It may be called twice, and before Start, which may be called again.
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

// Over reports whether err, of a strategy, is the end of its view, after which Next returns another
// one, and not an error of the caller. A verb that another rank has ended may be either, until this
// one learns of the view's end too: then Over waits for that, for a second at most. An error that
// Over has recognized is a *membership.ViewError too, which names the workers that joined or left.
func (w *WorkerNode) Over(err error) bool {
	r := w.current()
	return r != nil && r.view.Over(err)
}

// Strategy is that of the view that the worker is in; nil before Start, after Close, and while Next
// changes it.
func (w *WorkerNode) Strategy() *AllReduce {
	if r := w.current(); r != nil {
		return r.strategy
	}
	return nil
}

// Rank is this worker's number in the view; -1 if Strategy is nil.
func (w *WorkerNode) Rank() int {
	if r := w.current(); r != nil {
		return r.view.Rank
	}
	return -1
}

// Size is the number of workers in the view; 0 if Strategy is nil.
func (w *WorkerNode) Size() int {
	if r := w.current(); r != nil {
		return r.view.Size()
	}
	return 0
}

// Member is the registration, for checkpoints; nil if the node is not started. It is the node's to
// close.
func (w *WorkerNode) Member() *membership.Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.member
}

// Ready is a health check: it answers 200 while the worker is in a view whose strategy works, and
// 503 with the reason while not.
func (w *WorkerNode) Ready() http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		text, err := w.ready()
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err != nil {
			rw.WriteHeader(http.StatusServiceUnavailable)
			text = err.Error()
		}
		fmt.Fprintln(rw, text)
	})
}

func (w *WorkerNode) ready() (string, error) {
	r := w.current()
	switch {
	case !w.started():
		return "", w.fail("ready", ErrNotStarted)
	case r == nil:
		return "", w.fail("ready", errors.New("it waits for the workers of its view"))
	case r.over.Err() != nil:
		return "", w.fail("ready", context.Cause(r.over))
	}
	if over := r.comm.Group().Context(); over.Err() != nil {
		return "", w.fail("ready", context.Cause(over))
	}
	return fmt.Sprintf("rank %d of %d in view %d", r.view.Rank, r.view.Size(), r.view.Generation), nil
}

func (w *WorkerNode) started() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.life != nil
}

func (w *WorkerNode) current() *round {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.round
}

func (w *WorkerNode) fail(op string, err error) error {
	return fmt.Errorf("strategy: %s of worker %q: %w", op, w.Worker.ID, err)
}

func (w *WorkerNode) log() *slog.Logger {
	if w.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return w.Logger
}

// check refuses what makes no sense before anybody is asked.
func (w *WorkerNode) check() error {
	switch {
	case (w.Address == "") == (w.Store == nil):
		return fmt.Errorf("%w: one of Address and Store says where the job is", pgroup.ErrInvalid)
	case w.Timeout < 0:
		return fmt.Errorf("%w: Timeout is %v", pgroup.ErrInvalid, w.Timeout)
	case w.Listen != "" && !w.secure() && !isLoopback(w.Listen):
		return fmt.Errorf("%w: Listen is %q: set TLS, or listen on 127.0.0.1, or set Insecure", ErrInsecure, w.Listen)
	}
	return nil
}

// secure reports whether workers may listen beyond loopback.
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

// isLoopback does not look names up: only what can be nothing else is.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
