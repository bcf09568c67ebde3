package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// View is one generation of the job: its workers and their ranks, the same on all of them.
type View struct {
	Job        string
	Generation uint64       // from 1; it increases with each view of the job
	Rank       int          // the rank of this worker
	Workers    []Worker     // by rank
	Store      *store.Store // the Member's, which owns it
	// Change is how this view followed the one before it, which Next may have skipped, as far as this worker was
	// there: workers that were gone before count as lost. It is zero if the worker registered after the view.
	Change Change

	state *viewState
}

// viewState is a view as a Member sees it, until it ends.
type viewState struct {
	record
	rank   int // of this worker; -1 if it is not in it
	who    Worker
	job    string
	keys   keys
	launch string
	ctx    context.Context // ends when the view ends; its cause is a *ViewError
	end    context.CancelCauseFunc

	made Change          // this view; zero if it is not known
	over time.Time       // when a worker was first seen to be gone; the Member's mu protects this and left
	left map[string]bool // keys of the workers that have left
}

func (m *Member) newViewState(r *record) *viewState {
	e := &viewState{record: *r, rank: r.rank(m.self.key), who: m.self.Worker, job: m.cfg.Job, keys: m.keys, launch: m.cfg.Launch}
	e.ctx, e.end = context.WithCancelCause(context.Background())
	return e
}

// view returns e in the form of Next's result.
func (m *Member) view(e *viewState) View {
	v := View{Job: m.cfg.Job, Generation: e.Generation, Rank: e.rank, Store: m.store, Change: e.made, state: e}
	for _, s := range e.Slots {
		v.Workers = append(v.Workers, s.Worker)
	}
	return v
}

// Size returns the number of workers.
func (v View) Size() int { return len(v.Workers) }

// Config returns the configuration of this view's group, "JOB view GENERATION", where a / in JOB is
// %2F. It forms on the Member's store, below the keys of the job. Set other fields before pgroup.Create.
func (v View) Config() pgroup.Config {
	return pgroup.Config{
		Name: v.group(), Run: v.state.Run, Rank: v.Rank, Size: v.Size(), Store: store.Prefix(v.Store, v.state.keys.groups),
	}
}

// group returns the name of the view's group, as its errors have it. What follows a / in the name of a
// group is that of a Sub or Split.
func (v View) group() string {
	return fmt.Sprintf("%s view %d", noSlashes.Replace(v.Job), v.Generation)
}

var noSlashes = strings.NewReplacer("%", "%25", "/", "%2F")

