package main

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/shm"
)

// sharing skips a test on systems without shared memory.
func sharing(t *testing.T) {
	t.Helper()
	a, err := shm.NewArena(nil)
	if errors.Is(err, shm.ErrUnsupported) {
		t.Skip("SKIPPED: NO SHARED MEMORY: ", err)
	}
	require.NoError(t, err)
	require.NoError(t, a.Close())
}

// little returns a run of gather that measures nothing.
func little(t *testing.T, more ...string) report {
	t.Helper()
	return measured(t, append([]string{"gather", "-n", "3", "-rounds", "2", "-slice", "1us", "-kib", "4,1024", "-dir", t.TempDir()}, more...)...)
}

func TestGather(t *testing.T) {
	sharing(t)
	r := little(t, "-mpi=false", "-python", "")
	for _, w := range gatherWays {
		switch {
		case w.sizes == nil || w.sizes(mib):
			want(t, r, "1 MiB "+w.name, "p50 µs", "p90 µs", "slowest rank")
		default:
			want(t, r, "4 KiB "+w.name, "p50 µs", "p90 µs", "slowest rank")
		}
	}
	want(t, r, "1 MiB copied in", "÷ bare")
}

// TestGatherWithoutPeers checks that a run without the other libraries, which are not installed, succeeds and
// reports that.
func TestGatherWithoutPeers(t *testing.T) {
	sharing(t)
	t.Setenv("PATH", t.TempDir())
	notes := strings.Join(little(t, "-ways", "bare barrier").Notes, "\n")
	for _, part := range []string{"NO OPEN MPI", errNoMPI.Error(), "NO TORCH", "pip install torch"} {
		assert.Contains(t, notes, part)
	}
}

func TestGatherMPI(t *testing.T) {
	p, err := buildMPI(t.Context())
	if errors.Is(err, errNoMPI) {
		t.Skip("SKIPPED: NO OPEN MPI: ", err)
	}
	require.NoError(t, err)
	p.remove()
	r := little(t, "-rounds", "1", "-kib", "4", "-python", "", "-ways", "Open MPI|bare: copy in")
	want(t, r, "4 KiB Open MPI, shared memory", "p50 µs", "÷ bare")
	want(t, r, "4 KiB Open MPI, TCP", "p50 µs", "÷ bare")
}

// torchPython returns a Python with torch: MUSTER_TORCH, if that is set.
func torchPython(t *testing.T) string {
	t.Helper()
	python := cmp.Or(os.Getenv("MUSTER_TORCH"), "python3")
	rep := newReport("torch")
	if !hasTorch(t.Context(), python, rep) {
		t.Skip("SKIPPED: ", strings.Join(rep.Notes, "\n"))
	}
	return python
}

func TestTorch(t *testing.T) {
	if os.Getenv("MUSTER_SOAK") == "" {
		t.Skip("SKIPPED: only with MUSTER_SOAK=1 (make soak): its processes load torch, for a minute")
	}
	python := torchPython(t)
	sharing(t)
	r := little(t, "-python", python, "-mpi=false", "-ways", "ModelOpt's method|gloo")
	want(t, r, "4 KiB ModelOpt's method", "p50 µs", "CPU µs")
	want(t, r, "1 MiB gloo", "p50 µs", "CPU µs")
}

// TestOver checks that only figures of the same rounds are compared, and only those of the calmer
// half of the rounds.
func TestOver(t *testing.T) {
	rounds := func(p50, others []float64) (fs []figures) {
		for i, v := range p50 {
			fs = append(fs, figures{p50Column: v, othersColumn: others[i]})
		}
		return fs
	}
	slow := &event{key: "slow", rounds: rounds([]float64{30, 900, 20, 5}, []float64{0, 50, 0, 40})}
	base := &event{key: "base", rounds: rounds([]float64{10, 1, 10, 1}, make([]float64, 4))}
	slow.bases = map[string]ratio{"÷ base": {p50Column, "base"}, "÷ none": {p50Column, "none"}}
	rep := newReport("turns")
	(&turns{events: []*event{slow, base}}).addRows(rep)
	// 2.5 is the median of 3 and 2
	assert.Equal(t, figures{"÷ base": 2.5, p50Column: 25, othersColumn: 0}, rep.Rows[0].Figures)
}
