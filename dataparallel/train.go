package dataparallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// Training is a training loop that survives changes of the workers. Goal, Tensors and Step are required,
// and Goal is the same on all workers.
type Training struct {
	// Tensors are all that a step changes: the weights, and the state of the optimizer. All workers have
	// the same names, dtypes and shapes. A worker that joins receives their contents from another one.
	Tensors map[string]*tensor.Tensor
	// Completed is the number of steps in Tensors. Train increments it, and sets it when the worker
	// receives Tensors. A worker that has read a checkpoint sets it before Train.
	Completed int64
	Goal      int64 // Train returns when this many steps are complete

	// Step takes one step, from Completed to Completed+1, on the shares of s.Rank of s.Size. It must not
	// change Tensors before the last of its calls of s has returned nil, because a step that returns an
	// error is taken again. ctx ends with the view.
	Step func(ctx context.Context, s *Strategy) error
	// After, if not nil, is called when a step is complete, for example for a log or a checkpoint. A worker
	// that has received the result of a step from another one does not call it for this step. If it returns
	// an error because the view has ended, it is not called again.
	After func(ctx context.Context, s *Strategy) error

	made version // what Tensors hold
}

// version identifies the contents of a Training's tensors. Two workers with equal versions have the same
// bits, except before the first view, when Run is empty.
type version struct {
	Completed  int64
	Run        string // of the job, in which the contents were last received or changed
	Generation uint64 // of the view, likewise
}

// compare orders versions. The more steps, the newer. Of two versions with equally many steps, that of the
// later view is newer: the other one is of a worker that the view did not have.
func (v version) compare(o version) int {
	return cmp.Or(cmp.Compare(v.Completed, o.Completed), cmp.Compare(v.Generation, o.Generation))
}

// Train runs t until all workers of the view have completed t.Goal steps. It starts the node if necessary.
// The caller closes the node.
//
// In each view, the workers first agree on the newest version of the tensors, which is one with the most
// completed steps. The workers that do not have it receive it from one that does, through the view's Comm
// and not from a disk. When the view ends, Train goes on in the next one: a worker whose step has failed
// receives its result from a worker that has completed it, or, if there is none, all workers take the step
// again. So each step counts once, no step is lost while a worker lives that has completed it, and all
// workers have the same bits after each step, if Step computes the same update from the same gradients.
//
// A worker that fails while it sends the tensors ruins no other worker's: they are received in other
// memory, of the same size, and copied when they are complete.
//
// Train returns ErrFinished if the job has finished without this worker, the error of Step or After if the
// end of a view has not caused it, and the error of Start and Next otherwise. If connections between workers
// break while all of them reach the store, that is a pgroup.ErrFailed: after Close, Train may be called again
// with t, whose state counts. One Train runs at a time: another call returns pgroup.ErrBusy.
func (w *WorkerNode) Train(ctx context.Context, t *Training) error {
	if !w.training.TryLock() {
		return w.fail("train", fmt.Errorf("%w: another Train is in progress", pgroup.ErrBusy))
	}
	defer w.training.Unlock()
	if err := t.check(); err != nil {
		return w.fail("train", err)
	}
	if !w.started() {
		switch err := w.unlessFinished(ctx, membership.View{}, w.Start); {
		case errors.Is(err, ErrFinished):
			return w.fail("train", t.behind())
		case err != nil:
			return err
		}
	}
	for {
		r := w.current()
		if r == &between {
			return w.fail("train", ErrNotStarted)
		}
		err := w.trainView(ctx, r, t)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrFinished), !r.view.Over(err):
			return w.fail("train", err)
		}
		w.log().Info("view ended", "worker", w.Worker.ID, "view", r.view.Generation, "completed", t.Completed, "err", err)
		switch err := w.unlessFinished(ctx, r.view, func(ctx context.Context) error { _, err := w.Next(ctx); return err }); {
		case errors.Is(err, ErrFinished) && t.Completed == t.Goal: // with the others
			return nil
		case errors.Is(err, ErrFinished):
			return w.fail("train", t.behind())
		case err != nil:
			return err
		}
	}
}

func (t *Training) check() error {
	switch {
	case t.Step == nil:
		return fmt.Errorf("%w: Training.Step is nil", pgroup.ErrInvalid)
	case t.Completed < 0 || t.Completed > t.Goal:
		return fmt.Errorf("%w: Training.Completed is %d, and Goal %d", pgroup.ErrInvalid, t.Completed, t.Goal)
	}
	if t.made.Completed != t.Completed { // a checkpoint was read
		t.made = version{Completed: t.Completed}
	}
	_, err := newPlan(t.Tensors)
	return err
}

// trainView takes steps until the goal is reached on all ranks, or an error ends the view.
func (w *WorkerNode) trainView(ctx context.Context, r *round, t *Training) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	inView := r.view.Context(ctx)
	if err := r.unfinished(inView, t); err != nil {
		return err
	}
	if err := t.receive(inView, r); err != nil {
		return err
	}
	for t.Completed < t.Goal {
		if err := t.Step(inView, r.strategy); err != nil {
			return fmt.Errorf("step %d: %w", t.Completed, err)
		}
		t.set(version{t.Completed + 1, r.view.Config().Run, r.view.Generation})
		if t.After == nil {
			continue
		}
		if err := t.After(inView, r.strategy); err != nil {
			return fmt.Errorf("after step %d: %w", t.Completed-1, err)
		}
	}
	// The store decides this barrier, for all ranks alike: if one leaves after it, it has not failed on another.
	if err := r.group.Barrier(inView); err != nil {
		return err
	}
	return r.view.Finish(ctx)
}

