package pgrouptest

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	grace       = time.Second     // from SIGTERM to SIGKILL
	dumpTimeout = 3 * time.Second // for the processes to print their stacks
	drainTime   = time.Second     // for output of a process that has left the group of one that has ended
)

// start starts the processes and waits for them; the process of the test calls it.
func (j processes) start(t *testing.T, call string) {
	t.Helper()
	if j.n < 1 {
		t.Fatalf("pgrouptest: a job of %d processes", j.n)
	}
	limit := j.limit(t)
	r := &running{job: j, out: newTranscript(t.Output(), j.n, testing.Verbose()), ends: make(chan end, j.n), gone: make(chan struct{})}
	if err := r.start(t, call, limit); err != nil {
		t.Errorf("pgrouptest: %v", err)
		return
	}
	err := r.supervise(t, limit)
	first := r.firstFailure()
	if e, ok := errors.AsType[*exitError](err); ok {
		if first >= 0 {
			err = fmt.Errorf("rank %d failed first: %w", first, err)
		} else {
			first = e.rank
		}
	}
	if e, ok := errors.AsType[*hangError](err); ok { // before hundreds of lines of stacks
		t.Error(err)
		r.out.print(e.rank)
		return
	}
	r.out.print(first)
	if err != nil {
		t.Error(err)
	}
}

// running is a job whose processes have been started.
type running struct {
	job   processes
	out   *transcript
	procs []*exec.Cmd
	read  *os.File // the other end of failures
	ends  chan end
	gone  chan struct{} // closed when all have ended
	wait  sync.WaitGroup
}

// end is the end of a process.
type end struct {
	rank int
	err  error
}

// exitError is how a process that must not fail has failed.
type exitError struct {
	rank int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("rank %d: %v", e.rank, e.err) }
func (e *exitError) Unwrap() error { return e.err }

// hangError is a job that did not end in time.
type hangError struct {
	limit time.Duration
	why   string
	rank  int // that the others wait for, or -1
}

func (e *hangError) Error() string { return fmt.Sprintf("the job did not end in %v%s", e.limit, e.why) }

// start starts all processes. One goroutine keeps its thread until all have ended: on Linux, the kernel
// ends a process when the thread that started it ends, and not only when the process of that thread does.
func (r *running) start(t *testing.T, call string, limit time.Duration) error {
	args, err := arguments(t, limit)
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	r.read = read
	hold, err := newParentPipe()
	if err != nil {
		return err
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(r.gone)
		var err error
		for rank := 0; rank < r.job.n && err == nil; rank++ {
			env := append(os.Environ(), r.job.env...)
			// The race detector would make each process linger for a second at its end.
			env = append(env, "GORACE=atexit_sleep_ms=0", envCall+"="+call, envRank+"="+strconv.Itoa(rank), envTimeout+"="+(limit+dumpTimeout).String())
			err = r.launch(rank, args, env, write, hold)
		}
		_ = write.Close()
		if err != nil {
			r.signal(syscall.SIGKILL)
		}
		started <- err
		r.wait.Wait()
		hold.close()
	}()
	if err := <-started; err != nil {
		<-r.gone
		return errors.Join(err, read.Close())
	}
	return nil
}

// launch starts one process, and goroutines that copy its output and wait for its end.
func (r *running) launch(rank int, args, env []string, failed *os.File, hold *parentPipe) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = env, write, write, []*os.File{failed}
	cmd.SysProcAttr = attributes()
	if hold.read != nil {
		cmd.Stdin = hold.read
	}
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return errors.Join(err, read.Close())
	}
	r.procs = append(r.procs, cmd)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		r.out.copy(rank, read)
	}()
	r.wait.Go(func() {
		err := cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left in its group
		_ = read.SetReadDeadline(time.Now().Add(drainTime))
		<-copied
		_ = read.Close()
		r.ends <- end{rank, err}
	})
	return nil
}

// signal sends sig to the groups of all processes.
func (r *running) signal(sig syscall.Signal) {
	for _, cmd := range r.procs {
		_ = syscall.Kill(-cmd.Process.Pid, sig) // ESRCH: it has ended
	}
}

// supervise waits until all processes have ended, and ends them after the first failure, at the end of the
// test, and after limit.
func (r *running) supervise(t *testing.T, limit time.Duration) (failure error) {
	late, killed := time.After(limit), (<-chan time.Time)(nil)
	testEnd := t.Context().Done()
	stop := func(err error, sig syscall.Signal, after time.Duration) {
		if failure == nil {
			failure = err
			r.signal(sig)
			killed = time.After(after)
		}
	}
	for left := len(r.procs); left > 0; {
		select {
		case e := <-r.ends:
			left--
			if e.err != nil && !r.job.failureAllowed(e.rank) {
				stop(&exitError{e.rank, e.err}, syscall.SIGTERM, grace)
			}
		case <-late:
			why, rank := r.job.blame()
			// The Go runtime prints the stacks of all goroutines, and exits.
			stop(&hangError{limit, why, rank}, syscall.SIGQUIT, dumpTimeout)
		case <-testEnd:
			testEnd = nil
			stop(t.Context().Err(), syscall.SIGTERM, grace)
		case <-killed:
			r.signal(syscall.SIGKILL)
		}
	}
	<-r.gone
	return failure
}

// firstFailure returns the rank that reported its failure first, or -1.
func (r *running) firstFailure() int {
	defer r.read.Close()
	_ = r.read.SetReadDeadline(time.Now().Add(drainTime)) // a process that has left its group may hold the other end
	line, err := bufio.NewReader(r.read).ReadString('\n')
	if err != nil {
		return -1
	}
	rank, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return -1
	}
	return rank
}

// arguments returns the command that runs t alone.
func arguments(t *testing.T, limit time.Duration) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	parts := strings.Split(t.Name(), "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	// With -test.v a failure is printed when it happens, and not when its test ends: by then the process may have been ended.
	args := []string{self, "-test.run=" + strings.Join(parts, "/"), "-test.count=1", "-test.timeout=" + (limit + dumpTimeout + reportMargin).String(), "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if testing.CoverMode() != "" {
		dir, err := coverDir(self)
		if err != nil {
			return nil, err
		}
		args = append(args, "-test.gocoverdir="+dir)
	}
	return args, nil
}

var coverLock sync.Mutex

// coverDir returns the directory for counters of coverage. At its end, the process of the test adds its own
// there, and writes a profile of all that are in it.
func coverDir(self string) (string, error) {
	coverLock.Lock()
	defer coverLock.Unlock()
	f := flag.Lookup("test.gocoverdir")
	if dir := f.Value.String(); dir != "" {
		return dir, nil
	}
	parent := "" // of temporary files
	if strings.Contains(self, "go-build") {
		parent = filepath.Dir(self) // the go command deletes it
	}
	dir, err := os.MkdirTemp(parent, "pgrouptest-cover")
	if err != nil {
		return "", err
	}
	return dir, f.Value.Set(dir)
}

// copy passes on whole lines of a process until its output ends.
func (x *transcript) copy(rank int, from io.Reader) {
	const longest = 64 << 10
	lines := bufio.NewReaderSize(from, longest)
	for {
		line, err := lines.ReadSlice('\n') // a longer line is cut
		if len(line) > 0 {
			x.add(rank, line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
