package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
)

// Elastic has an agent run the workers of an elastic job, which find each other by package
// membership, instead of ranks. Fields are required unless they have a default.
//
// Each agent keeps the workers of its node alive: one that fails starts again alone, as another
// worker, while the others go on. MaxRestarts of the Agent bounds that for the whole job. The job
// has succeeded when all workers that are left have, and failed when fewer than Min are left.
type Elastic struct {
	Min, Max int // workers of the job; the same in all agents
	UnitSize int // processes of a worker, the same in all agents; 0 is 1
	// Start runs a worker, and returns when it has ended. When ctx ends, it ends the worker. It is
	// called from several goroutines at the same time.
	Start func(ctx context.Context, w Worker) error
	// Store is where the workers meet, in the job Job of package membership; nil: the agent does not reach
	// it. The agent removes workers that have failed from it, so that the others need not wait for a timeout.
	// When the work is finished (membership.View.Finish), no worker starts again.
	Store *store.Store
	Job   string
	// Finish is the time that the last workers have to end by themselves when the job has succeeded;
	// standbys may not know. Default 30 s.
	Finish time.Duration
}

const defaultFinish = 30 * time.Second

// Worker is one start of a worker.
type Worker struct {
	ID     string // unique among all workers of the job
	Slot   int    // place on this node: a worker that starts again has the same
	Start  int    // 1, and one more each time that it starts again
	Launch string // of the job, for membership.Config.Launch
	// Failed has the other workers learn at once that this one has failed. Elastic.Start calls it if
	// processes of the worker have yet to end; its own return does the same.
	Failed func()
}

// workerError is implemented by errors of Elastic.Start that know the reason without the rank, and the
// exit code.
type workerError interface {
	error
	Reason() string
	ExitCode() int
}

// errOver ends the workers that are left when the job has ended.
var errOver = errors.New("the job has ended")

// elastic is the state of Agent.Run for an elastic job, while this node is in it.
type elastic struct {
	*run
	shared  shared
	view    membership.View // the newest one; of goroutine nodes while that runs
	id      string          // of the job
	workers context.Context // ends when this node is to end its workers
	stop    context.CancelCauseFunc
	over    chan struct{} // closed when the outcome is known

	mu      sync.Mutex  // protects the fields below
	seen    *state      // the newest one
	noted   bool        // a worker has ended because this node is to leave
	own     error       // the first error of such a worker
	overdue *time.Timer // runs while there are too few workers
	finish  *time.Timer // ends the workers that are left
}

// elastic runs the workers of this node until the job has ended, or this node is out of it.
func (r *run) elastic(ctx context.Context, m *membership.Member) error {
	e := &elastic{run: r, shared: r.shared(), over: make(chan struct{})}
	e.workers, e.stop = context.WithCancelCause(ctx)
	defer e.stop(nil)
	following, end := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { e.shared.follow(following, e.see) })
	err := e.begin(ctx, m)
	if err == nil {
		tasks.Go(func() { e.nodes(following, m) })
		tasks.Go(func() { e.reportViews(following) })
		tasks.Go(func() { e.shared.renew(following, stateTTL/3, func(*state) {}) })
		var keepers sync.WaitGroup
		for slot := range r.Procs {
			keepers.Go(func() { e.keep(slot) })
		}
		keepers.Wait()
		err = e.result()
	}
	end()
	tasks.Wait()
	e.mu.Lock()
	e.expect(nil)
	if e.finish != nil {
		e.finish.Stop()
	}
	e.mu.Unlock()
	if e.id != "" && !errors.Is(err, membership.ErrEvicted) {
		e.leave(ctx)
	}
	if errors.Is(err, errOver) {
		return e.seen.err()
	}
	return err
}

