package python_test

import (
	"errors"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// TestStacksOfPython checks that a Python rank shows its threads, whatever its callers do, and that
// one that is stopped is reported as such.
func TestStacksOfPython(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{Stacks: true})
	m := create(t, 2, addr, nil, pgroup.Config{})
	s := testcluster.Dial(t, addr, nil)
	generation := m.gs[0].Generation()
	text, err := s.Stacks(bounded(t), generation, 1)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(text, "thread MainThread:\n"), text)
	require.Contains(t, text, "in main\n")
	require.Contains(t, text, "thread muster reader:\n")

	errs := m.outcomes(func(int) error {
		var text string
		testcluster.Eventually(t, 30*time.Second, func() bool {
			text, err = s.Stacks(bounded(t), generation, 1)
			return err != nil || strings.Contains(text, "in barrier\n")
		}, "the rank is in the barrier")
		return errors.Join(err, m.gs[0].Barrier(bounded(t)))
	}, func(_ int, p *rank) error {
		_, err := p.do("group", "barrier")
		return err
	})
	require.NoError(t, errors.Join(errs...))

	require.NoError(t, m.ps[1].Cmd.Process.Signal(syscall.SIGSTOP))
	_, err = s.Stacks(bounded(t), generation, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, `no answer of rank 1 of group "world"`)
	require.NoError(t, m.ps[1].Cmd.Process.Signal(syscall.SIGCONT))
	_, err = s.Stacks(bounded(t), generation, 1)
	require.NoError(t, err)
}

// TestStacksWithTheGILHeld checks that what keeps a rank from an answer is named, if its process runs.
func TestStacksWithTheGILHeld(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the processor time of other processes is read from /proc")
	}
	addr := testcluster.Serve(t, &store.Server{Stacks: true})
	m := create(t, 2, addr, nil, pgroup.Config{})
	s := testcluster.Dial(t, addr, nil)
	matched := make(chan error, 1)
	go func() {
		_, err := m.ps[1].do("new", "match", 8)
		matched <- err
	}()
	var err error
	testcluster.Eventually(t, time.Minute, func() bool {
		_, err = s.Stacks(bounded(t), m.gs[0].Generation(), 1)
		return err != nil
	}, "the interpreter's lock is held for longer than a request waits")
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "its process uses the processor: a thread of Python that holds the interpreter lock (GIL)")
	require.ErrorContains(t, err, "py-spy dump --pid PID")
	require.NoError(t, <-matched)
}
