package testcluster

import (
	"iter"
	"os"
	"sync"
	"testing"
)

// SoakVariable is the environment variable that makes tests run in their long form, with "make soak".
const SoakVariable = "MUSTER_SOAK"

// Soak reports whether tests run in their long form.
func Soak() bool { return os.Getenv(SoakVariable) != "" }

// Form returns the size of a test: byDefault, or soak if tests run in their long form.
func Form[T any](byDefault, soak T) T {
	if Soak() {
		return soak
	}
	return byDefault
}

// SoakOnly skips a test that does not run by default, unless tests run in their long form. why says
// what it takes, and which other test covers the same rule by default.
func SoakOnly(t testing.TB, why string) {
	t.Helper()
	if !Soak() {
		t.Skipf("SKIPPED: only with %s=1 (make soak): %s", SoakVariable, why)
	}
}

// AtOnce runs f as a test for each case, all of them at once. It is for cases that wait most of their time:
// of those that call t.Parallel, only as many run at a time as there are processors.
func AtOnce[C any](t *testing.T, cases iter.Seq2[string, C], f func(t *testing.T, c C)) {
	t.Helper()
	var all sync.WaitGroup
	for name, c := range cases {
		all.Go(func() { t.Run(name, func(t *testing.T) { f(t, c) }) })
	}
	all.Wait()
}
