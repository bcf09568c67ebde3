package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if isChild() { // the benchmarks start this binary again as a child
		os.Exit(runChild())
	}
	os.Exit(m.Run())
}

// smoke runs a benchmark with counts so small that it measures nothing, and requires a row for each
// name.
func smoke(t *testing.T, rows []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs strings.Builder
	if status := run(ctx, args, &out, &errs); status != 0 {
		t.Fatalf("bench %v: status %d: %s", args, status, errs.String())
	}
	for _, row := range rows {
		if !strings.Contains(out.String(), row) {
			t.Errorf("bench %v: no %q in:\n%s", args, row, out.String())
		}
	}
}

func TestKV(t *testing.T) {
	args := []string{"kv", "-rounds", "1", "-slice", "10ms", "-shapes", "1x1,2x4"}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Log("NO REDIS: redis-server is not installed, muster is measured beside the bare server alone")
		args = append(args, "-redis=false")
	}
	smoke(t, []string{"muster", "bare", "2×4"}, args...)
}

func TestGroups(t *testing.T) {
	smoke(t, []string{"barrier", "all-gather", "muster", "bare"}, "groups", "-n", "2", "-rounds", "1", "-slice", "10ms")
}

func TestWrongUse(t *testing.T) {
	for _, line := range []string{
		"", "nothing", "kv -nothing", "kv -ops take", "groups -n 1",
		"gather -n 1", "gather -kib 0", "gather -rounds 0", "gather -ways (", "gather -ways nothing -mpi=false -python true",
		"all-reduce -n 1", "all-reduce -bytes 5", "all-reduce -bytes x", "all-reduce -rounds 0",
		"all-reduce -ways (", "all-reduce -ways nothing -mpi=false",
	} {
		var out, errs strings.Builder
		if run(t.Context(), strings.Fields(line), &out, &errs) == 0 {
			t.Errorf("%s: no error", line)
		}
	}
}
