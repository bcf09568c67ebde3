package testcluster

import (
	"os"
	"runtime"
	"testing"
)

// Unwritable returns a directory in which no user can make a file, not even root.
func Unwritable(t *testing.T) string {
	t.Helper()
	if os.Geteuid() == 0 {
		if runtime.GOOS != "linux" {
			t.Skip("SKIPPED: root may write anywhere here: run it as another user")
		}
		return "/sys"
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	return dir
}
