package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/spf13/cobra"
)

// maxProcesses is the most processes that a node starts. A worker takes two threads of this process, and the Go
// runtime ends a process with 10000.
const maxProcesses = 4096

// running holds the options of run.
type running struct {
	place
	nodeFlags
	n        int // ranks on this node
	noPrefix bool
	env      []string
	grace    time.Duration // after a failure, until SIGTERM
	kill     time.Duration // after that, until SIGKILL
	goOn     bool          // no SIGTERM after a failure
	limit    time.Duration // of the job; 0: none
}

func newRun() *cobra.Command {
	o := &running{}
	cmd := &cobra.Command{
		Use:   "run -n RANKS [flags] -- PROGRAM [ARG…]",
		Short: "Start a program as the ranks of a group, on one node or several",
		Long: `Start a program as the ranks of a group, and wait until they have ended.

Each rank gets its number, the number of ranks, and the store's address in its environment (see
"muster help environment"); pgroup.FromEnv reads them, and so do programs made for torchrun. Lines
of output begin with their rank. While ranks report phases of their work (Group.Phase), a line every
10 s says how far they are. If one rank fails, the others have the time --grace to return the
error that names it and to print it; then they get SIGTERM, and SIGKILL after --kill-after. With
--keep-going they go on. Signals are passed on; a second SIGINT or SIGTERM kills. With SIGQUIT
(Ctrl-\), programs in Go print the stacks of their goroutines and end. If the reader of the output
goes away, as in "muster run … | head", the ranks are ended. Exits with the code of the first rank
that failed, and prints its last lines; exits with 1 on a node where none of its own failed.

With --max-restarts, all ranks start again after one has failed. With --nnodes, the same command
runs on each node, and the nodes meet in the store: ranks are numbered across them. If a node fails,
leaves (SIGTERM) or joins, the ranks of all nodes start again, on the nodes that there are then.
A node above the most of --nnodes MIN:MAX is a spare, which takes the place of one that fails.

With --elastic, the processes are workers, which find each other by package membership. One that
fails starts again alone, as another worker, at most --max-restarts times in the whole job; the
others go on. The job fails when fewer than MIN workers are left, on all nodes with the code of the
first worker that failed, and succeeds when all workers that are left have. With --unit-size, a
worker is a unit of several processes: it fails with the first of them, and starts again as a whole.`,
		Example: `  muster run -n 4 -- ./train --epochs 3
  muster run -n 2 --env GOMAXPROCS=1 -- sh -c 'echo rank $RANK of $WORLD_SIZE'
  muster run -n 4 --master-port 29500 -- python train.py   # rank 0 listens there itself
  muster run -n 4 --max-restarts 3 --log-dir logs -- ./train
  muster run --elastic 4:8 --spares 2 --max-restarts 20 -- ./train
  muster run --nnodes 2:4 -n 8 --job train --store muster://node0:7070 -- ./train`,
		Args: operands("PROGRAM", "[ARG…]"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	cmd.DisableFlagsInUseLine = true
	f := cmd.Flags()
	f.SetInterspersed(false) // flags after the program belong to the program
	f.IntVarP(&o.n, "ranks", "n", 0, "number of `ranks`, or with --elastic of workers, to start on this node; required without --elastic")
	f.BoolVar(&o.noPrefix, "no-prefix", false, "do not prefix lines of output; keep standard error separate")
	f.StringArrayVar(&o.env, "env", nil, "`NAME=VALUE` for every rank; may be repeated")
	f.DurationVar(&o.grace, "grace", 3*time.Second, "time between the failure of a rank and SIGTERM to the others")
	f.BoolVar(&o.goOn, "keep-going", false, "leave the other ranks running after one has failed")
	f.DurationVar(&o.limit, "timeout", 0, "end the job after this time, and exit with 4; 0 is no timeout")
	f.DurationVar(&o.kill, "kill-after", launch.DefaultGrace, "time between SIGTERM and SIGKILL")
	f.StringVar(&o.masterAddr, "master-addr", "127.0.0.1", "`address` where the ranks meet")
	f.IntVar(&o.masterPort, "master-port", 0, "`port` where rank 0 listens; 0: run hosts the store, at a free port")
	f.BoolVar(&o.stacks, "stacks", false, "if run hosts the store: allow the clients of the store to see the stacks of ranks (who --stacks)")
	f.StringVar(&o.store, "store", "", "`URL` of a running store, where the ranks meet instead, such as etcd://host:port; or set MUSTER_STORE, where the ranks use a prefix, the job's name")
	o.registerNodes(cmd)
	o.live.register(cmd)
	f.BoolVar(&o.insecure, "insecure", false, "listen beyond loopback without encryption and authentication")
	return cmd
}

func (o *running) check(cmd *cobra.Command, program string) error {
	variable := o.store == "" && !cmd.Flags().Changed("master-addr") && !cmd.Flags().Changed("master-port") && os.Getenv("MUSTER_STORE") != ""
	if variable {
		o.store = os.Getenv("MUSTER_STORE")
	}
	if err := o.checkNodes(cmd, o.store); err != nil {
		return err
	}
	if variable {
		o.below = o.jobName(program)
	}
	if err := o.checkElastic(cmd); err != nil {
		return err
	}
	if !cmd.Flags().Changed("ranks") && (o.greatest == 0 || o.most > 1) {
		return usagef(cmd, "the number of ranks on this node is missing: set -n")
	}
	if o.greatest > 0 {
		if err := o.countWorkers(cmd); err != nil {
			return err
		}
	}
	switch {
	case o.n < 1:
		return usagef(cmd, "-n %d: there must be at least 1 rank", o.n)
	case o.n > maxProcesses/o.unit:
		return usagef(cmd, "more than %d processes on one node: use several nodes, with --nnodes", maxProcesses)
	case o.masterPort < 0 || o.masterPort > 65535:
		return usagef(cmd, "--master-port %d is not a number from 0 to 65535", o.masterPort)
	case o.store != "" && o.stacks:
		return usagef(cmd, "--stacks is for the store that run hosts, and %s names another, which allows it with \"muster serve --stacks\"", o.source())
	case strings.HasPrefix(o.masterAddr, "["):
		return usagef(cmd, "--master-addr %s: an address without brackets, such as %s", o.masterAddr, strings.Trim(o.masterAddr, "[]"))
	case o.masterAddr == "":
		return usagef(cmd, "--master-addr must not be empty")
	case o.store != "" && (cmd.Flags().Changed("master-addr") || cmd.Flags().Changed("master-port")):
		return usagef(cmd, "the ranks meet in --store: --master-addr and --master-port have no effect then")
	}
	if err := o.place.check(cmd); err != nil {
		return err
	}
	if err := o.live.check(cmd); err != nil {
		return err
	}
	for _, e := range o.env {
		if i := strings.IndexByte(e, '='); i < 1 {
			return usagef(cmd, "--env %q is not NAME=VALUE", e)
		}
	}
	return nil
}

func (o *running) run(cmd *cobra.Command, args []string) error {
	if err := o.check(cmd, args[0]); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return programError(args[0], err)
	}
	if err := o.open(); err != nil {
		return err
	}
	defer o.close()
	meeting, err := o.meeting()
	if err != nil {
		return err
	}
	defer meeting.Close()
	board := startBoard(job{Job: o.jobName(path), Node: o.name(), PID: os.Getpid(), URL: o.url(), Command: args, Started: time.Now(), Ranks: o.n * o.unit}, o.public(), func(err error) {
		fmt.Fprintf(cmd.ErrOrStderr(), "muster: %s has not been reached for %v: %s: the ranks may wait for it\n", redacted(o.store), boardWarn, reason(err))
	})
	defer board.close()
	logs := o.logFiles()
	if err := logs.prepare(); err != nil {
		return &exit{code: exitFailed, text: fmt.Sprintf("--log-dir %s: %s: set it to a directory in which this user may write", o.logs, reason(err)), err: err}
	}
	sigs := catch(o.kill)
	defer sigs.stop()
	guard := startGuard()
	defer guard.close()
	o.env = append(o.env, guard.mark)
	l := &launches{running: o, path: path, args: args[1:], sigs: sigs, logs: logs, stderr: cmd.ErrOrStderr()}
	if l.logs.dir != "" {
		fmt.Fprintln(l.stderr, "muster: logs are in", l.logs.dir)
	}
	a := o.agent(meeting, sigs, l.stderr, l.start)
	a.Status = board.set
	ctx := cmd.Context()
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.limit, &exit{code: exitTimeout, text: fmt.Sprintf("ended by --timeout %v", o.limit), err: context.DeadlineExceeded})
		defer cancel()
	}
	if o.greatest > 0 {
		w := &elasticWorkers{launches: l}
		return w.run(ctx, a)
	}
	return l.ended(a.Run(ctx))
}

