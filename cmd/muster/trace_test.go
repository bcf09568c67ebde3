package main_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// traced runs ranks that write traces, and returns their directory.
func traced(t *testing.T, n string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "traces")
	r := run(t, "run", "-n", n, "--env", role+"="+roleRank, "--env", "MUSTER_TRACE="+dir, "--", self(t))
	require.Zero(t, r.code, "%+v", r)
	return dir
}

func TestTraceOfAJob(t *testing.T) {
	t.Parallel()
	dir := traced(t, "3")
	out := t.TempDir()
	merged := filepath.Join(out, "job.json")
	r := run(t, "trace", dir, "-o", merged)
	if r.code != 0 || !strings.HasPrefix(r.stdout, "3 ranks, 3 verbs together in ") || !regexp.MustCompile(`(?m)^rank [0-2] +\d+× +[\d.]+ [mµ]?s`).MatchString(r.stdout) {
		t.Errorf("%+v", r)
	}
	b, err := os.ReadFile(merged)
	require.NoError(t, err)
	assert.Contains(t, string(b), `"name":"allgather"`)
	left, err := filepath.Glob(filepath.Join(out, ".muster-*"))
	require.NoError(t, err)
	assert.Empty(t, left)

	var summary struct {
		Verbs int
		Ranks []struct {
			ArrivedLast int `json:"arrived_last"`
		}
	}
	r = run(t, "trace", dir, "--json")
	if err := json.Unmarshal([]byte(r.stdout), &summary); err != nil || summary.Verbs != 3 || len(summary.Ranks) != 3 {
		t.Errorf("%v: %+v", err, r)
	}
	last := 0
	for _, rank := range summary.Ranks {
		last += rank.ArrivedLast
	}
	assert.Equal(t, 3, last, "somebody came last to each of 3: %+v", summary)
}

// TestTraceOfSeveralJobs checks that of several jobs in a directory trace reads the last, and that
// it rejects named files of different jobs.
func TestTraceOfSeveralJobs(t *testing.T) {
	t.Parallel()
	dir := traced(t, "2")
	first, _ := filepath.Glob(filepath.Join(dir, "rank0-*.json"))
	r := run(t, "run", "-n", "3", "--env", role+"="+roleRank, "--env", "MUSTER_TRACE="+dir, "--", self(t))
	require.Zero(t, r.code, "%+v", r)
	r = run(t, "trace", dir)
	if r.code != 0 || !strings.HasPrefix(r.stdout, "3 ranks, 3 verbs") || !strings.Contains(r.stdout, "1 more in "+dir) {
		t.Errorf("%+v", r)
	}
	others, _ := filepath.Glob(filepath.Join(dir, "rank1-*.json"))
	failed := 0
	for _, other := range others {
		if r := run(t, "trace", first[0], other); r.code != 0 {
			failed++
			r.wants(t, 1, "", "have no group in common")
		}
	}
	assert.Equal(t, 1, failed, "%d of %v are of another job", failed, others)
}

func TestTraceOfWhatIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.json")
	require.NoError(t, os.WriteFile(text, []byte("hello\n"), 0o600))
	for want, args := range map[string][]string{
		"not a trace of muster":  {"trace", text},
		"there is no rank*.json": {"trace", dir},
		"no such file":           {"trace", filepath.Join(dir, "none.json")},
		"-o " + filepath.Join(dir, "no", "x.json") + ": no such file": {"trace", traced(t, "2"), "-o", filepath.Join(dir, "no", "x.json")},
		"one directory, or files":                                     {"trace", dir, text},
	} {
		r := run(t, args...)
		if r.code == 0 || r.stdout != "" || !strings.Contains(r.stderr, want) || strings.Contains(r.stderr, "timeline") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// TestTraceOfBadFiles checks that a truncated file of one rank, as a full disk leaves it, does not
// hide the others, and that the content of a file cannot control the terminal.
func TestTraceOfBadFiles(t *testing.T) {
	t.Parallel()
	dir := traced(t, "2")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rank2-h-1.json"), nil, 0o600))
	files, _ := filepath.Glob(filepath.Join(dir, "rank1-*.json"))
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"name":"\u001b[2Jgone","cat":"dropped","ph":"i","ts":1}` + "\n")
	require.NoError(t, errors.Join(err, f.Close()))
	r := run(t, "trace", dir)
	if r.code != 0 || !strings.HasPrefix(r.stdout, "2 ranks") || !strings.Contains(r.stdout, "rank2-h-1.json: not a trace of muster: it is empty") {
		t.Errorf("%+v", r)
	}
	if strings.Contains(r.stdout, "\x1b") || !strings.Contains(r.stdout, `\x1b[2Jgone`) {
		t.Errorf("%q", r.stdout)
	}
}

// TestTraceOfAKilledRank checks that a killed rank leaves a trace that is valid up to that time.
func TestTraceOfAKilledRank(t *testing.T) {
	t.Parallel()
	dir := traced(t, "2")
	files, _ := filepath.Glob(filepath.Join(dir, "rank1-*.json"))
	b, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(files[0], b[:len(b)-40], 0o600))
	r := run(t, "trace", dir)
	if r.code != 0 || !strings.HasPrefix(r.stdout, "2 ranks") || !strings.Contains(r.stdout, "did not close") {
		t.Errorf("%+v", r)
	}
}
