package main_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	train "github.com/muster-pg/muster/examples/train"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// arguments is the variable with the arguments of a process: the test binary again. They may contain other
// variables, such as $RANK.
const arguments = "MUSTER_TRAIN_TEST"

// limit is the timeout of operations that should take little time, on a busy machine and with the
// race detector.
const limit = 2 * time.Minute

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(arguments); ok {
		launch.ExitWithParent()
		os.Args = append(os.Args[:1], strings.Fields(os.ExpandEnv(args))...)
		train.Main()
		os.Exit(0)
	}
	for _, name := range []string{"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"} {
		_ = os.Unsetenv(name)
	}
	testcluster.Leaks(m)
}

// start starts n processes with the same arguments, and writes what they print to out. Nothing ends the others
// when one fails.
func start(t *testing.T, out *testcluster.Log, n int, args string, env func(rank int) []string) *launch.Job {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	j, err := launch.Start(testcluster.Within(t, limit), launch.Spec{
		N: n, Path: self, Output: out, ParentPipe: true, Grace: -1,
		MayFail: func(int) bool { return true },
		Env: func(rank int) []string {
			// With the race detector each process would sleep for a second before it exits.
			return append(env(rank), "GORACE=atexit_sleep_ms=0", arguments+"="+args)
		},
	})
	require.NoError(t, err)
	return j
}

// ends waits until a process of j has exited with a code, -1 if a signal killed it, and returns the end of
// what it has printed.
func ends(t *testing.T, j *launch.Job, rank, code int) string {
	t.Helper()
	p := j.Process(rank)
	<-p.Done()
	printed, got := strings.Join(p.Tail(), "\n"), 0
	if e, failed := errors.AsType[*launch.ExitError](p.Err()); failed {
		got = e.Code
	}
	require.Equal(t, code, got, "rank %d: %s", rank, printed)
	return printed
}

func url(t testing.TB) string { return "muster://" + testcluster.Serve(t, new(store.Server)) }

// ranks returns the environment of n ranks that meet at addr.
func ranks(n int, addr string) func(rank int) []string {
	return func(rank int) []string { return pgroup.Config{Address: addr, Rank: rank, Size: n}.Environ() }
}

// trained runs n ranks, and returns the checksum of their weights and what they print.
func trained(t *testing.T, n int, flags string) (sum, printed string) {
	t.Helper()
	var out testcluster.Log
	j := start(t, &out, n, flags, ranks(n, url(t)))
	for rank := range n {
		ends(t, j, rank, 0)
	}
	return weights(t, out.String()), out.String()
}

var checksum = regexp.MustCompile(`weights: sha256 (\w+)`)

// weights returns the checksum of weights that processes have printed, the same for all.
func weights(t *testing.T, printed string) string {
	t.Helper()
	sums := checksum.FindAllStringSubmatch(printed, -1)
	require.NotEmpty(t, sums, printed)
	for _, sum := range sums {
		require.Equal(t, sums[0], sum, printed)
	}
	return sums[0][1]
}

// TestDeterministic checks that the final weights have the same bits for any number of processes.
func TestDeterministic(t *testing.T) {
	one, _ := trained(t, 1, "-deterministic -steps 40")
	for _, n := range []int{2, 3, 4} {
		sum, _ := trained(t, n, "-deterministic -steps 40")
		assert.Equal(t, one, sum, "%d processes", n)
	}
}

// TestDefault checks that floating-point sums give the same bits in every run with the same number
// of ranks, and others with another number.
func TestDefault(t *testing.T) {
	four, _ := trained(t, 4, "-steps 30")
	again, _ := trained(t, 4, "-steps 30")
	one, _ := trained(t, 1, "-steps 30")
	assert.Equal(t, four, again)
	assert.NotEqual(t, four, one)
}

