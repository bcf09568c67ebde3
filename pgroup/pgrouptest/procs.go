package pgrouptest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/status"
	"github.com/muster-pg/muster/store"
)

// Job is n ranks that are processes: the test binary again, with -test.run of the test's name. It
// needs no TestMain. Code before Run in the test function runs in each rank too; code after it runs
// in the test alone.
type Job struct {
	N          int
	Env        []string      // added to the environment of each rank; MUSTER_RUN is pgroup.Config.Run
	Hosts      []string      // one for each rank: simulates several nodes
	MayFail    []int         // ranks that the test ends
	Rank0Hosts bool          // rank 0 hosts the store, as in most jobs; otherwise the test does
	Timeout    time.Duration // of the whole job; default a minute, and at most that of the test binary

	LivenessTimeout time.Duration // as in pgroup.Config
}

// Environment variables of a rank.
const (
	envCall    = "MUSTER_TEST_CALL" // name of the test, and the number of the call of Run in it
	envRank    = "MUSTER_TEST_RANK"
	envStore   = "MUSTER_TEST_STORE" // store of the test
	envTimeout = "MUSTER_TEST_TIMEOUT"
)

// useParentPipe reports whether ranks watch a pipe for the end of the test, by a goroutine that
// their own leak checks would find. On Linux the kernel ends them.
const useParentPipe = runtime.GOOS != "linux"

// calls counts the calls of Run by test: a rank runs the call that it was started for.
var calls = struct {
	sync.Mutex
	made map[string]int
}{made: map[string]int{}}

// Run runs f on j.N processes, and fails t if one of them fails. The first rank that fails ends the
// others, and its output is printed first; with -v all output is printed as it comes. If the job
// does not end in time, the error names the ranks that the others wait for, and the output has the
// stacks of all goroutines of all ranks.
func (j Job) Run(t *testing.T, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	calls.Lock()
	calls.made[t.Name()]++
	call := fmt.Sprintf("%s#%d", t.Name(), calls.made[t.Name()])
	calls.Unlock()
	switch os.Getenv(envCall) {
	case "":
		j.start(t, call)
	case call:
		j.rank(t, f)
	}
}

