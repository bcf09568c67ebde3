package main_test

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkLaunch compares "muster run" of 200 ranks that do nothing with starting the processes
// alone. The runs alternate, so that other load is the same for both; the figures are medians.
func BenchmarkLaunch(b *testing.B) {
	const n = 200
	program, err := exec.LookPath("true")
	require.NoError(b, err)
	self, err := os.Executable()
	require.NoError(b, err)
	alone := func() {
		cmds := make([]*exec.Cmd, n)
		for i := range cmds {
			cmds[i] = exec.Command(program)
			require.NoError(b, cmds[i].Start())
		}
		for _, cmd := range cmds {
			require.NoError(b, cmd.Wait())
		}
	}
	launched := func() {
		cmd := exec.Command(self, "run", "-n", strconv.Itoa(n), "--", program)
		cmd.Env = append(os.Environ(), role+"="+roleMuster, "XDG_RUNTIME_DIR="+os.DevNull)
		cmd.Stdout = os.Stderr
		require.NoError(b, cmd.Run())
	}
	var times [2][]time.Duration
	for b.Loop() {
		for i, f := range []func(){alone, launched} {
			began := time.Now()
			f()
			times[i] = append(times[i], time.Since(began))
		}
	}
	var median [2]time.Duration
	for i := range times {
		slices.Sort(times[i])
		median[i] = times[i][len(times[i])/2]
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(median[0].Microseconds())/1000, "alone-ms")
	b.ReportMetric(float64(median[1].Microseconds())/1000, "run-ms")
	b.ReportMetric(float64(median[1])/float64(median[0]), "ratio")
}
