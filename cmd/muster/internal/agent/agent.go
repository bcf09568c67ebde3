// Package agent runs the processes of a job on one node, together with the agents of the job's other
// nodes.
//
// The agents meet in a store. Package membership agrees on the nodes of the job; each agreement is a
// view. In a view the agents form a group, exchange what each of them starts (plan.go), and start
// their processes: one attempt of the job.
//
//   - If a process fails, its agent aborts the group with the reason. An abort is one outcome for all
//     members of a group, so all agents end their processes, count the same restart, and begin the
//     next attempt in the same view, or give up with the same error.
//   - If a node fails, leaves or joins, the view ends, and the processes with it. The next view
//     begins with another attempt, which counts as no restart.
//   - When the processes of a node have all succeeded, its agent waits in a barrier of the group. The
//     job has succeeded when the barrier has.
//
// The agents of torchrun do the same (torch.distributed.elastic): restarts and changes of
// membership begin all processes again.
package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// Agent is one node of a job. All fields are required unless they say otherwise. MinNodes, MaxNodes,
// MaxRestarts, the use of NodeRank, and Min, Max and UnitSize of Elastic, are the same in all agents of
// the job: Run of another one returns membership.ErrMismatch, with both settings. Run may be called once.
// The agent owns no goroutine after that.
type Agent struct {
	Store *store.Store // where the agents meet; the caller closes it
	Job   string       // names the job in the store
	Name  string       // of this node, unique in the job

	MinNodes, MaxNodes int
	NodeRank           int // place among the nodes; -1: in the order in which they join
	Procs              int // processes on this node; of an elastic job: workers
	MaxRestarts        int // after failures of these, in all

	JoinTimeout time.Duration // for fewer than MinNodes nodes, each time
	Settle      time.Duration // for more nodes when there are MinNodes
	Lease       time.Duration // membership.Config.TTL of this node; 0: its default

	Address string // host that the other nodes reach this one at, for MASTER_ADDR
	// Start runs the processes of this node, and returns when all of them have ended: nil if all
	// succeeded. When ctx ends, it ends them. It is never called again before it has returned.
	// It is nil if Elastic is set.
	Start func(ctx context.Context, a Attempt) error
	// Notice is the time between the failure of a process of another node and the end of Start's
	// ctx, for the processes to see and report it; less than 0 leaves them running.
	Notice time.Duration
	// Elastic makes the job an elastic one; nil: the processes are ranks.
	Elastic *Elastic
	// Draining is closed when this node is to leave the job. Start is not interrupted by it; its
	// result is then that of Run.
	Draining <-chan struct{}
	Report   func(text string) // receives what happens, a line each; may be nil
	Status   func(Status)      // receives the state of the job when it changes; may be nil
}

// Status is the state of a job, as the agent of a node knows it.
type Status struct {
	State    string   `json:"state"` // Waiting or Running
	Nodes    int      `json:"nodes"` // that run processes
	Size     int      `json:"size"`  // ranks or workers of all nodes
	Restarts int      `json:"restarts"`
	Failure  *Failure `json:"failure,omitempty"` // the last one
}

// States of a job.
const (
	Waiting = "waiting" // for nodes
	Running = "running"
)

// ErrFollows matches an error of Start if the processes failed because one of another node did. That node
// reports the cause.
var ErrFollows = errors.New("a process of another node has failed first")

// ErrDraining is the error of an agent that was waiting for nodes when it was to leave.
var ErrDraining = errors.New("this node is to leave the job")

// Error is the failure of a process, on this node or another one.
type Error struct {
	Node     string // where
	Reason   string // as "rank 3: exit status 1"
	Restarts int    // of the job, before
	Err      error  // that Start has returned; nil if the process was on another node
}

func (e *Error) Error() string {
	text := e.Reason
	if e.Err == nil {
		text += " on node " + e.Node
	}
	return text + afterRestarts(e.Restarts)
}

// afterRestarts returns ", after n restarts", and nothing if n is 0.
func afterRestarts(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", after 1 restart"
	}
	return fmt.Sprintf(", after %d restarts", n)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// leaveTimeout bounds the farewell to the other nodes.
const leaveTimeout = 2 * time.Second

// Run takes part in the job until it has succeeded, failed, or this node has left it. The error is
// an *Error if a process has failed more often than MaxRestarts allows. It is the same on all nodes,
// but for Err. If ctx ends, so does Run, after the processes have.
func (a *Agent) Run(ctx context.Context) error {
	if a.Report == nil {
		a.Report = func(string) {}
	}
	if a.Status == nil {
		a.Status = func(Status) {}
	}
	waits, stop := context.WithCancelCause(ctx)
	r := &run{Agent: a, waits: waits}
	defer stop(nil)
	go func() {
		select {
		case <-a.Draining:
			stop(ErrDraining)
		case <-waits.Done():
		}
	}()
	st, err := r.read(waits)
	if err != nil {
		return r.interrupted(err)
	}
	if st.Outcome != "" {
		r.before = st.ID
	}
	for {
		err := r.join(ctx)
		if !errors.Is(err, membership.ErrEvicted) || waits.Err() != nil {
			return err
		}
		r.evicted = true
		a.Report(fmt.Sprintf("this node was out of contact with the store and is out of the job: it joins again (%v)", err))
	}
}

