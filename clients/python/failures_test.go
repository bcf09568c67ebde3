package python_test

import (
	"errors"
	"fmt"
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

// sameWords requires that the errors of a Go rank and a Python rank differ only in the rank that
// reports them.
func sameWords(t *testing.T, inGo error, goRank int, inPython error, pyRank int) {
	t.Helper()
	textWithoutRank := func(err error, rank int) string {
		return strings.Replace(err.Error(), fmt.Sprintf("on rank %d of", rank), "on rank R of", 1)
	}
	require.Equal(t, textWithoutRank(inGo, goRank), textWithoutRank(inPython, pyRank))
}

// outcome returns the result of a verb on a Python rank as the fields of an exception, which must
// be of a class.
func outcome(t *testing.T, err error, kind string) *failure {
	t.Helper()
	f, ok := errors.AsType[*failure](err)
	require.True(t, ok, "%v", err)
	require.Contains(t, f.Kinds, kind, f.Text)
	return f
}

// TestAStallNamesTheRanksInBoth checks that a rank in Go and one in Python, which hang, are named to all
// ranks in the same words.
func TestAStallNamesTheRanksInBoth(t *testing.T) {
	addr := testcluster.Serve(t, new(store.Server))
	m := create(t, 4, addr, kw{"stall": 2}, pgroup.Config{Stall: 2 * time.Second})
	m.gs[2].Phase("compiling", 0)
	m.ps[3].must("new", "phase", "loading shards", 48, 12)
	s := testcluster.Dial(t, addr, nil)
	testcluster.Eventually(t, 30*time.Second, func() bool { // then the stall of both counts from the first vote
		now, err := s.Status(bounded(t), "")
		require.NoError(t, err)
		ranks := now.Groups[0].Ranks
		return ranks[2].Progress != nil && ranks[3].Progress != nil && ranks[3].Progress.Done == 12
	}, "both have reported")
	errs := m.outcomes(func(r int) error {
		if r == 2 {
			return nil
		}
		return m.gs[r].Barrier(bounded(t))
	}, func(r int, p *rank) error {
		if r == 3 {
			return nil
		}
		_, err := p.do("group", "barrier")
		return err
	})
	require.ErrorIs(t, errs[0], pgroup.ErrStalled)
	f := outcome(t, errs[1], "RankError")
	require.True(t, f.is("Stalled") && f.is("Timeout") && f.is("TimeoutError"))
	require.Equal(t, []int{2, 3}, f.Missing)
	require.Regexp(t, `stalled after [2-9]\.\d\ds: rank 2: no progress for [2-9].*s: compiling; rank 3: no progress for [2-9].*s: loading shards, 12 of 48 \(25%\)$`, f.Text)
	sameWords(t, errs[0], 0, errs[1], 1)
}

// TestPythonThatComputesWithItsLock checks that a process that cannot answer, because a thread holds
// the interpreter's lock, is not lost while it uses CPU time, and that it is once it is stopped. In the soak it
// holds the lock for two minutes and more.
func TestPythonThatComputesWithItsLock(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the processor time of other processes is read from /proc")
	}
	for name, serve := range map[string]func(addr string) string{
		"store": func(addr string) string { return addr },
		"relay": func(addr string) string {
			at := testcluster.Port(t)
			testcluster.StartAt(t, "relay", addr, at)
			return at
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := serve(testcluster.Serve(t, new(store.Server)))
			m := create(t, 2, addr, kw{"liveness_timeout": 2, "timeout": 900}, pgroup.Config{Timeout: 15 * time.Minute})
			errs := m.outcomes(func(int) error { return m.gs[0].Barrier(t.Context()) }, func(_ int, p *rank) error {
				if _, err := p.do("new", "match", testcluster.Form(5, 240)); err != nil {
					return err
				}
				_, err := p.do("group", "barrier")
				return err
			})
			require.NoError(t, errors.Join(errs...))
			p := m.ps[1].Cmd.Process
			require.NoError(t, p.Signal(syscall.SIGSTOP))
			require.ErrorIs(t, m.gs[0].Barrier(bounded(t)), pgroup.ErrLost)
			require.NoError(t, p.Kill())
		})
	}
}

// TestPythonThatHoldsItsLockForTooLong checks that a rank fails if it holds the lock for longer
// than announced, as the README says.
func TestPythonThatHoldsItsLockForTooLong(t *testing.T) {
	m := create(t, 2, testcluster.Serve(t, new(store.Server)), kw{"liveness_timeout": 0.6}, pgroup.Config{})
	errs := m.outcomes(func(int) error { return m.gs[0].Barrier(bounded(t)) }, func(_ int, p *rank) error {
		if _, err := p.do("new", "hold", 2500); err != nil {
			return err
		}
		_, err := p.do("group", "barrier")
		return err
	})
	require.ErrorIs(t, errs[0], pgroup.ErrLost)
	f := outcome(t, errs[1], "Lost")
	require.Equal(t, []int{1}, f.Lost)
	require.True(t, f.is("SessionLost"))
	require.Contains(t, f.Text, "lost rank 1: its session has expired: it was disconnected, or sent nothing, for too long")
}

// TestReconnectAfterACut checks that each request that changes a value takes effect exactly once while
// connections with TLS and a secret are cut.
func TestReconnectAfterACut(t *testing.T) {
	k := makeKeys(t)
	srv := &store.Server{
		Limits: store.ServerLimits{ReconnectTimeout: time.Minute}, // however slow the machine
		TLS:    k.server(t, false), Access: []store.Access{{Secret: k.secret, Write: true}},
	}
	proxy := testcluster.NewProxy(t, testcluster.Serve(t, srv))
	p := start(t)
	p.must("new", "connect", proxy.Addr(), kw{"tls": kw{"ca": k.path("ca.pem")}, "secret_file": k.secretFile})
	const n, each = 300, 15
	done, cut := make(chan error, 1), make(chan struct{}, n)
	go func() {
		defer close(done)
		for i := range n {
			if i%each == 0 {
				cut <- struct{}{}
			}
			if _, err := p.do("store", "add", "n"); err != nil {
				done <- err
				return
			}
		}
	}()
	for {
		select {
		case err := <-done:
			require.NoError(t, err)
			require.EqualValues(t, n, p.must("store", "add", "n", 0))
			return
		case <-cut:
			proxy.Cut(testcluster.FIN)
		}
	}
}
