package python_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// step uses channel name once, in Go, as tests/rank.py does in steps.
func step(ctx context.Context, g *pgroup.Group, name string, i int) error {
	ch := g.Channel(name)
	if err := pgroup.Send(ctx, ch, (g.Rank()+1)%g.Size(), i); err != nil {
		return err
	}
	all, err := pgroup.AllGather(ctx, ch, i)
	if err != nil {
		return err
	}
	got, err := pgroup.Recv[int](ctx, ch, (g.Rank()+g.Size()-1)%g.Size())
	if err != nil {
		return err
	}
	for _, n := range append(all, got) {
		if n != i {
			return fmt.Errorf("channel %s: %v and %d in step %d", name, all, got, i)
		}
	}
	return ch.Close()
}

// TestChannelForEachStepInBoth uses more names than a group may have channels, and one name
// repeatedly, in Go and in Python: ranks get the values of the same use, however far one of them is
// ahead. A relay, which merges votes, makes no difference.
func TestChannelForEachStepInBoth(t *testing.T) {
	const direct, behind = "to the store", "by a relay"
	for name, steps := range map[string]int{direct: 4200, behind: 200} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				steps = 50
			}
			addr := testcluster.Serve(t, new(store.Server))
			if name == behind {
				_, addr = relay(t, addr, "127.0.0.1:0")
			}
			m := create(t, 3, addr, nil, pgroup.Config{})
			m.each(func(r int) error {
				for i := range steps {
					for _, name := range []string{fmt.Sprint("step ", i), "again"} {
						if err := step(t.Context(), m.gs[r], name, i); err != nil {
							return err
						}
					}
				}
				return nil
			}, func(_ int, p *rank) error {
				_, err := p.do("new", "steps", 0, steps)
				return err
			})
		})
	}
}

// channels opens channels on all ranks, and calls a barrier on each.
func (m *mixed) channels(names ...string) {
	m.t.Helper()
	for _, name := range names {
		for _, p := range m.ps {
			if p != nil {
				p.must("new", "channel", name)
			}
		}
		m.barrier(name)
	}
}

// barrier calls a barrier of all ranks on channel name; "" is the group.
func (m *mixed) barrier(name string) {
	m.t.Helper()
	m.each(func(r int) error {
		return m.gs[r].Channel(name).Barrier(bounded(m.t))
	}, func(_ int, p *rank) error {
		on := name
		if on == "" {
			on = "group"
		}
		_, err := p.do(on, "barrier")
		return err
	})
}

// voted returns when a rank's vote on channel name is at the store, and, if receives is set, also
// the rank's receive there.
func voted(t *testing.T, addr, name string, rank int, receives bool) {
	t.Helper()
	s, err := store.Dial(bounded(t), addr, nil)
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	require.Eventually(t, func() bool {
		status, err := s.Status(bounded(t), "")
		require.NoError(t, err)
		for _, g := range status.Groups {
			for _, record := range g.Records {
				here := record.Channel == name && len(record.Arrived.Spans) == 1 && record.Arrived.Spans[0].First == rank
				if here && (!receives || len(g.Ranks[rank].Waits) > 0) {
					return true
				}
			}
		}
		return false
	}, 20*time.Second, time.Millisecond)
}

// TestPythonClosesAChannelWithCallsUnderWay checks that the calls on a closed channel end at once,
// and the barrier for all ranks, with an error that names the rank that closed.
func TestPythonClosesAChannelWithCallsUnderWay(t *testing.T) {
	addr := testcluster.Serve(t, new(store.Server))
	m := create(t, 3, addr, nil, pgroup.Config{})
	m.channels("x", "y")
	p := m.ps[1]
	p.must("new", "later", "on x", "x", "barrier")
	p.must("new", "later", "receives", "x", "recv", 0)
	voted(t, addr, "x", 1, true)
	p.must("new", "later", "on y", "y", "barrier")
	voted(t, addr, "y", 1, false)
	p.must("x", "close")
	for _, name := range []string{"on x", "receives"} {
		f := p.fails("Closed", "new", "outcome", name)
		require.Contains(t, f.Text, `channel "x" on rank 1 of 3: closed: this rank has closed it`)
	}
	for _, r := range []int{0, 2} {
		err := m.gs[r].Channel("x").Barrier(bounded(t))
		re, ok := errors.AsType[*pgroup.RankError](err)
		require.True(t, ok, "%v", err)
		require.ErrorIs(t, err, pgroup.ErrCancelled)
		require.Equal(t, 1, re.By)
		require.ErrorContains(t, err, "this rank has closed the channel")
	}
	m.each(func(r int) error { return m.gs[r].Channel("y").Barrier(bounded(t)) }, func(_ int, p *rank) error {
		_, err := p.do("new", "outcome", "on y")
		return err
	})
	m.barrier("")
}

