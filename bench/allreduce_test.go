package main

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// littleAllReduce returns a run of collective that measures nothing.
func littleAllReduce(t *testing.T, more ...string) report {
	t.Helper()
	return measured(t, append([]string{"all-reduce", "-n", "3", "-rounds", "2", "-slice", "1us", "-bytes", "4,65540"}, more...)...)
}

func TestAllReduce(t *testing.T) {
	sharing(t)
	r := littleAllReduce(t, "-mpi=false", "-python", "")
	for _, who := range []string{byMemory, byTCP} {
		for _, row := range []string{"4 B all-reduce", "4 B all-reduce, chained", "64 KiB all-reduce", "0 B barrier, chained"} {
			want(t, r, row+" "+who, "p50 µs", "p90 µs", "mean µs", "CPU µs", "alloc B")
		}
	}
}

func TestAllReduceMPI(t *testing.T) {
	p, err := buildMPI(t.Context())
	if errors.Is(err, errNoMPI) {
		t.Skip("SKIPPED: NO OPEN MPI: ", err)
	}
	require.NoError(t, err)
	p.remove()
	r := littleAllReduce(t, "-n", "2", "-python", "", "-rounds", "1", "-ways", "all-reduce@(Open MPI, TCP|muster, TCP)|chained@Open MPI, shared")
	want(t, r, "4 B all-reduce "+byMPITCP, "p50 µs")
	want(t, r, "4 B all-reduce "+byTCP, "÷ MPI TCP")
	want(t, r, "0 B barrier, chained "+byMPI, "p50 µs")
}

func TestAllReduceTorch(t *testing.T) {
	if os.Getenv("MUSTER_SOAK") == "" {
		t.Skip("SKIPPED: only with MUSTER_SOAK=1 (make soak): its processes load torch, for a minute")
	}
	r := littleAllReduce(t, "-python", torchPython(t), "-mpi=false", "-ways", "gloo")
	for _, row := range []string{"4 B all-reduce", "4 B all-reduce, chained", "0 B barrier, chained"} {
		want(t, r, row+" "+byGloo, "p50 µs", "CPU µs")
	}
}

// TestMerged checks that the merged figure is the slowest rank of each call, or the first rank's
// calls if the calls follow each other.
func TestMerged(t *testing.T) {
	laps := []lap{{Took: []float64{1, 5}, CPU: 3, Alloc: 10}, {Took: []float64{4, 2}, CPU: 4, Alloc: 20}}
	if l := merged(laps, false); !slices.Equal(l.Took, []float64{4, 5}) || l.CPU != 7 || l.Alloc != 20 {
		t.Errorf("%+v", l)
	}
	if l := merged(laps, true); !slices.Equal(l.Took, []float64{1, 5}) || l.CPU != 7 {
		t.Errorf("chained: %+v", l)
	}
	if l := laps[0]; !slices.Equal(l.Took, []float64{1, 5}) {
		t.Errorf("what was merged has changed: %+v", l)
	}
}