// start starts the ranks and waits for them; the test process calls it.
func (j Job) start(t *testing.T, call string) {
	t.Helper()
	if j.N < 1 || len(j.Hosts) > 0 && len(j.Hosts) != j.N {
		t.Fatalf("pgrouptest: a job of %d ranks with %d hosts", j.N, len(j.Hosts))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	meet, addr, stop := serve(t)
	defer stop()
	limit := j.Timeout
	if limit == 0 {
		limit = opTimeout(t)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out := newTranscript(t.Output(), j.N, testing.Verbose())
	var dumping atomic.Bool // from here on ranks end because they were asked for their stacks
	job, err := launch.Start(ctx, launch.Spec{
		N: j.N, Path: self, Args: arguments(t, limit), Output: out, ParentPipe: useParentPipe, Grace: time.Second, Prefix: prefix,
		MayFail: func(rank int) bool { return dumping.Load() || slices.Contains(j.MayFail, rank) },
		Env: func(rank int) []string {
			// The race detector would make each rank linger for a second at its end.
			return append(slices.Clone(j.Env), "GORACE=atexit_sleep_ms=0", envCall+"="+call, envRank+"="+strconv.Itoa(rank), envStore+"="+addr, envTimeout+"="+(limit+dumpTimeout).String()) // the job times out before an operation does
		},
	})
	if err != nil {
		t.Error(err)
		return
	}
	select {
	case <-job.Done():
	case <-time.After(limit):
		why := fmt.Errorf("the job did not end in %v%s", limit, j.blame(t.Context(), meet))
		dumping.Store(true)
		job.Signal(syscall.SIGQUIT) // the Go runtime prints the stacks of all goroutines, and exits
		select {
		case <-job.Done():
		case <-time.After(dumpTimeout):
		}
		cancel(why)
		<-job.Done()
		err = why
	}
	if err == nil {
		err = job.Wait()
	}
	culprit := -1
	if e, ok := errors.AsType[*launch.ExitError](err); ok {
		culprit = e.Rank
		if first, _ := meet.Get(context.WithoutCancel(ctx), keyFailed); len(first) > 0 {
			culprit, _ = strconv.Atoi(string(first[:bytes.IndexByte(first, ' ')]))
			err = fmt.Errorf("rank %d failed first: %w", culprit, err)
		}
	}
	out.print(culprit)
	if err != nil {
		t.Error(err)
	}
}

// dumpTimeout is how long ranks may take to print their stacks.
const dumpTimeout = 3 * time.Second

// blame names the ranks that others wait for, and that wait in no call themselves.
func (j Job) blame(ctx context.Context, meet *store.Store) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s := meet
	if j.Rank0Hosts {
		addr, err := meet.Get(ctx, keyAddress)
		if err != nil {
			return ": rank 0 has not begun to host"
		}
		if s, err = store.Dial(ctx, string(addr), nil); err != nil {
			return fmt.Sprintf(": the store of rank 0 does not answer: %v", err)
		}
		defer func() { _ = s.Close() }()
	}
	now, err := s.Status(ctx, "")
	if err != nil {
		return ""
	}
	var who strings.Builder
	for _, b := range status.Of(now, nil, nil).Blame {
		fmt.Fprintf(&who, "; the others wait in %s for rank %d: %s", b.What, b.Rank, cmp.Or(b.Doing, "it has not come"))
	}
	return who.String()
}

const (
	// keyFailed has the ranks whose tests failed, in order: those that fail because of the first may end before it does.
	keyFailed = "failed"
	// keyAddress has the address at which rank 0 hosts the group's store.
	keyAddress = "address"
)

// serve starts the store of the job in this process.
func serve(t *testing.T) (meet *store.Store, addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	memory := new(store.Memory)
	srv := &store.Server{Engine: memory}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	return store.New(memory), l.Addr().String(), func() {
		_ = srv.Close()
		_ = memory.Close()
		serving.Wait()
	}
}

// arguments returns the arguments with which the test binary runs t alone. Coverage is not passed
// on: the ranks would overwrite each other's files.
func arguments(t *testing.T, limit time.Duration) []string {
	parts := strings.Split(t.Name(), "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	// With -test.v a failure is printed when it happens, and not when its test ends: by then the rank may have been ended.
	return []string{"-test.run=" + strings.Join(parts, "/"), "-test.count=1", "-test.timeout=" + (limit + dumpTimeout + reportMargin).String(), "-test.v"}
}

// rank runs f as a rank; a rank's process calls it. The test ends with it: code after Run does not
// run in a rank.
func (j Job) rank(t *testing.T, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	launch.ExitWithParent()
	rank, err := strconv.Atoi(os.Getenv(envRank))
	if err != nil {
		t.Fatal(err)
	}
	left, err := time.ParseDuration(os.Getenv(envTimeout))
	if err != nil {
		t.Fatal(err)
	}
	c := pgroup.Config{Name: t.Name(), Run: os.Getenv("MUSTER_RUN"), Rank: rank, Size: j.N, Timeout: left, LivenessTimeout: j.LivenessTimeout}
	if len(j.Hosts) > 0 {
		c.Host = j.Hosts[rank]
	}
	j.join(t, c, f)
	t.SkipNow()
}

func (j Job) join(t *testing.T, c pgroup.Config, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	meet, err := store.Open(t.Context(), "muster://"+os.Getenv(envStore))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = meet.Close() }()
	if err := j.place(t.Context(), meet, &c); err != nil {
		t.Fatal(err)
	}
	g, err := pgroup.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	runRank(t, g, f, func() {
		_, _ = meet.Append(context.WithoutCancel(t.Context()), keyFailed, []byte(strconv.Itoa(c.Rank)+" "))
	}, func() bool { return false })
	if j.Rank0Hosts && !t.Failed() { // the others still need rank 0
		ctx, cancel := context.WithTimeout(t.Context(), reportMargin)
		defer cancel()
		_ = g.Shutdown(ctx) // fails where a rank's death was the test
	}
}

// place sets where the group meets. Rank 0 publishes the port that it has chosen in the test's
// store.
func (j Job) place(ctx context.Context, meet *store.Store, c *pgroup.Config) error {
	if !j.Rank0Hosts {
		c.Address = "muster://" + os.Getenv(envStore)
		return nil
	}
	if c.Rank != 0 {
		values, err := meet.Wait(ctx, keyAddress)
		if err == nil {
			c.Address = string(values[0])
		}
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.Listener = l
	return meet.Set(ctx, keyAddress, []byte(l.Addr().String()), nil)
}
