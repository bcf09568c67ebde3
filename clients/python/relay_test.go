package python_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// patient returns a store whose timeouts are long enough for the slowest machine.
func patient() *store.Server {
	return &store.Server{Limits: store.ServerLimits{ReconnectTimeout: time.Minute, LivenessTimeout: time.Second}}
}

// interrupted runs an all-gather of all ranks, and an add of each Python rank; hit is called in the
// middle of them, and rank 0 joins after that.
func (m *mixed) interrupted(round int, hit func()) {
	m.t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		hit()
	}()
	want := []any{}
	for r := range m.gs {
		want = append(want, fmt.Sprintf("%d of %d", round, r))
	}
	m.each(func(r int) error {
		if r == 0 {
			<-over
		}
		got, err := pgroup.AllGather(bounded(m.t), m.gs[r], want[r])
		assert.Equal(m.t, want, got)
		return err
	}, func(r int, p *rank) error {
		if _, err := p.do("store", "add", "rounds"); err != nil {
			return err
		}
		got, err := p.do("group", "all_gather", want[r])
		assert.Equal(m.t, want, got)
		return err
	})
}

// adds returns how often the Python ranks have added.
func (m *mixed) adds() any { return m.ps[1].must("store", "add", "rounds", 0) }

// TestPythonBehindARelayThatIsKilled checks that a relay that is killed makes no rank fail: the
// next relay at its address takes over, and requests that change values take effect exactly once.
func TestPythonBehindARelayThatIsKilled(t *testing.T) {
	addr := testcluster.Serve(t, patient())
	at := testcluster.Port(t)
	p := testcluster.StartAt(t, "relay", addr, at)
	m := create(t, 4, at, nil, pgroup.Config{})
	for r := 1; r < 4; r += 2 {
		m.ps[r].must("new", "connect", at)
	}
	const kills = 3
	for round := range kills {
		m.interrupted(round, func() {
			testcluster.Kill(t, p)
			p = testcluster.StartAt(t, "relay", addr, at)
		})
	}
	m.interrupted(kills, func() {
		testcluster.Freeze(t, p)
		<-time.After(1500 * time.Millisecond) // longer than the store's liveness timeout
		testcluster.Thaw(t, p)
	})
	require.EqualValues(t, 2*(kills+1), m.adds())
}
