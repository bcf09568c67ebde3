package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// measured runs a command, and returns its report.
func measured(t *testing.T, args ...string) report {
	t.Helper()
	var out, errs strings.Builder
	if status := run(t.Context(), append(args, "-json"), &out, &errs); status != 0 {
		t.Fatalf("bench %v: status %d: %s", args, status, errs.String())
	}
	var r report
	require.NoError(t, json.Unmarshal([]byte(out.String()), &r))
	return r
}

// want fails unless the row with that name has these figures.
func want(t *testing.T, r report, name string, figures ...string) {
	t.Helper()
	for _, row := range r.Rows {
		if strings.Join(row.Name, " ") != name {
			continue
		}
		for _, f := range figures {
			if _, ok := row.Figures[f]; !ok {
				t.Errorf("%s has no %s", name, f)
			}
		}
		return
	}
	t.Errorf("no row %q in %v", name, r.Rows)
}

func TestKV(t *testing.T) {
	r := measured(t, "kv", "-rounds", "2", "-slice", "5ms", "-shapes", "1x1,3x4", "-redis=false", "-data", t.TempDir())
	want(t, r, "get 3×4 muster", "ops/s", "p50 µs", "p99 µs")
	want(t, r, "set 1×1 muster+disk", "ops/s")
}

func TestGroups(t *testing.T) {
	r := measured(t, "groups", "-n", "2", "-rounds", "1", "-slice", "10ms")
	want(t, r, "2 barrier muster", "p50 ÷ bare")
	want(t, r, "2 all-gather 1 KiB bare", "p50 µs")
}

func TestRedis(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("SKIPPED: NO REDIS: ", errNoRedis)
	}
	r := measured(t, "kv", "-rounds", "1", "-slice", "5ms", "-shapes", "3x4")
	want(t, r, "get 3×4 muster", "rate ÷ redis", "p99 ÷ redis")
	want(t, r, "set 3×4 redis", "ops/s")
}

func TestNoRedis(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, errs strings.Builder
	if status := run(t.Context(), []string{"kv"}, &out, &errs); status != 1 || !strings.Contains(errs.String(), errNoRedis.Error()) {
		t.Errorf("status %d: %s", status, errs.String())
	}
}

func TestMPI(t *testing.T) {
	if os.Getenv("MUSTER_SOAK") == "" {
		t.Skip("SKIPPED: only with MUSTER_SOAK=1 (make soak): it starts mpirun 20 times; TestAllReduceMPI does so less often")
	}
	p, err := buildMPI(t.Context())
	if errors.Is(err, errNoMPI) {
		t.Skip("SKIPPED: NO OPEN MPI: ", err)
	}
	require.NoError(t, err)
	p.remove()
	r := measured(t, "groups", "-n", "2", "-rounds", "1", "-slice", "5ms", "-mpi")
	want(t, r, "2 barrier mpi", "p50 µs")
	want(t, r, "2 barrier muster", "÷ MPI TCP", "p50 ÷ bare")
}

func TestText(t *testing.T) {
	r := newReport("kv", "ops/s", "x")
	r.add(map[string]float64{"ops/s": 1234.4, "x": 0.126}, "get", "muster")
	var out strings.Builder
	if err := r.write(&out, false); err != nil || !strings.Contains(out.String(), "get  muster  1234   0.13") {
		t.Errorf("%v: %s", err, out.String())
	}
}