// TestLearns checks the mean square of what the model cannot predict of examples that it has not seen. That of
// the noise alone is 1/12.
func TestLearns(t *testing.T) {
	for _, flags := range []string{"", "-deterministic"} {
		_, printed := trained(t, 3, flags) // shares of different sizes
		assert.Regexp(t, `step 400 of 400: held-out error 0\.0\d+`, printed)
	}
}

// TestKilled checks that the other ranks end when one is killed or terminated: each prints why and exits
// with 1.
func TestKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		addr   func(testing.TB) string
		victim int
		signal syscall.Signal
		want   string
	}{
		"rank 2":                   {url, 2, syscall.SIGKILL, "lost rank 2"},
		"rank 0, which hosts":      {testcluster.Port, 0, syscall.SIGKILL, "lost rank 0"},
		"rank 2, which can say so": {url, 2, syscall.SIGTERM, "terminated"},
	} {
		t.Run(name, func(t *testing.T) {
			var out testcluster.Log
			j := start(t, &out, 4, "-steps 10000000", ranks(4, tc.addr(t)))
			out.Says(t, "step 500 of")
			require.NoError(t, j.Process(tc.victim).Signal(tc.signal))
			for rank := range 4 {
				if rank != tc.victim {
					assert.Regexp(t, fmt.Sprintf(`train: rank %d: step \d+: .*%s`, rank, tc.want), ends(t, j, rank, 1))
				}
			}
		})
	}
}

// TestOtherFlags checks that an error of one rank reaches all ranks.
func TestOtherFlags(t *testing.T) {
	j := start(t, new(testcluster.Log), 2, "-steps 40$RANK", ranks(2, url(t)))
	for rank := range 2 {
		want := fmt.Sprintf("train: rank %d: ranks have different flags: rank 0 -steps 400 -deterministic=false, and rank 1 -steps 401 ", rank)
		assert.Contains(t, ends(t, j, rank, 1), want)
	}
}

// TestElastic trains with three workers, of which each is killed and replaced, as under muster run --elastic.
// The weights are those of a single process that nothing disturbs.
func TestElastic(t *testing.T) {
	const flags = "-deterministic -steps 400"
	alone, _ := trained(t, 1, flags)
	addr := url(t)
	var out testcluster.Log
	var workers []*launch.Job
	for i := range 6 {
		if victim := i - 3; victim >= 0 { // worker i replaces it
			testcluster.Eventually(t, limit, func() bool { return strings.Count(out.String(), "step ") > victim }, "the workers take steps")
			require.NoError(t, workers[victim].Process(0).Signal(syscall.SIGKILL))
			ends(t, workers[victim], 0, -1)
		}
		env := []string{"MUSTER_STORE=" + addr, "MUSTER_JOB=train", fmt.Sprint("MUSTER_WORKER=", i), "MUSTER_ELASTIC=1:3"}
		workers = append(workers, start(t, &out, 1, flags+" -elastic -pause 5ms", func(int) []string { return env }))
	}
	for _, w := range workers[3:] {
		ends(t, w, 0, 0)
	}
	assert.Equal(t, alone, weights(t, out.String()))
}

// TestEnds checks how a process ends that is not started as it should be, or that kills itself.
func TestEnds(t *testing.T) {
	alone := func(int) []string { return nil }
	for _, tc := range []struct {
		args string
		env  func(int) []string
		code int
		want string
	}{
		{"", alone, 1, "no launcher's environment.*; start it with: muster run -n 4 -- go run ./examples/train"},
		{"-elastic", alone, 1, "start the program with muster run --elastic"},
		{"-steps -1", alone, 2, ""},
		{"more", alone, 2, `unexpected argument "more"`},
		{"-steps 1000000000 -life 10ms", ranks(1, url(t)), -1, ""},
	} {
		j := start(t, new(testcluster.Log), 1, tc.args, tc.env)
		assert.Regexp(t, tc.want, ends(t, j, 0, tc.code), tc.args)
	}
}
