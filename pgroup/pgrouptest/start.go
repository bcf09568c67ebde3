package pgrouptest

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/store"
)

const (
	dumpTimeout = 3 * time.Second // for the processes to print their stacks, and from SIGTERM to SIGKILL
	drainTime   = time.Second     // for a process that has left the group of one that has ended
)

// start starts the processes and waits for them; the process of the test calls it.
func (j Job) start(t *testing.T, call string) {
	t.Helper()
	if j.N < 1 || len(j.Hosts) > 0 && len(j.Hosts) != j.N {
		t.Fatalf("pgrouptest: a job of %d ranks with %d hosts", j.N, len(j.Hosts))
	}
	meet, addr, stop := serve(t)
	defer stop()
	j.Env = append(slices.Clone(j.Env), envStore+"="+addr)
	out := newTranscript(t.Output(), j.N, testing.Verbose())
	first, err := j.supervise(t, call, meet, out)
	if err != nil { // before what may be hundreds of lines of stacks
		t.Error(err)
	}
	out.print(first)
}

// supervise starts all processes and waits until they have ended. first is the rank to blame, or -1.
func (j Job) supervise(t *testing.T, call string, meet *store.Store, out *transcript) (first int, err error) {
	limit := j.limit(t)
	args, err := arguments(t, limit)
	if err != nil {
		return -1, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return -1, err
	}
	defer read.Close()
	job, err := launch.Start(t.Context(), launch.Spec{
		N: j.N, Path: args[0], Args: args[1:], Output: out, ParentPipe: needsParentPipe, Grace: dumpTimeout, Files: []*os.File{write},
		MayFail: func(rank int) bool { return slices.Contains(j.MayFail, rank) },
		Env: func(rank int) []string {
			// The race detector would make each process linger for a second at its end.
			return append(slices.Clone(j.Env), "GORACE=atexit_sleep_ms=0", envCall+"="+call, envRank+"="+strconv.Itoa(rank), envTimeout+"="+(limit+dumpTimeout).String())
		},
	})
	_ = write.Close()
	if err != nil {
		return -1, fmt.Errorf("pgrouptest: %w", err)
	}
	select {
	case <-job.Done():
	case <-time.After(limit):
		why, rank := j.blame(t.Context(), meet)
		job.Signal(syscall.SIGQUIT) // the Go runtime prints the stacks of all goroutines, and exits
		select {
		case <-job.Done():
		case <-time.After(dumpTimeout):
			job.Signal(syscall.SIGKILL)
			<-job.Done()
		}
		return rank, fmt.Errorf("the job did not end in %v%s", limit, why)
	}
	err = job.Wait()
	first = firstFailure(read)
	if e, ok := errors.AsType[*launch.ExitError](err); ok {
		if first >= 0 {
			err = fmt.Errorf("rank %d failed first: %w", first, err)
		} else {
			first = e.Rank
		}
	}
	return first, err
}

// firstFailure returns the rank that reported its failure first, or -1.
func firstFailure(read *os.File) int {
	_ = read.SetReadDeadline(time.Now().Add(drainTime)) // a process that has left its group may hold the other end
	line, err := bufio.NewReader(read).ReadString('\n')
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
