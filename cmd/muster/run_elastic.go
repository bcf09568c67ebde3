package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// localReconnect is the reconnect timeout of a store that is hosted on loopback for the workers of this
// node. The next view of an elastic job waits for it after a worker was killed. No network breaks
// connections there: one that ends is that of a process that has ended.
const localReconnect = 100 * time.Millisecond

// checkElastic validates the flags of an elastic job.
func (o *running) checkElastic(cmd *cobra.Command) error {
	if o.elastic == "" {
		switch {
		case o.spares != 0:
			return usagef(cmd, "--spares needs --elastic MIN:MAX; a node above the most of --nnodes is a spare node")
		case o.unit != 1:
			return usagef(cmd, "--unit-size needs --elastic MIN:MAX: a rank is one process")
		}
		return nil
	}
	least, greatest, ok := span(o.elastic)
	switch {
	case !ok:
		return usagef(cmd, "--elastic %q is neither a number of workers nor MIN:MAX, such as 2:8", o.elastic)
	case o.unit < 1:
		return usagef(cmd, "--unit-size %d: a worker has at least 1 process", o.unit)
	case o.masterPort != 0:
		return usagef(cmd, "the workers of --elastic meet in a store: --master-port is not for them")
	case o.own >= 0:
		return usagef(cmd, "--node-rank says nothing with --elastic: workers have ranks in the order in which they join")
	}
	o.least, o.greatest = least, greatest
	if ip := net.ParseIP(o.masterAddr); ip.IsLoopback() {
		o.reconnect = localReconnect
	}
	return nil
}

// countWorkers sets the number of workers on this node.
func (o *running) countWorkers(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("ranks") {
		o.n = o.greatest
	}
	if o.n < 1 || o.n > maxProcesses {
		return nil // an error in any case
	}
	o.n += min(o.spares, maxProcesses) // the sum does not overflow, and is an error if spares is larger
	if o.most == 1 && o.n < o.least {
		return usagef(cmd, "%d workers on the only node are fewer than the %d of --elastic: set -n or --elastic", o.n, o.least)
	}
	return nil
}

// workersStore opens the store where the workers of an elastic job meet. It is nil if it cannot be
// reached: the workers wait for it, and the agent does without.
func (o *running) workersStore(ctx context.Context) *store.Store {
	if o.host != nil {
		return store.New(unclosed{o.host.memory})
	}
	s, err := openStore(ctx, o.jobStore())
	if err != nil {
		return nil
	}
	return s
}

// takeover is how long a job waits for an earlier one of its name, which may have been killed: a while longer
// than the reconnect timeout of the store.
const takeover = 2 * time.Second