// run is the state of Agent.Run.
type run struct {
	*Agent
	waits    context.Context // ends with Run's, and when Draining is closed
	evicted  bool            // at least once
	restarts int             // of the job
	failure  *Failure        // the last one of a rank
	before   string          // ID of a job of this name that had ended when this node began
	last     string          // ID of the last attempt
	starts   []int           // of the workers of an elastic job, by slot
}

// join registers this node and makes attempts, until the job has ended or this node is out of it.
func (r *run) join(ctx context.Context) error {
	m, err := r.register()
	if err != nil {
		return r.interrupted(err)
	}
	defer m.Close()
	if r.Elastic != nil {
		err = r.elastic(ctx, m)
	} else {
		err = r.views(ctx, m)
	}
	if !errors.Is(err, membership.ErrEvicted) {
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		_ = m.Leave(leave) // the job has ended here, whether or not the others receive this
	}
	return err
}

// Registration returns the registration of this node.
func (a *Agent) Registration() membership.Config {
	return membership.Config{
		Job: a.Job, ID: a.Name, Addr: a.Address, Min: a.MinNodes, Max: a.MaxNodes, Settle: a.Settle, Settings: a.settings(), TTL: a.Lease,
	}
}

// register registers this node. If it was evicted, its earlier registration may not have expired: a durable
// store that was away counts the lease from its start. Then register tries again, for at most JoinTimeout.
func (r *run) register() (*membership.Member, error) {
	for end := time.Now().Add(r.JoinTimeout); ; {
		m, err := membership.Join(r.waits, r.Store, r.Registration())
		if !r.evicted || !errors.Is(err, membership.ErrDuplicate) || time.Now().After(end) {
			return m, err
		}
		select {
		case <-time.After(duplicatePause):
		case <-r.waits.Done():
			return nil, context.Cause(r.waits)
		}
	}
}

const duplicatePause = 200 * time.Millisecond

// errChanged ends an attempt on all nodes, after one of them has seen the end of the view.
var errChanged = errors.New("the nodes of the job have changed")

// views makes attempts in one view after the other.
func (r *run) views(ctx context.Context, m *membership.Member) error {
	waiting, end := r.untilOver()
	defer end()
	for {
		r.Status(Status{State: Waiting, Restarts: r.restarts, Failure: r.failure})
		view, err := r.next(waiting, m)
		if over, ok := errors.AsType[*overError](context.Cause(waiting)); ok && err != nil {
			return over.outcome
		}
		if err != nil {
			return r.interrupted(err)
		}
		err = r.inView(ctx, view)
		r.conclude(ctx, err)
		if err == nil || r.ending() || !errors.Is(err, errChanged) && !view.Over(err) {
			return r.interrupted(err)
		}
		r.Report(inNodes(view, err) + ": restarting all processes")
	}
}

// ending reports whether this node is to leave. waits ends a moment later than Draining.
func (r *run) ending() bool {
	select {
	case <-r.Draining:
		return true
	default:
		return r.waits.Err() != nil
	}
}

// The pauses until next reports what it waits for.
const (
	reportFirst = time.Second
	reportAgain = 30 * time.Second
)

// next waits for a view, for at most JoinTimeout, and reports what it waits for.
func (r *run) next(ctx context.Context, m *membership.Member) (membership.View, error) {
	ctx, cancel := context.WithTimeout(ctx, r.JoinTimeout)
	defer cancel()
	for pause := reportFirst; ; pause = reportAgain {
		part, stop := context.WithTimeout(ctx, pause)
		view, err := m.Next(part)
		over := part.Err() != nil && ctx.Err() == nil
		stop()
		waiting, ok := errors.AsType[*membership.Error](err)
		if !ok || !over || !errors.Is(err, context.DeadlineExceeded) {
			return view, err
		}
		r.Report("waiting for nodes: " + WaitsFor(waiting))
	}
}

// WaitsFor returns what a node that waited for others knows of them.
func WaitsFor(e *membership.Error) string {
	if e.Detail == "" {
		return e.Err.Error()
	}
	return strings.NewReplacer("worker", "node", "a standby", "a spare").Replace(e.Detail)
}

// inNodes returns why a view has ended, with the names of its nodes.
func inNodes(view membership.View, err error) string {
	var why []string
	say := func(node, what string) { why = append(why, "node "+node+" has "+what) }
	if e, ok := errors.AsType[*membership.ViewError](err); ok {
		for i, w := range e.Gone {
			say(w.ID, map[bool]string{true: "failed", false: "left"}[i < len(e.Lost)])
		}
		for _, w := range e.Joined {
			say(w.ID, "joined")
		}
	} else if e, ok := errors.AsType[*pgroup.RankError](err); ok {
		for _, rank := range e.Lost {
			say(view.Workers[rank].ID, "failed")
		}
		for _, rank := range e.Left {
			say(view.Workers[rank].ID, "left")
		}
	}
	if why == nil {
		return errChanged.Error()
	}
	return strings.Join(why, ", ")
}

