package dataparallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// enter opens the store, unless the caller has, and registers the worker.
func (w *WorkerNode) enter(ctx context.Context) error {
	s := w.Store
	if s == nil {
		var err error
		if s, err = w.dial(ctx); err != nil {
			return err
		}
		w.open = s
	}
	m, err := w.join(ctx, s)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.member = m
	return nil
}

func (w *WorkerNode) dial(ctx context.Context) (*store.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(w.Timeout, defaultTimeout))
	defer cancel()
	o := &store.DialOptions{Wait: true, LivenessTimeout: w.LivenessTimeout, Logger: w.Logger}
	if w.TLS != nil {
		o.TLS = w.TLS.Client
	}
	return store.DialURL(ctx, w.Address, o)
}

// join registers the worker. It tries again while the ID may belong to an earlier process of this worker
// whose lease has not expired.
func (w *WorkerNode) join(ctx context.Context, s *store.Store) (*membership.Member, error) {
	c := w.Worker
	c.Addr = cmp.Or(c.Addr, w.Listen)
	var duplicate error // of an earlier attempt
	for end := time.Now().Add(cmp.Or(c.TTL, defaultTTL) + leaveTime); ; {
		m, err := membership.Join(ctx, s, c)
		switch {
		case err == nil:
			return m, nil
		case ctx.Err() != nil && duplicate != nil:
			return nil, fmt.Errorf("%w: %w", ctx.Err(), duplicate)
		case !errors.Is(err, membership.ErrDuplicate) || time.Now().After(end):
			return nil, err
		}
		duplicate = err
		select {
		case <-time.After(duplicatePause):
		case <-ctx.Done(): // Join returns the error
		}
	}
}

// next connects to the workers of the next view. It skips a view that ends before all have connected.
func (w *WorkerNode) next(ctx context.Context) (*Strategy, error) {
	for {
		v, err := w.member.Next(ctx)
		if errors.Is(err, membership.ErrEvicted) && !errors.Is(err, membership.ErrExcluded) {
			if err := w.again(ctx, err); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		w.swap(nil)
		r, err := w.connect(ctx, v)
		switch {
		case err == nil:
			w.formed = v
			w.swap(r)
			w.log().Info("joined view", "worker", w.Worker.ID, "view", v.Generation, "rank", v.Rank, "size", v.Size(), "change", v.Change.String())
			return r.strategy, nil
		case ctx.Err() != nil:
			return nil, err
		case v.Over(err):
		case noAnswer(err):
			if err := w.again(ctx, err); err != nil {
				return nil, err
			}
		case !w.exclude(ctx, v, err) && !w.awaitEnd(ctx, v, err):
			return nil, err
		}
		w.log().Info("view ended before all workers had connected", "worker", w.Worker.ID, "view", v.Generation, "err", err)
	}
}

// awaitEnd waits, after a timeout or a broken connection, whether the workers that were in the view before
// v go on without those at fault: then v ends. This worker is a new one, and knows of no view before v.
func (w *WorkerNode) awaitEnd(ctx context.Context, v membership.View, err error) bool {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, pgroup.ErrFailed) {
		return false
	}
	select {
	case <-v.Context(ctx).Done():
		return ctx.Err() == nil
	case <-time.After(cmp.Or(w.JoinTimeout, joinTimeout)):
		return false
	}
}

// again registers the worker again.
func (w *WorkerNode) again(ctx context.Context, why error) error {
	w.log().Warn("registering again", "worker", w.Worker.ID, "err", why)
	w.leave()
	return w.enter(ctx)
}

// noAnswer reports whether err says that this worker did not reach the store. Then it knows nothing of the
// others, and must not exclude them; they may have excluded it.
func noAnswer(err error) bool {
	return slices.ContainsFunc([]error{pgroup.ErrUnknown, pgroup.ErrUnavailable, store.ErrSessionLost, store.ErrStale},
		func(e error) bool { return errors.Is(err, e) })
}