// notice is launch.Spec.Notice.
func (o *running) notice() time.Duration {
	if o.goOn {
		return -1
	}
	return o.grace
}

// killAfter is launch.Spec.Grace.
func (o *running) killAfter() time.Duration {
	if o.kill == 0 {
		return -1 // at once
	}
	return o.kill
}

// launches starts the ranks of this node, once for each attempt of the job.
type launches struct {
	*running
	path   string
	args   []string
	sigs   *signals
	logs   logFiles
	stderr io.Writer

	failed string   // the rank that has failed last, on this node
	tail   []string // its last lines
	others string   // what became of the other ranks of this node
}

// process runs processes until they have ended. The job is nil if they could not be started.
func (l *launches) process(ctx context.Context, spec launch.Spec) (*launch.Job, error) {
	job, err := launch.Start(ctx, spec)
	if err != nil {
		return nil, programError(l.path, err)
	}
	err = l.sigs.wait(job)
	if errors.Is(err, syscall.EPIPE) {
		l.sigs.drain() // others would have no reader either
	}
	return job, err
}

// start implements agent.Agent.Start.
func (l *launches) start(ctx context.Context, a agent.Attempt) error {
	watching, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	if open := l.public(); open != nil && a.Node == 0 { // the first node prints those of all
		tasks.Go(func() { printPhases(watching, open, a.ID, l.stderr) })
	}
	job, err := l.process(ctx, l.spec(a))
	if _, ok := errors.AsType[*launch.ExitError](err); ok {
		e, elsewhere := l.first(job.Failures(), a)
		l.tail = job.Process(e.Rank).Tail()
		l.others = l.fateOfOthers(job.Failures())
		global := *e
		global.Rank += a.First
		l.failed = fmt.Sprintf("rank %d", global.Rank)
		if elsewhere {
			return follows{&global}
		}
		return &global
	}
	return err
}