// alone registers the only node of an elastic job, as the agents of several nodes do, so that no other job of
// this name has its workers in the same store: they would be workers of one job. While the store cannot be
// reached there is no such protection. The result may be nil.
func (o *running) alone(ctx context.Context, s *store.Store, a *agent.Agent) (*membership.Member, error) {
	if o.most > 1 || o.store == "" || o.job == "" || s == nil {
		return nil, nil
	}
	c := a.Registration()
	c.ID, c.Addr = "muster run", a.Name
	for end := time.Now().Add(takeover); ; {
		m, err := membership.Join(ctx, s, c)
		duplicate := errors.Is(err, membership.ErrDuplicate)
		switch known, ok := errors.AsType[*membership.Error](err); {
		case duplicate && time.Now().Before(end):
		case duplicate && ok:
			return nil, &exit{code: exitFailed, text: fmt.Sprintf("an elastic job %q runs in %s already: %v: set another --job; with --nnodes on both they are one job", o.job, redacted(o.store), known.Err), err: err}
		case errors.Is(err, membership.ErrMismatch):
			return nil, o.nodesError(err, nil)
		default:
			return m, nil // without it, if the store has failed: the workers report that
		}
		select {
		case <-time.After(takeover / 10):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// elasticWorkers starts the workers of this node, each as a separate job, whose processes are a unit.
type elasticWorkers struct {
	*launches

	mu    sync.Mutex          // protects the fields below; held while output is written
	tails map[string][]string // the last lines of workers that have failed
}

// run runs the job.
func (w *elasticWorkers) run(ctx context.Context, a *agent.Agent) error {
	a.Elastic = &agent.Elastic{Min: w.least, Max: w.greatest, UnitSize: w.unit, Start: w.start, Store: w.workersStore(ctx), Job: w.jobName(w.path)}
	if a.Elastic.Store != nil {
		defer a.Elastic.Store.Close()
	}
	m, err := w.alone(ctx, a.Elastic.Store, a)
	if err != nil {
		return err
	}
	if m != nil {
		defer func() { _ = m.Leave(context.WithoutCancel(ctx)) }()
	}
	return w.ended(a.Run(ctx))
}

// workerError is the failure of a worker: that of the first of its processes that failed.
type workerError struct {
	*launch.ExitError
	id   string
	unit int // processes of the worker
}

// Error implements error.
func (e workerError) Error() string { return "worker " + e.id + ": " + e.Reason() }

// Reason returns the failure without the worker, for agent.Elastic.Start.
func (e workerError) Reason() string {
	_, text, _ := strings.Cut(e.ExitError.Error(), ": ")
	if e.Signal != 0 {
		text += fmt.Sprintf(" (%v)", e.Signal)
	}
	if e.unit > 1 {
		text = fmt.Sprintf("process %d of its unit: %s", e.Rank, text)
	}
	return text
}

// start implements agent.Elastic.Start.
func (w *elasticWorkers) start(ctx context.Context, worker agent.Worker) error {
	job, err := w.process(ctx, w.spec(worker))
	e, ok := errors.AsType[*launch.ExitError](err)
	if !ok {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tails == nil {
		w.tails = map[string][]string{}
	}
	w.tails["worker "+worker.ID] = job.Process(e.Rank).Tail()
	return workerError{e, worker.ID, w.unit}
}

func (w *elasticWorkers) spec(worker agent.Worker) launch.Spec {
	k := inkOf(os.Stdout) && inkOf(os.Stderr)
	width := len(w.processName(agent.Worker{Slot: w.n - 1}, w.unit-1))
	return launch.Spec{
		N: w.unit, Path: w.path, Args: w.args, Grace: w.killAfter(), Failed: worker.Failed, Output: serial{&w.mu, os.Stdout}, ErrOutput: serial{&w.mu, os.Stderr},
		Log: w.logs.worker(func(rank int) string { return w.processName(worker, rank) }),
		Env: func(rank int) []string { return append(w.environ(worker, rank), w.env...) },
		Prefix: func(rank int) string {
			if w.noPrefix {
				return ""
			}
			return k.rank(worker.Slot, fmt.Sprintf("[%*s]", width, w.processName(worker, rank))) + " "
		},
	}
}

// processName returns the name of a process in prefixes and logs: 3 is the worker of slot 3, 3.2 its
// second start, and 3.2-1 process 1 of its unit, if units have several.
func (w *elasticWorkers) processName(worker agent.Worker, rank int) string {
	name := strconv.Itoa(worker.Slot)
	if worker.Start > 1 {
		name += "." + strconv.Itoa(worker.Start)
	}
	if w.unit > 1 {
		name += "-" + strconv.Itoa(rank)
	}
	return name
}

// environ returns the environment of a process of a worker, which has the number rank in its unit.
// Variables that an outer launcher has set for ranks are emptied: they are not for the worker.
func (w *elasticWorkers) environ(worker agent.Worker, rank int) []string {
	env := w.worker()
	for _, name := range []string{"RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} {
		if os.Getenv(name) != "" {
			env = append(env, name+"=")
		}
	}
	return append(env, "MUSTER_JOB="+w.jobName(w.path), "MUSTER_WORKER="+worker.ID, "MUSTER_LAUNCH="+worker.Launch, fmt.Sprintf("MUSTER_ELASTIC=%d:%d", w.least, w.greatest), "MUSTER_LEASE="+w.lease.String(),
		"MUSTER_UNIT_RANK="+strconv.Itoa(rank), "MUSTER_UNIT_SIZE="+strconv.Itoa(w.unit),
		"LOCAL_RANK="+strconv.Itoa(worker.Slot*w.unit+rank), "LOCAL_WORLD_SIZE="+strconv.Itoa(w.n*w.unit))
}

// serial is a writer that several jobs share.
type serial struct {
	mu *sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (s serial) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// worker returns the function that opens the logs of the processes of a worker; nil if there are none.
func (l *logFiles) worker(name func(rank int) string) func(rank int) (io.WriteCloser, error) {
	if l.dir == "" {
		return nil
	}
	return func(rank int) (io.WriteCloser, error) { return createLog(l.dir, "worker-"+name(rank)+".log") }
}

// ended converts the result of the job into the error of this process.
func (w *elasticWorkers) ended(err error) error {
	if own, ok := errors.AsType[workerError](err); ok { // this node was to leave
		return &exit{code: own.ExitCode(), text: w.sigs.blame(own.ExitError, own.Error()), err: err}
	}
	e, ok := errors.AsType[*agent.JobError](err)
	if !ok {
		return w.launches.ended(err)
	}
	if e.First != nil {
		printTail(w.stderr, e.First.Process, w.tails[e.First.Process])
	}
	return &exit{code: cmp.Or(e.Code, exitTimeout), text: e.Error() + "; the other workers were ended", err: err}
}
