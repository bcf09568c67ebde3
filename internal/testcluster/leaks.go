package testcluster

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakTimeout is the time limit for goroutines and processes to end.
const leakTimeout = 2 * time.Second

// Leaks runs the tests, and then fails if a goroutine or a child process is left
// over, orphans of children included (on Linux). It exits, as goleak.VerifyTestMain
// does:
//
//	func TestMain(m *testing.M) { testcluster.Leaks(m) }
//
// Zombies do not count.
//
// Parallel tests wait most of the time. So more of them run at once than there are processors, unless
// the flag -parallel says how many.
func Leaks(m *testing.M) {
	if err := WaitTogether(); err != nil {
		fmt.Fprintln(os.Stderr, "testcluster: set -parallel:", err)
	}
	if err := adoptOrphans(); err != nil {
		fmt.Fprintln(os.Stderr, "testcluster: adopt orphans:", err)
	}
	code := m.Run()
	if builtIn != "" {
		_ = os.RemoveAll(builtIn)
	}
	if code == 0 {
		if left := errors.Join(leftGoroutines(), leftChildren()); left != nil {
			fmt.Fprintln(os.Stderr, "testcluster: left over after the tests:", left)
			code = 1
		}
	}
	os.Exit(code)
}

// parallelPerProcessor is how many parallel tests run at once for each processor.
const parallelPerProcessor = 2

// WaitTogether sets the flag -parallel to more than the number of processors, for tests that wait most
// of the time, unless the command line does. Leaks calls it.
func WaitTogether() error {
	const name = "test.parallel"
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	if set {
		return nil
	}
	return flag.Set(name, strconv.Itoa(parallelPerProcessor*runtime.GOMAXPROCS(0)))
}

// leftGoroutines ignores the one goroutine that is meant to last: that of a child which waits for
// its parent's end.
func leftGoroutines() (left error) {
	lasting := goleak.IgnoreAnyFunction("github.com/muster-pg/muster/internal/launch.exitAtEOF")
	holdsWithin(leakTimeout, func() bool {
		left = goleak.Find(lasting)
		return left == nil
	})
	return left
}

func leftChildren() error {
	var left []string
	holdsWithin(leakTimeout, func() bool {
		left = left[:0]
		for _, pid := range children() {
			if Alive(pid) {
				left = append(left, fmt.Sprintf("process %d %q", pid, commandLine(pid)))
			}
		}
		return len(left) == 0
	})
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("%s", strings.Join(left, ", "))
}