// follows is the failure of a rank because of one on another node.
type follows struct{ *launch.ExitError }

// Is implements errors.Is.
func (follows) Is(target error) bool { return target == agent.ErrFollows }

// Unwrap returns the failure.
func (f follows) Unwrap() error { return f.ExitError }

// first returns the failure that is the cause of the others: that of the rank which the store has seen
// fail first, whose process may end after those that fail because of it. elsewhere is true if that rank is
// on another node.
func (l *launches) first(failures []*launch.ExitError, a agent.Attempt) (first *launch.ExitError, elsewhere bool) {
	if a.Size == 1 || l.public() == nil {
		return failures[0], false
	}
	ranks := l.blamed(a)
	for _, e := range failures {
		if slices.Contains(ranks, a.First+e.Rank) {
			return e, false
		}
	}
	return failures[0], slices.ContainsFunc(ranks, func(rank int) bool { return rank >= 0 && (rank < a.First || rank >= a.First+l.n) })
}

// blamed returns the ranks that have ended the first of the ranks' groups of this size; nil if there is
// none, or the store does not answer.
func (l *launches) blamed(a agent.Attempt) (ranks []int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := l.public()(ctx)
	if err != nil {
		return nil
	}
	defer s.Close()
	now, err := s.Status(ctx, "")
	if err != nil {
		return nil
	}
	earliest := time.Duration(-1)
	for _, g := range now.Groups {
		if f := g.Revoked; f != nil && g.Run == a.ID && g.Size == a.Size && f.Ago > earliest {
			earliest, ranks = f.Ago, slices.Concat(f.Failure.Lost, f.Failure.Left, []int{f.Failure.By})
		}
	}
	return ranks
}