// begin waits until there are enough nodes, and adds this one to the state of the job. The error is
// errOver if the job has ended meanwhile.
func (e *elastic) begin(ctx context.Context, m *membership.Member) error {
	waits, stop := context.WithCancelCause(e.waits)
	defer stop(nil)
	defer context.AfterFunc(e.workers, func() { stop(context.Cause(e.workers)) })()
	e.Status(Status{State: Waiting})
	var err error
	if e.view, err = e.next(waits, m); err != nil {
		if cause := context.Cause(waits); cause != nil && e.waits.Err() == nil {
			return cause
		}
		return e.interrupted(err)
	}
	st, err := e.shared.update(ctx, func(st *state) {
		st.enter(e.Name, e.Procs, membersOf(e.view), e.rules(), e.before, time.Now())
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.id, e.seen = st.ID, st
	if st.Outcome != "" {
		return errOver
	}
	e.expect(st)
	e.Status(st.status())
	return nil
}

// shared returns the state of the job in the store.
func (r *run) shared() shared { return shared{store: r.Store, key: r.Job + "/state"} }

// read returns the state of the job in the store.
func (r *run) read(ctx context.Context) (*state, error) {
	s := r.shared()
	raw, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	return s.decode(raw)
}

func (e *elastic) rules() rules {
	return rules{Min: e.Elastic.Min, Max: e.Elastic.Max, MaxRestarts: e.MaxRestarts}
}

func membersOf(view membership.View) members {
	m := members{run: view.Config().Run, generation: view.Generation}
	for _, w := range view.Workers {
		m.names = append(m.names, w.ID)
	}
	return m
}

// leave removes this node, and the outcome if there is no other node to read it: a spare would have
// been in the view. The store may not be reachable.
func (e *elastic) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	e.change(ctx, func(st *state) {
		st.leaves(e.Name)
		if e.view.Size() == 1 && e.MaxNodes > 1 && len(st.Nodes) == 0 {
			*st = state{}
		}
	})
}

// keep runs the worker of a slot, again and again.
func (e *elastic) keep(slot int) {
	for e.workers.Err() == nil && !e.ending() {
		w := e.worker(slot)
		err := e.Elastic.Start(e.workers, w)
		switch {
		case e.workers.Err() != nil:
			return
		case e.ending():
			e.note(err)
			return
		}
		again, lost := e.counted(w, err)
		if lost != nil {
			e.stop(lost)
		}
		if !again {
			return
		}
	}
}

// worker returns the next start of a slot. The number goes on after this node was evicted and has
// joined again: workers of before may not have left the job yet.
func (e *elastic) worker(slot int) Worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.starts == nil {
		e.starts = make([]int, e.Procs)
	}
	e.starts[slot]++
	id := fmt.Sprintf("%s-%d", strings.ReplaceAll(e.Name, ":", "."), slot)
	if n := e.starts[slot]; n > 1 {
		id += fmt.Sprintf(".%d", n)
	}
	return Worker{ID: id, Slot: slot, Start: e.starts[slot], Launch: e.id, Failed: func() {
		if !e.ending() {
			ctx, cancel := context.WithTimeout(e.workers, leaveTimeout)
			defer cancel()
			e.remove(ctx, id)
		}
	}}
}

// note keeps the first error of a worker that ended because this node leaves.
func (e *elastic) note(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noted = true
	if e.own == nil {
		e.own = err
	}
}

// counted counts the end of a worker, and reports whether it starts again. An error is that of the
// store.
func (e *elastic) counted(w Worker, err error) (again bool, lost error) {
	f := Failure{Process: "worker " + w.ID, Node: e.Name, Code: 1, Time: time.Now()}
	if err != nil {
		f.Reason = err.Error()
	}
	if known, ok := errors.AsType[workerError](err); ok {
		f.Reason, f.Code = known.Reason(), known.ExitCode()
	}
	finished := err != nil && e.removed(w.ID)
	_, lost = e.shared.update(e.workers, func(st *state) {
		again = false
		st.Finished = st.Finished || finished
		if err == nil {
			st.success(e.Name)
		} else {
			again = st.failure(f)
		}
	})
	return again && lost == nil, lost
}

// removed removes a worker that has failed from the job of the workers, and reports whether the work of that
// is finished. If their store does not answer, the lease of the worker ends by itself, and it starts again.
func (e *elastic) removed(id string) (finished bool) {
	ctx, cancel := context.WithTimeout(e.workers, leaveTimeout)
	defer cancel()
	e.remove(ctx, id)
	if e.Elastic.Store == nil {
		return false
	}
	finished, err := membership.Finished(ctx, e.Elastic.Store, e.Elastic.Job, e.id)
	return err == nil && finished
}

// remove removes a worker from the job of the workers. Worker.Failed has done so if the worker had joined
// then: a part of it that had yet to end may have joined since.
func (e *elastic) remove(ctx context.Context, id string) {
	if e.Elastic.Store != nil {
		_ = membership.Remove(ctx, e.Elastic.Store, e.Elastic.Job, id)
	}
}

