package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-pg/muster/internal/testcluster"
)

// fakeMuster makes a command that prints what "muster bench --json" does. Its first slow runs have a
// median of 130 µs, and later ones one of 100 µs; above them is noise that both medians share.
func fakeMuster(t *testing.T, name string, slowRuns int) string {
	t.Helper()
	testcluster.Shell(t)
	path := filepath.Join(t.TempDir(), name)
	script := fmt.Sprintf(`#!/bin/sh
count=$(cat %[1]s.count 2>/dev/null || echo 0)
echo $((count + 1)) >%[1]s.count
us=$((100 + count %% 3))
[ "$count" -ge %[2]d ] || us=$((us + 30))
printf '{"results":[{"case":"barrier","ranks":4,"median_us":%%d},{"case":"set","ranks":4,"size_bytes":1024,"median_us":50},{"case":"only %[3]s","ranks":4,"median_us":5}]}' $us
`, path, slowRuns, name)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRatios(t *testing.T) {
	const pairs = 3
	for name, c := range map[string]struct {
		slowRuns int
		sets     int
		status   int
		errs     string
	}{
		"equal":                         {0, 1, 0, ""},
		"slower":                        {2 * pairs, 2, 1, "by more than 10 %, in both sets of runs: barrier, 4 ranks"},
		"slower in the first set alone": {pairs, 2, 0, ""},
		"slower in one pair":            {1, 1, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs strings.Builder
			status := run(t.Context(), []string{"ratios", "-old", fakeMuster(t, "old", 0), "-new", fakeMuster(t, "new", c.slowRuns), "-pairs", "3"}, &out, &errs)
			if status != c.status || !strings.Contains(errs.String(), c.errs) {
				t.Fatalf("status %d: %s\n%s", status, errs.String(), out.String())
			}
			if got := strings.Count(out.String(), "set of 1024 B, 4 ranks"); got != c.sets {
				t.Errorf("%d sets of runs, not %d:\n%s", got, c.sets, out.String())
			}
			if strings.Contains(out.String(), "only") {
				t.Errorf("a case that one command has alone is compared:\n%s", out.String())
			}
		})
	}
}

func TestRatiosRefused(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"ratios"},
		{"ratios", "-old", "a"},
		{"ratios", "-old", broken, "-new", broken},
		{"ratios", "-old", broken, "-new", broken, "-pairs", "0"},
		{"ratios", "-old", "/bin/echo", "-new", "/bin/echo"},
	} {
		var out, errs strings.Builder
		if status := run(t.Context(), args, &out, &errs); status == 0 || errs.Len() == 0 {
			t.Errorf("%v: status %d: %s", args, status, errs.String())
		}
	}
}
