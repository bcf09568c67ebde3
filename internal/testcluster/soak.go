package testcluster

import (
	"os"
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