// TestARankThatHasClosedAChannelIsNamedInBoth checks that a verb or a message which needs a rank
// that has closed the channel fails at once, and that the group remains usable.
func TestARankThatHasClosedAChannelIsNamedInBoth(t *testing.T) {
	m := create(t, 2, testcluster.Serve(t, new(store.Server)), nil, pgroup.Config{})
	m.channels("x", "y")
	m.ps[1].must("x", "close")
	require.NoError(t, m.gs[0].Channel("y").Close())
	inGo := m.gs[0].Channel("x").Barrier(bounded(t))
	re, ok := errors.AsType[*pgroup.RankError](inGo)
	require.True(t, ok, "%v", inGo)
	require.ErrorIs(t, inGo, pgroup.ErrSkipped)
	require.Equal(t, 1, re.By)
	require.ErrorContains(t, inGo, "it has closed the channel")
	f := m.ps[1].fails("Skipped", "y", "barrier")
	require.Equal(t, 0, f.By)
	require.Contains(t, f.Text, "it has closed the channel")
	m.barrier("")
}

// TestPythonUsesANameAgainWhileGoLags checks that Python may be in the second use of a name while
// Go is in the first, with messages and records of each.
func TestPythonUsesANameAgainWhileGoLags(t *testing.T) {
	addr := testcluster.Serve(t, new(store.Server))
	m := create(t, 2, addr, nil, pgroup.Config{})
	x, p := m.gs[0].Channel("x"), m.ps[1]
	for use := range 3 {
		p.must("new", "channel", "x")
		p.must("x", "send", use, 0)
		p.must("x", "broadcast", use, 1)
		if use < 2 {
			p.must("x", "close")
		}
	}
	p.must("new", "later", "barrier", "x", "barrier")
	voted(t, addr, "x", 1, false)
	for use := range 3 {
		got, err := pgroup.Broadcast(bounded(t), x, 1, -1)
		require.NoError(t, err)
		require.Equal(t, use, got)
		got, err = pgroup.Recv[int](bounded(t), x, 1)
		require.NoError(t, err)
		require.Equal(t, use, got)
		if use < 2 {
			_, err = pgroup.Recv[int](bounded(t), x, 1)
			require.ErrorIs(t, err, pgroup.ErrSkipped)
			require.NoError(t, x.Close())
			x = m.gs[0].Channel("x")
		}
	}
	require.NoError(t, x.Barrier(bounded(t)))
	p.must("new", "outcome", "barrier")
}

// TestPythonAcknowledgesLargeMessages lets a Go rank send more than its session may hold, to ranks
// that receive one message each.
func TestPythonAcknowledgesLargeMessages(t *testing.T) {
	const size = 4 << 20
	memory := &store.Memory{Limits: store.Limits{Held: 64 << 20, HeldOf: 2 * size}}
	m := create(t, 6, testcluster.Serve(t, &store.Server{Engine: memory}), nil, pgroup.Config{})
	for dst := 1; dst < 6; dst += 2 {
		require.NoError(t, pgroup.Send(bounded(t), m.gs[0], dst, make([]byte, size)))
		got := m.ps[dst].must("group", "recv", 0)
		assert.Equal(t, raw(string(make([]byte, size))), got)
	}
}
