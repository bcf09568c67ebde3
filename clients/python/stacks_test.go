package python_test

import (
	"errors"
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
	s, err := store.Dial(bounded(t), addr, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
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

	require.NoError(t, m.ps[1].cmd.Process.Signal(syscall.SIGSTOP))
	_, err = s.Stacks(bounded(t), generation, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, `no answer of rank 1 of group "world"`)
	require.NoError(t, m.ps[1].cmd.Process.Signal(syscall.SIGCONT))
	_, err = s.Stacks(bounded(t), generation, 1)
	require.NoError(t, err)
}
