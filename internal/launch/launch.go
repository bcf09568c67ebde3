// Package launch starts the ranks of one node as processes and looks after them
// until the last has ended.
//
//	job, err := launch.Start(ctx, launch.Spec{
//		N:      4,
//		Path:   "./train",
//		Env:    func(rank int) []string { return []string{"RANK=" + strconv.Itoa(rank)} },
//		Output: os.Stdout,
//	})
//	if err != nil {
//		return err
//	}
//	return job.Wait() // "rank 2: exit status 3"
//
// # Who ends when
//
// The first rank that fails ends the others after Spec.Notice; the end of the context and a broken
// pipe as Output do at once: SIGTERM, then SIGKILL after Spec.Grace. Each rank leads a process group of its
// own, and every signal goes to the whole group; what a rank leaves behind in its
// group is ended too, in the same two steps. Only a process that left the group
// (setsid) gets away.
//
// The ranks also end when this process ends, even by kill -9. On Linux the kernel
// sees to it (Pdeathsig); elsewhere, and in addition, a program of ours can ask for
// [Spec.ParentPipe] and call [ExitWithParent]. The kernel signals the ranks only: after a
// kill -9 of this process, the children of a rank without that pipe live on.
//
// # Who owns which goroutine
//
// A job has one goroutine that starts the ranks and decides about them. It keeps
// its thread from the first start to the last end, because Pdeathsig fires when the
// *thread* that started the child ends, not when the process does: were ranks
// started from the caller's goroutine, one that is locked to its thread and returns
// would take its ranks along. Each rank has one goroutine that waits for its end,
// and one for each of its two output streams. All have ended when Wait returns; if
// Wait is not called, they end with the ranks all the same.
package launch

import (
	"cmp"
	"context"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// DefaultGrace is the time from SIGTERM to SIGKILL unless Spec says otherwise.
const DefaultGrace = 5 * time.Second

// Spec says what to start. N and Path are required.
type Spec struct {
	N    int      // ranks to start here, at least 1, numbered from 0
	Path string   // program; looked up in PATH if it has no slash
	Args []string // arguments, without the program's name

	// Env returns what is added to the environment of a rank; it overrides this process's
	// variables. Nil adds nothing.
	Env func(rank int) []string

	// Output gets what the ranks write to standard output and standard error, each line with its
	// rank's prefix; nil discards it. Calls are never concurrent, and each has whole lines. Lines
	// of one stream of a rank are in order; lines of its two streams are not ordered. A last line
	// without newline gets one. A line above 64 KiB is cut into pieces of that size, each a line of
	// its own.
	//
	// A slow Output slows the ranks down; one that blocks blocks Wait. After its first error the
	// rest is read and discarded, and Wait returns that error unless a rank has failed. A broken
	// pipe (EPIPE) ends the ranks: the output has no reader.
	Output io.Writer

	// ErrOutput gets the ranks' standard error instead; nil is Output. Calls of the two are never
	// concurrent either: they may be the same terminal.
	ErrOutput io.Writer

	// Prefix returns the prefix of each line of a rank; nil is "[rank] ".
	Prefix func(rank int) string

	// Log opens the log of a rank, which gets both of its streams without prefix, and is closed at
	// its end; nil keeps no logs. An error of opening one starts no rank; one of writing is as for
	// Output.
	Log func(rank int) (io.WriteCloser, error)

	// ParentPipe makes the ranks' standard input a pipe that ends with this process, for programs
	// that call ExitWithParent, or read Job.Input. Otherwise their standard input is empty.
	ParentPipe bool
	// Files are inherited by the ranks, as descriptors from 3.
	Files []*os.File

	// Grace is the time from SIGTERM to SIGKILL; 0 is DefaultGrace, and less than 0
	// kills at once.
	Grace time.Duration

	// Notice is the time that the other ranks have after the first failure before SIGTERM, to see it
	// and to report it; 0 is none, and less than 0 leaves them running.
	Notice time.Duration

	// MayFail reports whether a rank's failure is expected: it does not end the others, and Wait
	// does not report it. Nil is never.
	MayFail func(rank int) bool

	// Failed is called once, as soon as a rank has failed: what it left behind and the other ranks may
	// still run. They are ended meanwhile, and Wait waits for its return. Nil does nothing.
	Failed func()
}

func (s Spec) withDefaults() Spec {
	if s.Env == nil {
		s.Env = func(int) []string { return nil }
	}
	if s.Log == nil {
		s.Log = func(int) (io.WriteCloser, error) { return nil, nil }
	}
	if s.Prefix == nil {
		s.Prefix = func(rank int) string { return "[" + strconv.Itoa(rank) + "] " }
	}
	s.Grace = cmp.Or(s.Grace, DefaultGrace)
	if s.MayFail == nil {
		s.MayFail = func(int) bool { return false }
	}
	if s.Failed == nil {
		s.Failed = func() {}
	}
	return s
}

// Job is a set of ranks that was started together. Its methods may be called from
// any goroutine.
type Job struct {
	spec       Spec
	procs      []*Process // by rank
	out        *output
	parentPipe parentPipe
	failed     sync.Once // calls spec.Failed

	ended chan *ExitError // each rank sends its failure, if it has one, and then nil when it is gone: all fit

	done     chan struct{} // closed when all ranks are gone; the fields below are written before that
	err      error         // what Wait returns
	failures []*ExitError
}

// Start starts the ranks of spec and returns when all run. If one cannot be started,
// those that were are killed and reaped first. The end of ctx ends the ranks.
func Start(ctx context.Context, spec Spec) (*Job, error) {
	j := &Job{
		spec:  spec.withDefaults(),
		out:   newOutput(spec.Output, spec.ErrOutput),
		ended: make(chan *ExitError, 2*spec.N),
		done:  make(chan struct{}),
	}
	started := make(chan error, 1)
	go j.supervise(ctx, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return j, nil
}

// Wait returns when all ranks have ended, what they left behind is gone, and their
// output is written. Its error is an *ExitError for the first rank that failed, or
// the cause of the context's end if that came first.
func (j *Job) Wait() error {
	<-j.done
	return j.err
}

// Input is the standard input of the ranks with Spec.ParentPipe, which ends when it is closed. All
// ranks share it: it is for jobs of one.
func (j *Job) Input() io.WriteCloser { return j.parentPipe.hold }

// Failures returns the ranks that have failed, in the order in which they ended, when Done is closed.
func (j *Job) Failures() []*ExitError { return j.failures }

// Done is closed when Wait would return at once.
func (j *Job) Done() <-chan struct{} { return j.done }

// Signal sends sig to every rank that has not ended, and to its children.
// SIGKILL ends the job without any grace. After SIGQUIT no rank gets SIGTERM, when another one has ended,
// but only SIGKILL after the grace: it may be printing its stacks.
func (j *Job) Signal(sig os.Signal) {
	if sig == syscall.SIGQUIT {
		for _, p := range j.procs { // before the first of them can end
			p.spareSIGTERM()
		}
	}
	for _, p := range j.procs {
		_ = p.Signal(sig) // ignore ranks that have ended
	}
}

// Process returns the process of a rank.
func (j *Job) Process(rank int) *Process { return j.procs[rank] }
