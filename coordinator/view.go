package coordinator

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

// View is one generation of the job: who is in it, the same for all of them.
type View struct {
	Job        string
	Generation uint64       // from 1; a later view of the job has a higher one
	Rank       int          // of this worker
	Workers    []Worker     // by rank
	Store      *store.Store // that of the Member

	epoch *epoch
}

// epoch is a view as a member knows it, and its end.
type epoch struct {
	record
	rank int // of this worker; -1 if it is not in it
	who  Worker
	job  string
	keys keys
	ctx  context.Context // ends with the view; its cause is a *ViewError
	end  context.CancelCauseFunc
}

func (m *Member) newEpoch(r *record) *epoch {
	e := &epoch{record: *r, rank: r.rank(m.self.key), who: m.self.Worker, job: m.cfg.Job, keys: m.keys}
	e.ctx, e.end = context.WithCancelCause(context.Background())
	return e
}

// view is what Next gives.
func (m *Member) view(e *epoch) View {
	v := View{Job: m.cfg.Job, Generation: e.Generation, Rank: e.rank, Store: m.store, epoch: e}
	for _, s := range e.Seats {
		v.Workers = append(v.Workers, s.Worker)
	}
	return v
}

// Size is the number of workers.
func (v View) Size() int { return len(v.Workers) }

// Config is that of the pgroup of this view, which meets on the Member's store; set what else it needs before Create.
func (v View) Config() pgroup.Config {
	return pgroup.Config{Name: v.epoch.keys.group(v.Generation), Run: v.epoch.Run, Rank: v.Rank, Size: v.Size(), Store: v.Store}
}

// Context is ctx, and ends when this view is over, with a *ViewError as its cause: one of its workers is lost or has left, a newer view
// has taken its place, or this worker was evicted or closed.
func (v View) Context(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	if v.epoch.ctx.Err() != nil { // AfterFunc would tell soon, not now
		cancel(context.Cause(v.epoch.ctx))
		return ctx
	}
	stop := context.AfterFunc(v.epoch.ctx, func() { cancel(context.Cause(v.epoch.ctx)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// doubt is how long Over waits to hear of the end of a view that another worker may have heard of already.
const doubt = time.Second

// Over reports whether err is the end of this view (a rank lost, left or joined) and not the caller's own. If it is, Next
// gives what comes after it, or says that this worker was evicted.
//
// A verb that another rank cancelled may be either, since that one may have heard first: then Over waits for the news, up to a second.
func (v View) Over(err error) bool {
	if err == nil {
		return false
	}
	if end, ok := errors.AsType[*ViewError](err); ok {
		return end.Job == v.Job && end.Generation == v.Generation
	}
	re, ok := errors.AsType[*pgroup.RankError](err)
	ours := ok && strings.HasPrefix(re.Group, v.epoch.keys.group(v.Generation))
	switch {
	case ours && (errors.Is(err, pgroup.ErrLost) || errors.Is(err, pgroup.ErrLeft)):
		return true
	case ours && errors.Is(err, pgroup.ErrCancelled) && re.By >= 0 && re.By != v.Rank:
		return v.endsWithin(doubt)
	}
	return v.epoch.ctx.Err() != nil && followsEnd(err)
}

// endsWithin waits for the end of the view.
func (v View) endsWithin(d time.Duration) bool {
	select {
	case <-v.epoch.ctx.Done():
		return true
	case <-time.After(d):
		return false
	}
}

// followsEnd reports whether err is what becomes of calls when a view is over. An abort, a mismatch, or what a program says itself, is not.
func followsEnd(err error) bool {
	return slices.ContainsFunc([]error{
		context.Canceled, context.DeadlineExceeded, pgroup.ErrUnknown, pgroup.ErrUnavailable, store.ErrStale, store.ErrSession,
	}, func(e error) bool { return errors.Is(err, e) })
}

// ViewError says why a view is over. It matches ErrOver; pgroup.ErrLost or pgroup.ErrLeft, if ranks are; and ErrEvicted or ErrClosed, if this
// worker is.
type ViewError struct {
	Job        string
	ID         string // of this worker
	Rank, Size int    // of this worker in the view, which is -1 if it was not in it; and of the view
	Generation uint64

	Lost, Left []int    // ranks
	Gone       []Worker // those ranks, Lost first
	Joined     []Worker // who came into the view that took its place
	Err        error    // why this worker is out, if it is
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
	return fmt.Sprintf("coordinator: view %d of job %q is over on rank %d of %d, worker %q: %s",
		e.Generation, e.Job, e.Rank, e.Size, e.ID, strings.Join(why, ", "))
}

// Unwrap returns why this worker is out, or nil.
func (e *ViewError) Unwrap() error { return e.Err }

// Is matches what the reasons stand for.
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

// over is the beginning of a ViewError of e.
func (e *epoch) over() *ViewError {
	return &ViewError{Job: e.job, ID: e.who.ID, Rank: e.rank, Size: len(e.Seats), Generation: e.Generation}
}

// without ends e because its worker with this key is gone, if there is one.
func (e *epoch) without(key string, left bool) {
	rank := e.record.rank(key)
	if rank < 0 {
		return
	}
	why := e.over()
	why.Gone = []Worker{e.Seats[rank].Worker}
	if left {
		why.Left = []int{rank}
	} else {
		why.Lost = []int{rank}
	}
	e.end(why)
}

// superseded ends e because next takes its place. Whose going was not heard of counts as lost.
func (e *epoch) superseded(next *record) {
	why := e.over()
	for rank, s := range e.Seats {
		if next.rank(s.Key) < 0 {
			why.Lost, why.Gone = append(why.Lost, rank), append(why.Gone, s.Worker)
		}
	}
	for _, s := range next.Seats {
		if e.record.rank(s.Key) < 0 {
			why.Joined = append(why.Joined, s.Worker)
		}
	}
	e.end(why)
}