// interrupted returns why waits has ended instead of an error that follows from that.
func (r *run) interrupted(err error) error {
	if cause := context.Cause(r.waits); err != nil && cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// inView makes attempts until one succeeds, the job has failed, or the view has ended.
func (r *run) inView(ctx context.Context, view membership.View) error {
	for try := 1; ; try++ {
		err := r.attempt(ctx, view, try)
		failed, ok := errors.AsType[*Error](err)
		if !ok {
			return err
		}
		if r.restarts >= r.MaxRestarts {
			return err
		}
		r.restarts++
		failed.Restarts = 0
		r.Report(fmt.Sprintf("%v: restart %d of at most %d", failed, r.restarts, r.MaxRestarts))
	}
}

// attempt runs the processes of all nodes once.
func (r *run) attempt(ctx context.Context, view membership.View, try int) error {
	active := view.Context(r.waits)
	config := view.Config()
	config.Name += fmt.Sprintf("/attempt-%d", try)
	config.Timeout = r.JoinTimeout
	g, err := pgroup.Create(active, config)
	if err != nil {
		return err
	}
	defer g.Close()
	plans, err := pgroup.AllGather(active, g, r.plan())
	if err != nil {
		return err
	}
	at, err := arrange(plans, g.Rank())
	if err != nil {
		return err
	}
	r.restarts, r.last = at.Restarts, at.ID
	r.Status(Status{State: Running, Nodes: at.Nodes, Size: at.Size, Restarts: at.Restarts, Failure: r.failure})
	return r.start(ctx, view, g, at)
}

// start runs the processes of this node. Its result is the outcome of the group, which is the same on
// all nodes, whatever this node has seen first: a failure of its own, or the end of the view.
func (r *run) start(ctx context.Context, view membership.View, g *pgroup.Group, at Attempt) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	active := view.Context(running)
	defer context.AfterFunc(active, func() { // the node of a process that has failed may leave: the group's failure says so
		select {
		case <-g.Context().Done():
		case <-time.After(groupWait):
			stop(context.Cause(active))
		}
	})()
	defer context.AfterFunc(g.Context(), func() {
		cause := context.Cause(g.Context())
		if e, ok := errors.AsType[*pgroup.RankError](cause); ok && errors.Is(e, pgroup.ErrAborted) && e.Reason != errChanged.Error() {
			r.notice(running)
		}
		stop(cause)
	})()
	own := r.Start(running, at)
	switch {
	case r.ending():
		return own
	case own == nil:
		ctx, cancel := context.WithTimeout(view.Context(r.waits), noTimeout)
		defer cancel()
		if err := g.Barrier(ctx); err == nil {
			return nil
		}
		g.Abort(errChanged) // without effect if the group has failed
	case running.Err() == nil:
		if errors.Is(own, ErrFollows) {
			select {
			case <-g.Context().Done():
			case <-running.Done():
			case <-time.After(causeWait):
			}
		}
		g.Abort(own) // without effect if the group has failed
	default:
		g.Abort(errChanged)
	}
	return r.outcome(g, own, at)
}

// notice waits for the time Notice, or until running ends.
func (r *run) notice(running context.Context) {
	var over <-chan time.Time
	if r.Notice >= 0 {
		over = time.After(r.Notice)
	}
	select {
	case <-over:
	case <-running.Done():
	}
}

// groupWait is the time between the end of a view and that of its group, which a node without contact to
// the store does not learn.
const groupWait = time.Second

// causeWait bounds the wait for the node of the cause of a failure. Its other processes may take their
// time to end.
const causeWait = 15 * time.Second

// noTimeout bounds the wait for the processes of the other nodes: more than any job lasts.
const noTimeout = 100 * 365 * 24 * time.Hour

// outcome returns why the group has failed.
func (r *run) outcome(g *pgroup.Group, own error, at Attempt) error {
	ctx, cancel := context.WithTimeout(r.waits, r.JoinTimeout)
	defer cancel()
	select {
	case <-g.Context().Done():
	case <-ctx.Done():
		return fmt.Errorf("the outcome of the attempt is unknown: %w", context.Cause(ctx))
	}
	err := context.Cause(g.Context())
	failed, ok := errors.AsType[*pgroup.RankError](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, pgroup.ErrLost), errors.Is(err, pgroup.ErrLeft):
		return fmt.Errorf("%w: %w", errChanged, err)
	case !errors.Is(err, pgroup.ErrAborted):
		return err
	case failed.Reason == errChanged.Error():
		return errChanged
	}
	e := &Error{Node: at.names[failed.By], Reason: failed.Reason, Restarts: r.restarts}
	process, reason, _ := strings.Cut(e.Reason, ": ")
	r.failure = &Failure{Process: process, Node: e.Node, Reason: reason, Time: time.Now()}
	if failed.By == failed.Rank {
		e.Err = own
	}
	return e
}