// Context returns a context that ends with ctx, or when this view ends: one of its workers has failed
// or left, a newer view has replaced it, or this worker was evicted or closed. In that case its cause
// is a *ViewError.
func (v View) Context(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	if v.state.ctx.Err() != nil { // AfterFunc would cancel ctx later, from another goroutine
		cancel(context.Cause(v.state.ctx))
		return ctx
	}
	stop := context.AfterFunc(v.state.ctx, func() { cancel(context.Cause(v.state.ctx)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// errEnded is the cause of an abort by View.Abort. Over recognizes its text.
var errEnded = errors.New("the view has ended")

// Abort aborts the group g of this view, which has ended: verbs of g fail on all ranks, whatever their
// contexts, with an error for which Over returns true. It is for a caller that does not pass Context to each
// verb. g must still be closed.
func (v View) Abort(g *pgroup.Group) { g.Abort(errEnded) }

// Newcomers returns the ranks of v whose workers were not in the view before: they have joined since, or
// joined again. If before is the zero View, all are newcomers.
func (v View) Newcomers(before View) (ranks []int) {
	for rank, s := range v.state.Slots {
		if before.state == nil || before.state.record.rank(s.Key) < 0 {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Exclude removes the workers with these ranks from the job. It is for a view that cannot form with them:
// the view ends, and the next one is without them. Next of an excluded worker returns ErrExcluded. The
// worker may Join again; a caller that lets it try without a limit may have to exclude it again. If the view
// has ended, Exclude does nothing, and returns the *ViewError.
func (v View) Exclude(ctx context.Context, ranks ...int) error {
	if v.state.ctx.Err() != nil { // they may be in a later view, which has formed
		return context.Cause(v.state.ctx)
	}
	var registrations []string
	for _, rank := range ranks {
		if rank < 0 || rank >= v.Size() {
			return v.fail("exclude", fmt.Errorf("%w: there is no rank %d in a view of %d", ErrInvalid, rank, v.Size()))
		}
		registrations = append(registrations, v.state.Slots[rank].Key)
	}
	if _, err := v.Store.Delete(ctx, registrations...); err != nil {
		return v.fail("exclude", err)
	}
	return nil
}

// Finish records that the work of this job is done. Every worker of the view may call it. A worker that
// was cut off while the others finished, or a standby, learns of it from WaitFinished. The record expires
// after an hour. It is of this run of the job: another job of this name is not finished.
func (v View) Finish(ctx context.Context) error {
	err := v.Store.Set(ctx, v.state.keys.finished(v.state.Run), []byte(v.state.launch), &store.SetOptions{TTL: retention})
	if err != nil {
		return v.fail("finish", err)
	}
	return nil
}

// Finished reports whether a worker of this run of the job has called Finish.
func (v View) Finished(ctx context.Context) (bool, error) {
	_, err := v.Store.Get(ctx, v.state.keys.finished(v.state.Run))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, nil
	case err != nil:
		return false, v.fail("finished", err)
	}
	return true, nil
}

// WaitFinished waits until a worker of the run of view v has called Finish. If v is the zero View, it is the
// run of the newest view, which a standby has never been in. Member m may have joined after v.
func (m *Member) WaitFinished(ctx context.Context, v View) error {
	run := ""
	if v.state != nil {
		run = v.state.Run
	}
	for run == "" {
		m.mu.Lock()
		changed := m.changed
		if m.current != nil {
			run = m.current.Run
		}
		m.mu.Unlock()
		if run != "" {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return m.fail("wait for the finish", context.Cause(ctx))
		}
	}
	if _, err := m.store.Wait(ctx, m.keys.finished(run)); err != nil {
		return m.fail("wait for the finish", err)
	}
	return nil
}

func (v View) fail(op string, err error) *Error {
	return &Error{Op: op, Job: v.Job, ID: v.state.who.ID, Rank: v.Rank, Err: err}
}

// endDelay is how long Over waits for the end of a view that another worker may have seen already: as long
// as a busy host may delay the news. It takes as long only if the other worker stays in the view.
const endDelay = 5 * time.Second

// Over reports whether err was caused by the end of this view: a rank has failed, left or joined. Next
// then returns the view that follows, or the error that this worker was evicted. If Over returns false,
// err has another cause, and is for the caller to handle.
//
// If another rank has cancelled a verb, or aborted the group by View.Abort, it may have seen the end of the
// view first. In that case Over waits up to five seconds for the end.
func (v View) Over(err error) bool {
	if err == nil {
		return false
	}
	if end, ok := errors.AsType[*ViewError](err); ok {
		return end.Job == v.Job && end.Generation == v.Generation
	}
	re, ok := errors.AsType[*pgroup.RankError](err)
	ours := ok && v.owns(re.Group)
	switch {
	case ours && (errors.Is(err, pgroup.ErrLost) || errors.Is(err, pgroup.ErrLeft)):
		return true
	case ours && errors.Is(err, pgroup.ErrCancelled) && re.By >= 0 && re.By != v.Rank,
		ours && errors.Is(err, pgroup.ErrAborted) && re.Reason == errEnded.Error():
		return v.endsWithin(endDelay)
	}
	return v.state.ctx.Err() != nil && followsEnd(err)
}

// owns reports whether a group is that of the view, or of a Sub or Split of it.
func (v View) owns(group string) bool {
	return group == v.group() || strings.HasPrefix(group, v.group()+"/")
}

// endsWithin waits up to d for the end of the view, and reports whether it has ended.
func (v View) endsWithin(d time.Duration) bool {
	select {
	case <-v.state.ctx.Done():
		return true
	case <-time.After(d):
		return false
	}
}

// followsEnd reports whether err is one that the end of a view causes in calls. An abort, a mismatch, or
// an error of the program itself is not.
func followsEnd(err error) bool {
	return slices.ContainsFunc([]error{
		context.Canceled, context.DeadlineExceeded, pgroup.ErrUnknown, pgroup.ErrUnavailable, store.ErrStale, store.ErrSessionLost,
	}, func(e error) bool { return errors.Is(err, e) })
}

// ViewError says why a view has ended. It matches ErrOver, pgroup.ErrLost if ranks have failed,
// pgroup.ErrLeft if ranks have left, and ErrEvicted or ErrClosed if this worker was evicted or closed.
type ViewError struct {
	Job        string
	ID         string // of this worker
	Rank, Size int    // the rank of this worker, -1 if it was not in the view; and the size of the view
	Generation uint64

	Lost, Left []int    // ranks
	Gone       []Worker // the workers of these ranks, those of Lost first
	Joined     []Worker // the new workers of the view that follows
	Err        error    // why this worker is no longer in the job, or nil
}

func (e *ViewError) Error() string {
	var why []string
	for i, rank := range slices.Concat(e.Lost, e.Left) {
		what := "lost rank"
		if i >= len(e.Lost) {
			what = "left by rank"
		}
		why = append(why, fmt.Sprintf("%s %d, worker %v", what, rank, e.Gone[i]))
	}
	for _, w := range e.Joined {
		why = append(why, fmt.Sprintf("joined by worker %v", w))
	}
	if e.Err != nil {
		why = append(why, e.Err.Error())
	}
	return fmt.Sprintf("membership: view %d of job %q ended on rank %d of %d, worker %q: %s",
		e.Generation, e.Job, e.Rank, e.Size, e.ID, strings.Join(why, ", "))
}

// Unwrap returns e.Err.
func (e *ViewError) Unwrap() error { return e.Err }

// Is reports whether target is one of the errors that e matches.
func (e *ViewError) Is(target error) bool {
	switch target {
	case ErrOver:
		return true
	case pgroup.ErrLost:
		return len(e.Lost) > 0
	case pgroup.ErrLeft:
		return len(e.Left) > 0
	}
	return false
}

// ended returns a ViewError of e without a reason.
func (e *viewState) ended() *ViewError {
	return &ViewError{Job: e.job, ID: e.who.ID, Rank: e.rank, Size: len(e.Slots), Generation: e.Generation}
}

// without ends e if one of its workers is not in r: it counts as failed. The caller holds the Member's mu.
func (e *viewState) without(r *roster) {
	for _, s := range e.Slots {
		if r.workers[s.Key] == nil {
			e.remove(s.Key, false)
		}
	}
}

// remove ends e if it has a worker with this key, which has left or failed. The caller holds the Member's mu.
func (e *viewState) remove(key string, left bool) {
	rank := e.record.rank(key)
	if rank < 0 {
		return
	}
	if e.over.IsZero() {
		e.over, e.left = time.Now(), map[string]bool{}
	}
	e.left[key] = e.left[key] || left // without does not know the reason
	why := e.ended()
	why.Gone = []Worker{e.Slots[rank].Worker}
	if left {
		why.Left = []int{rank}
	} else {
		why.Lost = []int{rank}
	}
	e.end(why)
}

// replaced ends e because next replaces it. A worker that is not in next, and whose end was not seen,
// counts as failed.
func (e *viewState) replaced(next *record) {
	why := e.ended()
	for rank, s := range e.Slots {
		if next.rank(s.Key) < 0 {
			why.Lost, why.Gone = append(why.Lost, rank), append(why.Gone, s.Worker)
		}
	}
	for _, s := range next.Slots {
		if e.record.rank(s.Key) < 0 {
			why.Joined = append(why.Joined, s.Worker)
		}
	}
	e.end(why)
}
