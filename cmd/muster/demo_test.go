package main_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	r := run(t, "demo")
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{
		"ranks 0–3 have joined", "ranks 0–2 have joined a second group", "from rank 1: layers.0.self_attn fp8 [4096×4096]", "1000 barriers",
		`on rank 0 of 4: lost rank 2`, `on rank 1 of 4: lost rank 2`, `on rank 3 of 4: lost rank 2`, "in trainers", "All of it as expected",
	} {
		assert.Contains(t, r.stdout, want)
	}
	assert.LessOrEqual(t, strings.Count(r.stdout, "\n"), 35)
	assert.False(t, strings.ContainsAny(r.stdout, "\x1b\r"), "a pipe got terminal codes")
	if t.Failed() {
		t.Log(r.stdout)
	}
	for _, m := range regexp.MustCompile(`pid (\d+)`).FindAllStringSubmatch(r.stdout, -1) {
		pid, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		assert.True(t, gone(pid), "process %d is left", pid)
	}
}

func TestRanksOfDemoAndBenchWithoutLauncher(t *testing.T) {
	t.Parallel()
	run(t, "demo-rank").wants(t, 1, "", "no launcher's environment")
	run(t, "bench-rank", "{}").wants(t, 1, "", "no launcher's environment")
	run(t, "bench-rank", "x").wants(t, 2, "", "SPEC")
}
