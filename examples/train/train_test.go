package main_test

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	train "github.com/muster-pg/muster/examples/train"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
)

// trained returns the checksum of the weights that a run ends with.
func trained(t *testing.T, n int, flags string) string {
	t.Helper()
	out := run(t, n, flags)
	sum := checksum.FindStringSubmatch(out)
	require.NotNil(t, sum, out)
	return sum[1]
}

// TestDeterministic checks that the final weights have the same bits for any number of processes.
func TestDeterministic(t *testing.T) {
	one := trained(t, 1, "-deterministic -steps 40")
	for _, n := range []int{2, 3, 4} {
		assert.Equal(t, one, trained(t, n, "-deterministic -steps 40"), "%d processes", n)
	}
}

// TestDefault checks that floating-point sums give the same bits in every run with the same number
// of ranks, and others with another number.
func TestDefault(t *testing.T) {
	four := trained(t, 4, "-steps 30")
	assert.Equal(t, four, trained(t, 4, "-steps 30"))
	assert.NotEqual(t, four, trained(t, 1, "-steps 30"))
}

var accuracy = regexp.MustCompile(`held out: (\d+) of 359 right`)

func TestLearns(t *testing.T) {
	for _, flags := range []string{"", "-deterministic"} {
		t.Run("flags="+flags, func(t *testing.T) {
			out := run(t, 2, flags)
			m := accuracy.FindStringSubmatch(out)
			require.NotNil(t, m, out)
			right, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			assert.Greater(t, float64(right)/359, 0.95)
		})
	}
}

// TestKilled checks that the other ranks end when one is killed: each prints the failed rank and
// exits with 1.
func TestKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		victim int
		place  func(*testing.T) func(int) pgroup.Config
	}{
		"rank 2":              {2, served},
		"rank 0, which hosts": {0, hosted},
	} {
		t.Run(name, func(t *testing.T) {
			j := start(t, 4, func(int) string { return "-steps 10000000" }, tc.place(t))
			j.out.Says(t, "step 500 of")
			require.NoError(t, j.Process(tc.victim).Signal(syscall.SIGKILL))
			require.NoError(t, j.Wait())
			for _, rank := range others(4, tc.victim) {
				assertExit(t, j, rank, 1)
				assert.Regexp(t, fmt.Sprintf(`^train: rank %d: step \d+: .*lost rank %d`, rank, tc.victim), said(j, rank))
			}
		})
	}
}

func assertExit(t *testing.T, j *job, rank, code int) {
	t.Helper()
	e, ok := errors.AsType[*launch.ExitError](j.Process(rank).Err())
	require.True(t, ok, "rank %d has not failed", rank)
	assert.Equal(t, code, e.Code, "rank %d: %s", rank, said(j, rank))
}

// TestOtherFlags checks that an error of one rank reaches all ranks.
func TestOtherFlags(t *testing.T) {
	j := start(t, 2, func(rank int) string { return fmt.Sprint("-steps ", 400+rank) }, served(t))
	require.NoError(t, j.Wait())
	for rank := range 2 {
		assertExit(t, j, rank, 1)
		assert.Contains(t, said(j, rank), fmt.Sprintf("train: rank %d: ranks have different flags or data: rank 0 -steps 400 ", rank))
		assert.Contains(t, said(j, rank), "rank 1 -steps 401 ")
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-steps 0":   "-steps 0: at least 1",
		"-life 1s":   "-pause and -life are for -elastic",
		"-steps 3 b": `unexpected argument "b"`,
	} {
		t.Run(args, func(t *testing.T) {
			var out, errs strings.Builder
			assert.Equal(t, 2, train.Run(strings.Fields(args), &out, &errs))
			assert.Contains(t, errs.String(), want)
			assert.Empty(t, out.String())
		})
	}
}

func TestNoLauncher(t *testing.T) {
	var out, errs strings.Builder
	assert.Equal(t, 1, train.Run(nil, &out, &errs))
	assert.Contains(t, errs.String(), "no launcher's environment")
	assert.Contains(t, errs.String(), "muster run -n 4 -- go run ./examples/train")
}

// TestGradient checks that the gradient is the slope of the loss.
func TestGradient(t *testing.T) {
	weights, grad, loss, err := train.Gradient(345)
	require.NoError(t, err)
	const h = 1.0 / 256
	moved := 0
	for i := range weights {
		w := weights[i]
		weights[i] = w + h
		up := loss()
		weights[i] = w - h
		down := loss()
		weights[i] = w
		assert.InDelta(t, (up-down)/(2*h), grad[i], 2e-3, "weight %d", i)
		if math.Abs(float64(grad[i])) > 0.01 {
			moved++
		}
	}
	assert.Greater(t, moved, 100)
}
