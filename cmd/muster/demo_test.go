package main_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	r := run(t, "demo")
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{
		"ranks 0–3 have joined", "ranks 0–2 have joined a second group", "layers.0.self_attn     32  4096 × 4096", "1000 of them",
		`on rank 0 of 4: lost rank 2`, `on rank 1 of 4: lost rank 2`, `on rank 3 of 4: lost rank 2`, "in trainers", "All of it as expected",
	} {
		assert.Contains(t, r.stdout, want)
	}
	assert.LessOrEqual(t, strings.Count(r.stdout, "\n"), 35)
	assert.False(t, strings.ContainsAny(r.stdout, "\x1b\r"), "a pipe got terminal codes")
	if t.Failed() {
		t.Log(r.stdout)
	}
	pids := regexp.MustCompile(`pids (\d+) (\d+) (\d+) (\d+)`).FindStringSubmatch(r.stdout)
	if pids == nil {
		t.Fatal("no pids in", r.stdout)
	}
	for _, s := range pids[1:] {
		if pid, _ := strconv.Atoi(s); !gone(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}

func TestRanksOfDemoAndBenchWithoutLauncher(t *testing.T) {
	t.Parallel()
	run(t, "demo-rank").wants(t, 1, "", "no launcher's environment")
	run(t, "bench-rank", "{}").wants(t, 1, "", "no launcher's environment")
	run(t, "bench-rank", "x").wants(t, 2, "", "SPEC")
}