// fateOfOthers returns what became of the ranks other than the first that failed.
func (l *launches) fateOfOthers(failures []*launch.ExitError) string {
	ended := l.n - 1
	for _, e := range failures[1:] {
		if e.Signal != syscall.SIGTERM && e.Signal != syscall.SIGKILL {
			ended--
		}
	}
	switch {
	case ended == 0 && l.n > 1:
		return "; the other ranks failed after it"
	case l.goOn:
		return ""
	}
	return "; the other ranks were ended"
}

func (l *launches) spec(a agent.Attempt) launch.Spec {
	k := inkOf(os.Stdout) && inkOf(os.Stderr)
	width := len(fmt.Sprint(a.Size - 1))
	return launch.Spec{
		N: l.n, Path: l.path, Args: l.args, Grace: l.killAfter(), Notice: l.notice(), Output: os.Stdout, ErrOutput: os.Stderr,
		Log: l.logs.next(a.First),
		Env: func(local int) []string { return append(l.attempt(a, local, l.n), l.env...) },
		Prefix: func(local int) string {
			if l.noPrefix {
				return ""
			}
			rank := a.First + local
			return k.rank(rank, fmt.Sprintf("[%*d]", width, rank)) + " "
		},
	}
}

// ended converts the result of the job into the error of this process.
func (l *launches) ended(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return &exit{code: 128 + int(syscall.SIGPIPE), text: "the reader of the output has gone away: the ranks were ended", err: err}
	}
	if unstarted, ok := errors.AsType[*exit](err); ok {
		return unstarted
	}
	e, ok := errors.AsType[*launch.ExitError](err)
	if failed, elsewhere := errors.AsType[*agent.Error](err); elsewhere && !ok {
		return &exit{code: exitFailed, text: failed.Error() + "; the ranks here were ended", err: err}
	}
	if !ok {
		return l.nodesError(err, l.sigs)
	}
	if l.n > 1 && l.sigs.ended() == 0 {
		printTail(l.stderr, l.failed, l.tail)
	}
	text := err.Error()
	if e.Signal != 0 {
		text += fmt.Sprintf(" (%v)", e.Signal)
	}
	if l.sigs.ended() != 0 {
		return &exit{code: e.ExitCode(), text: l.sigs.blame(e, text), err: err}
	}
	if l.n > 1 || l.most > 1 {
		text += l.others
	}
	return &exit{code: e.ExitCode(), text: text, err: err}
}

// printTail prints the last lines of a process that has failed, if it has written any.
func printTail(w io.Writer, process string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(w, "muster: the last lines of %s:\n", process)
	}
	for _, line := range lines {
		fmt.Fprintln(w, "    "+printable(line))
	}
}

// programError describes a program that cannot be started. The exit codes are those of a shell.
func programError(name string, err error) error {
	switch {
	case name == "":
		return &exit{code: exitNoProgram, text: "the name of the program is empty: is a variable unset?", err: err}
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return &exit{code: exitNoProgram, text: fmt.Sprintf("there is no program %q: is its path right, or its directory in PATH?", name), err: err}
	case errors.Is(err, exec.ErrDot):
		return &exit{code: exitNoProgram, text: fmt.Sprintf("%q is in this directory only: call it ./%s", name, name), err: err}
	case errors.Is(err, fs.ErrPermission):
		return &exit{code: exitNotRunnable, text: fmt.Sprintf("%q may not be executed: is it a program? chmod +x makes it one", name), err: err}
	}
	return &exit{code: exitNotRunnable, text: fmt.Sprintf("%q cannot be started: %s", name, reason(err)), err: err}
}
