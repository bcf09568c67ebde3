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
	if isChild() { // this binary is what the benchmarks start again
		os.Exit(runChild())
	}
	os.Exit(m.Run())
}

// smoke runs a benchmark with counts so small that it measures nothing, and wants a row for each name.
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

// TestTTL wants of its storm that entries go when they are due, and all of them: otherwise it waits in vain.
func TestTTL(t *testing.T) {
	args := []string{"ttl", "-n", "300", "-rounds", "2", "-slice", "5ms", "-shapes", "2x4", "-storms", "1", "-window", "50ms", "-lead", "2s"}
	rows := []string{"ttl: memory", "ttl: rate", "ttl: storm", "muster+TTL", "set TTL  2×4  muster+TTL, all", "longest gets of muster"}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Log("NO REDIS: redis-server is not installed, muster is measured alone")
		args = append(args, "-redis=false")
	} else {
		rows = append(rows, "redis+TTL", "longest gets of redis")
	}
	smoke(t, rows, args...)
}

func TestEcho(t *testing.T) {
	smoke(t, []string{"bare echo", "get, client"}, "echo", "-rounds", "2", "-ops", "20")
}

func TestGroups(t *testing.T) {
	smoke(t, []string{"barrier", "allgather", "muster", "bare"}, "groups", "-n", "2", "-rounds", "1", "-slice", "10ms")
}

func TestRanks(t *testing.T) {
	smoke(t, []string{"20"}, "ranks", "-n", "20", "-each", "10", "-barriers", "2")
}

func TestRelay(t *testing.T) {
	smoke(t, []string{"direct, 1 real host", "relays, 1 real host"}, "relay", "-n", "12", "-hosts", "3", "-rounds", "1", "-laps", "3")
}

func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{nil, {"nothing"}, {"kv", "-nothing"}, {"kv", "-ops", "take"}, {"ttl", "-part", "nothing"}, {"ttl", "-shapes", "1"}, {"groups", "-n", "1"}, {"gather", "-n", "1"}, {"gather", "-kib", "0"}, {"gather", "-rounds", "0"}, {"gather", "-ways", "("}, {"gather", "-ways", "nothing", "-mpi=false", "-python", ""}, {"files", "-kib", "0"}, {"relay", "-hosts", "0"}} {
		var out, errs strings.Builder
		if run(t.Context(), args, &out, &errs) == 0 {
			t.Errorf("%v is taken", args)
		}
	}
}
