package main_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// numbersAt returns the metrics that a page serves.
func numbersAt(t *testing.T, page string) string {
	t.Helper()
	code, text := answer(t, page+"metrics")
	require.Equal(t, 200, code, "%smetrics is %d %q", page, code, text)
	return text
}

// numbersHave waits until the metrics contain the line.
func numbersHave(t *testing.T, page, line string) (text string) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; {
		if text = numbersAt(t, page); strings.Contains(text, "\n"+line) {
			return text
		}
		require.False(t, time.Now().After(deadline), "there is no line %q in %s", line, text)
		<-time.After(10 * time.Millisecond)
	}
}

func has(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		assert.Contains(t, text, "\n"+line, "there is no line %q", line)
	}
}

func TestServeMetrics(t *testing.T) {
	t.Parallel()
	p := start(t, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", t.TempDir())
	_, page, _ := strings.Cut(p.complaint(t, "page="), "page=")
	url := p.line(t, "muster://")
	stuck(t, dial(t, url), "train")
	has(t, numbersAt(t, page), "muster_store_up 1", "muster_store_durable 1", "muster_store_log_bytes ", "muster_store_log_sync_seconds_count ",
		`muster_groups{state="waiting"} 1`, `muster_ranks{state="waits"} 1`, `muster_store_requests_total{op="collect"} 1`, "go_goroutines ", "process_open_fds ")
	checkGet(t, page+"debug/pprof/", 404, "") // only with --http-pprof
	checkGet(t, page+"status", 200, `"train"`)

	// The page of a store in another process, which keeps nothing: no client waits for its return.
	p, url = serve(t)
	stuck(t, dial(t, url), "train")
	other := start(t, "page", "--store", url, "--http", "127.0.0.1:0", "--http-pprof")
	page = other.line(t, "http://127.0.0.1:")
	has(t, numbersAt(t, page), "muster_store_up 1", "muster_store_durable 0", `muster_groups{state="waiting"} 1`)
	checkGet(t, page+"debug/pprof/", 200, "goroutine")
	checkGet(t, page+"debug/pprof/goroutine?debug=1", 200, "goroutine profile")
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
	// for half a second the previous metrics are cached
	text := numbersHave(t, page, "muster_store_up 0")
	assert.NotContains(t, text, "muster_store_keys")
	other.signal(t, syscall.SIGINT)
	if r := other.wait(t); r.code != 0 {
		t.Errorf("%+v", r)
	}
}