// exclude removes new workers from the job because view v could not form with them. It returns false if
// this worker is a new one itself, or none is: then cause is for the caller. Several workers may exclude
// the same ones.
func (w *WorkerNode) exclude(ctx context.Context, v membership.View, cause error) bool {
	fresh := v.Newcomers(w.formed)
	if len(fresh) == 0 || slices.Contains(fresh, v.Rank) {
		return false
	}
	blamed := slices.DeleteFunc(ranksOf(cause), func(rank int) bool { return !slices.Contains(fresh, rank) })
	if len(blamed) == 0 {
		blamed = fresh
	}
	w.log().Warn("excluding new workers, with which the view does not form", "worker", w.Worker.ID, "view", v.Generation, "ranks", blamed, "err", cause)
	if err := v.Exclude(ctx, blamed...); err != nil {
		w.log().Warn("exclude", "worker", w.Worker.ID, "err", err)
		return v.Over(err)
	}
	return true
}

// ranksOf returns the ranks that err names.
func ranksOf(err error) []int {
	re, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || re.Failure == nil {
		return nil
	}
	return slices.Concat(re.Missing, re.Lost, re.Left, []int{re.By})
}

// swap makes r the current round, and closes the previous one.
func (w *WorkerNode) swap(r *round) {
	w.mu.Lock()
	before := w.round
	w.round = r
	w.mu.Unlock()
	if before != nil {
		before.close()
	}
}

// leave undoes enter, and closes the round.
func (w *WorkerNode) leave() {
	w.swap(nil)
	w.mu.Lock()
	m := w.member
	w.member = nil
	w.mu.Unlock()
	if m != nil {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
		defer cancel()
		if err := m.Leave(ctx); err != nil {
			w.log().Debug("leave", "worker", w.Worker.ID, "err", err)
		}
	}
	if w.open != nil {
		_ = w.open.Close()
		w.open = nil
	}
}

// end undoes begin: the node is no longer started.
func (w *WorkerNode) end() {
	w.leave()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.stop(nil)
	}
	w.life, w.stop = nil, nil
}

// round is a view and the connections to its workers.
type round struct {
	view     membership.View
	over     context.Context // ends when the view ends
	group    *pgroup.Group
	comm     *collective.Comm
	strategy *Strategy
	unhook   func() // undoes abortAtEnd, or waits for it
}

// connect creates the group of v and its Comm. All workers of v call it.
func (w *WorkerNode) connect(ctx context.Context, v membership.View) (*round, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = v.Context(ctx)
	if fresh := v.Newcomers(w.formed); len(fresh) > 0 && !slices.Contains(fresh, v.Rank) {
		ctx, cancel = context.WithTimeout(ctx, cmp.Or(w.JoinTimeout, joinTimeout))
		defer cancel()
	}
	cfg := v.Config()
	cfg.Host, cfg.Timeout, cfg.Logger, cfg.TLS, cfg.Trace = w.Host, w.Timeout, w.Logger, w.TLS, w.Trace
	if cfg.TLS == nil && w.encrypts() {
		cfg.TLS = &store.TLSFiles{} // the store is open already: this is for the connections between workers
	}
	g, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c, err := w.openComm(ctx, g)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	if err := c.Barrier(ctx); err != nil { // connections open with the first verb
		return nil, errors.Join(err, c.Close(), g.Close())
	}
	r := &round{view: v, group: g, comm: c, over: v.Context(context.Background())}
	r.strategy = New(c, nil)
	r.strategy.view = r.over
	r.abortAtEnd()
	return r, nil
}

// abortAtEnd aborts the group when the view ends. Without that, a verb of Group or Comm whose context
// does not end would wait for a rank that is in the next view already, or waits here, too.
func (r *round) abortAtEnd() {
	aborted := make(chan struct{})
	stop := context.AfterFunc(r.over, func() {
		defer close(aborted)
		r.view.Abort(r.group)
	})
	r.unhook = func() {
		if !stop() {
			<-aborted
		}
	}
}

func (w *WorkerNode) openComm(ctx context.Context, g *pgroup.Group) (*collective.Comm, error) {
	if w.Listen == "" && g.NodeCount() > 1 && !w.secure() {
		return nil, fmt.Errorf("%w: the view has workers on %d nodes: set TLS, or Listen to 127.0.0.1 if they are one machine, or Insecure", ErrInsecure, g.NodeCount())
	}
	return collective.Open(ctx, g, &collective.Options{Algorithm: w.Algorithm, Listen: w.Listen, Dial: w.Dial})
}

func (r *round) close() {
	r.unhook()
	_ = r.comm.Close()
	_ = r.group.Close()
}