// nodes removes nodes that have failed from the state, and ends the workers if this one is evicted. A
// change waits for the store, if that cannot be reached, but not longer than this node is in the job.
func (e *elastic) nodes(ctx context.Context, m *membership.Member) {
	for {
		view := e.view
		<-view.Context(ctx).Done()
		lost, stop := context.WithCancel(ctx)
		var change sync.WaitGroup
		if end, ok := errors.AsType[*membership.ViewError](context.Cause(view.Context(ctx))); ok {
			change.Go(func() {
				e.change(lost, func(st *state) {
					for _, w := range end.Gone[:len(end.Lost)] {
						st.lost(w.ID, time.Now())
					}
				})
			})
		}
		next, err := m.Next(ctx)
		if err == nil {
			unhook := context.AfterFunc(next.Context(ctx), stop)
			change.Wait()
			unhook()
		}
		stop()
		change.Wait()
		if err != nil {
			if ctx.Err() == nil {
				e.stop(err)
			}
			return
		}
		e.view = next
		e.change(next.Context(ctx), func(st *state) { st.reconcile(membersOf(next), time.Now()) })
	}
}

// change updates the state. Without a store, the membership decides what follows.
func (e *elastic) change(ctx context.Context, change func(*state)) {
	_, _ = e.shared.update(ctx, change)
}

// see receives each state in turn. It reports what has changed, and ends the workers when the job has
// ended.
func (e *elastic) see(st *state) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.id == "" && (st.Outcome == "" || st.ID == e.before) || e.id != "" && st.ID != e.id {
		return
	}
	before := e.seen
	e.seen = st
	e.report(before, st)
	if st.Outcome != "" && (before == nil || before.Outcome == "") {
		e.conclude(st)
	}
	e.expect(st)
	e.Status(st.status())
}

// conclude ends the workers that are left: when the job has succeeded, some time later. The caller
// holds mu.
func (e *elastic) conclude(st *state) {
	close(e.over)
	if st.Outcome == failed || e.id == "" {
		e.stop(errOver)
		return
	}
	e.finish = time.AfterFunc(cmp.Or(e.Elastic.Finish, defaultFinish), func() { e.stop(errOver) })
}

func (s *state) status() Status {
	return Status{State: Running, Nodes: len(s.Nodes), Size: s.running(), Restarts: s.Restarts, Failure: s.Last}
}

// report describes the changes since before, which may be nil.
func (e *elastic) report(before, st *state) {
	if before == nil {
		return
	}
	if f := st.Last; st.Failures > before.Failures && f != nil && st.Outcome == "" {
		text := f.String()
		if f.Process != "" && f.Node != e.Name {
			text += " on node " + f.Node
		}
		switch {
		case f.Restart > 0:
			text += fmt.Sprintf(": restart %d of at most %d", f.Restart, st.Rules.MaxRestarts)
		default:
			text += fmt.Sprintf(": %d workers go on", st.left())
		}
		e.Report(text)
	}
}

// reportViews reports how the views of the workers change, until ctx ends or their store fails.
func (e *elastic) reportViews(ctx context.Context) {
	if e.Elastic.Store == nil {
		return
	}
	for c := range membership.Changes(ctx, e.Elastic.Store, e.Elastic.Job) {
		e.Report(c.String())
	}
}

// expect ends the job if it has too few workers for JoinTimeout. nil ends the wait. The caller holds
// mu.
func (e *elastic) expect(st *state) {
	switch few := st != nil && st.Outcome == "" && st.left() < st.Rules.Min; {
	case few && e.overdue == nil:
		e.overdue = time.AfterFunc(e.JoinTimeout, func() {
			e.change(e.workers, func(st *state) { st.overdue(e.JoinTimeout) })
		})
	case !few && e.overdue != nil:
		e.overdue.Stop()
		e.overdue = nil
	}
}

// result waits for the outcome of the job, after the workers of this node have ended.
func (e *elastic) result() error {
	select {
	case <-e.over:
	case <-e.workers.Done():
	case <-e.waits.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.seen != nil && e.seen.Outcome != "":
		return errOver
	case e.ending() && e.noted:
		return e.own
	case e.ending():
		return context.Cause(e.waits)
	}
	return context.Cause(e.workers)
}