func (t *Training) set(v version) { t.Completed, t.made = v.Completed, v }

// unfinished returns ErrFinished if the job has finished without this worker.
func (r *round) unfinished(ctx context.Context, t *Training) error {
	finished, err := r.view.Finished(ctx)
	if err == nil && finished && t.Completed < t.Goal {
		err = t.behind()
	}
	return err
}

func (t *Training) behind() error {
	return fmt.Errorf("%w without this worker, which has completed %d of %d steps", ErrFinished, t.Completed, t.Goal)
}

// offer is what a worker sends the others of its view.
type offer struct {
	Have version
	Goal int64
	Hash uint64 // of the names, dtypes and shapes of the tensors
}

// receive brings t to the newest version in the view. All ranks choose the same one, and the same source:
// the lowest rank that has it.
func (t *Training) receive(ctx context.Context, r *round) error {
	p, err := newPlan(t.Tensors)
	if err != nil {
		return err
	}
	offers, err := pgroup.AllGather(ctx, r.group.Channel("dataparallel"), offer{t.made, t.Goal, p.hash})
	if err != nil {
		return err
	}
	if err := r.alike(ctx, offers); err != nil {
		return err
	}
	root, equal := 0, true
	for rank, o := range offers {
		if o.Have.compare(offers[root].Have) > 0 {
			root = rank
		}
		equal = equal && o.Have == offers[0].Have
	}
	newest := offers[root].Have
	if !equal || newest.Run == "" { // without a view, equal numbers of steps say nothing about bits
		if err := t.copyFrom(ctx, r.strategy, root, newest); err != nil {
			return err
		}
	}
	t.set(version{newest.Completed, r.view.Config().Run, r.view.Generation})
	return nil
}

// alike compares the offers with that of rank 0, the worker that has been in the job for longest. Workers
// with another goal or other tensors return ErrMismatch, and the others exclude them.
func (r *round) alike(ctx context.Context, offers []offer) error {
	var odd []int
	for rank, o := range offers {
		if o.Goal != offers[0].Goal || o.Hash != offers[0].Hash {
			odd = append(odd, rank)
		}
	}
	switch {
	case len(odd) == 0:
		return nil
	case slices.Contains(odd, r.view.Rank):
		mine := offers[r.view.Rank]
		if mine.Goal != offers[0].Goal {
			return fmt.Errorf("%w: Training.Goal is %d here, and %d on rank 0, worker %v", pgroup.ErrMismatch, mine.Goal, offers[0].Goal, r.view.Workers[0])
		}
		return fmt.Errorf("%w: Training.Tensors have other names, dtypes or shapes here than on rank 0, worker %v", pgroup.ErrMismatch, r.view.Workers[0])
	}
	if err := r.view.Exclude(ctx, odd...); err != nil {
		return err
	}
	<-ctx.Done() // the view ends with the excluded workers
	return context.Cause(ctx)
}

// copyFrom receives the tensors of rank root, which have that version. If it fails, t has what it had.
// A rank that has the version already receives in place: it receives the bytes that it has.
func (t *Training) copyFrom(ctx context.Context, s *Strategy, root int, v version) error {
	into := t.Tensors
	if s.Rank() != root && (t.made != v || v.Run == "") {
		into = map[string]*tensor.Tensor{}
		for name, x := range t.Tensors {
			into[name] = tensor.New(x.DType, x.Shape...)
		}
	}
	if err := s.BroadcastTensors(ctx, root, into); err != nil {
		return err
	}
	for name, x := range into {
		copy(t.Tensors[name].Data, x.Data)
	}
	return nil
}

// unlessFinished calls f, which waits for a view after v. It returns ErrFinished if the others finish
// first: there may never be another view then.
func (w *WorkerNode) unlessFinished(ctx context.Context, v membership.View, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	defer func() {
		cancel(nil)
		<-done
	}()
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			m := w.Member()
			if m != nil && m.WaitFinished(ctx, v) == nil {
				cancel(ErrFinished)
				return
			}
			select { // the store is not reachable, or this worker registers again
			case <-time.After(duplicatePause):
			case <-ctx.Done():
			}
		}
	}()
	err := f(ctx)
	if err != nil && errors.Is(context.Cause(ctx), ErrFinished) {
		return ErrFinished
	}
	return err
}

// Checkpoint saves a checkpoint with all other workers of the view. All of them call it, with the same
// epoch and path; save writes this worker's part. It returns when all parts are saved: then
// membership.Member.NewestCheckpoint finds it. Call it in Training.After.
func (w *WorkerNode) Checkpoint(ctx context.Context, epoch int64, path string, save func() error) error {
	r, m := w.current(), w.Member()
	if r == &between || m == nil {
		return w.fail("checkpoint", ErrNotStarted)
	}
	id := ""
	if r.view.Rank == 0 {
		c, err := m.StartCheckpoint(ctx, epoch, path)
		if err != nil {
			return w.fail("checkpoint", err)
		}
		id = c.ID
	}
	id, err := pgroup.Broadcast(ctx, r.group.Channel("dataparallel"), 0, id)
	if err != nil {
		return err
	}
	c, err := m.Checkpoint(ctx, id)
	if err == nil {
		err = save()
	}
	if err == nil {
		_, err = c.End(ctx)
	}
	if err == nil {
		err = c.Wait(r.view.Context(ctx))
	}
	if err != nil {
		return w.fail("checkpoint", err)
	}
	return nil
}
