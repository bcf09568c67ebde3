package python_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// beRelay relays the store at an address, as muster relay does: at another one, and says where to a third.
func beRelay(ctx context.Context, arg string) error {
	to := strings.Fields(arg)
	r, err := store.NewRelay(ctx, "muster://"+to[0], nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", to[1])
	if err != nil {
		return err
	}
	parent, err := net.Dial("tcp", to[2])
	if err != nil {
		return err
	}
	fmt.Fprint(parent, l.Addr())
	if err := parent.Close(); err != nil {
		return err
	}
	return (&store.Server{Engine: r}).Serve(l)
}

// relay starts a relay of the store at addr, at an address, and returns that.
func relay(t *testing.T, addr, at string) (*launch.Process, string) {
	t.Helper()
	l := listen(t)
	defer l.Close()
	p := testcluster.Start(t, "relay", addr+" "+at+" "+l.Addr().String())
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	where, err := io.ReadAll(c)
	require.NoError(t, err)
	return p, string(where)
}

// patient is a store that no machine is too slow for.
func patient() *store.Server {
	return &store.Server{Limits: store.ServerLimits{ReconnectTimeout: time.Minute, LivenessTimeout: time.Second}}
}

// interrupted is an all-gather of all ranks, and an add of each of Python's; hit comes in the middle of it, and rank 0 after that.
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

// adds is how often Python's ranks have added.
func (m *mixed) adds() any { return m.ps[1].must("store", "add", "rounds", 0) }

// A relay that is killed takes no rank with it: the next one at its address goes on, and what changes something takes effect once.
func TestPythonBehindARelayThatIsKilled(t *testing.T) {
	addr := serve(t, patient())
	p, at := relay(t, addr, "127.0.0.1:0")
	m := create(t, 4, at, nil, pgroup.Config{})
	for r := 1; r < 4; r += 2 {
		m.ps[r].must("new", "connect", at)
	}
	const kills = 3
	for round := range kills {
		m.interrupted(round, func() {
			testcluster.Kill(t, p)
			p, _ = relay(t, addr, at)
		})
	}
	m.interrupted(kills, func() {
		testcluster.Freeze(t, p)
		<-time.After(1500 * time.Millisecond) // for longer than the store waits for who is silent
		testcluster.Thaw(t, p)
	})
	require.EqualValues(t, 2*(kills+1), m.adds())
}

// Sessions go on by any way that the address has: through another relay, and without one.
func TestPythonHasOtherWays(t *testing.T) {
	addr := serve(t, patient())
	first, a := relay(t, addr, "127.0.0.1:0")
	second, b := relay(t, addr, "127.0.0.1:0")
	ways := a + "," + b + "," + addr
	m := create(t, 4, ways, nil, pgroup.Config{})
	m.ps[1].must("new", "connect", "muster://"+ways+"/prefix")
	m.ps[3].must("new", "connect", ways)
	m.ps[3].must("store", "set", "k", raw("v"))
	m.interrupted(0, func() { testcluster.Kill(t, first) })
	m.interrupted(1, func() { testcluster.Kill(t, second) })
	require.EqualValues(t, 2, m.adds())
	require.EqualValues(t, raw("v"), m.ps[3].must("store", "get", "k"))
	p := start(t)
	p.must("new", "connect", ways)
	require.EqualValues(t, 2, p.must("store", "add", "prefix/rounds", 0), "each way leads to the same store")
}

// Ranks whose relay does not come back are lost together, and who is not hears that it was the relay.
func TestPythonHearsOfARelayThatDoesNotComeBack(t *testing.T) {
	addr := serve(t, &store.Server{Limits: store.ServerLimits{ReconnectTimeout: 100 * time.Millisecond}})
	p, at := relay(t, addr, "127.0.0.1:0")
	behind, direct := []*rank{start(t), start(t)}, start(t)
	done := make(chan error, 2)
	for r, b := range behind {
		go func() { _, err := b.do("new", "join", r, 3, at, kw{"timeout": 30}); done <- err }()
	}
	direct.must("new", "join", 2, 3, addr, kw{"timeout": 30})
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	testcluster.Kill(t, p)
	f := direct.fails("Lost", "group", "barrier")
	require.Equal(t, []int{0, 1}, f.Lost)
	require.Contains(t, f.Text, "their relay (pid ")
	f = behind[0].fails("Unavailable", "group", "barrier", kw{"timeout": 10}) // after some seconds in which no relay is there
	require.Contains(t, f.Text, at+" is gone")
}

// A relay says that there is no store, and Python says so in Go's words.
func TestTheStoreBehindPythonsRelayIsGone(t *testing.T) {
	srv := patient()
	addr := serve(t, srv)
	_, at := relay(t, addr, "127.0.0.1:0")
	p := start(t)
	p.must("new", "connect", at)
	p.must("store", "set", "k", raw("v"))
	require.NoError(t, srv.Close())
	f := p.fails("Unavailable", "store", "get", "k")
	require.Contains(t, f.Text, `store: get "k": store unavailable: `+at)
	f = p.fails("Unavailable", "new", "connect", at)
	_, err := store.Dial(bounded(t), at, nil)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Equal(t, 1, strings.Count(err.Error(), "the relay cannot reach the store at "+addr), err)
	require.Equal(t, err.Error(), f.Text)
	f = p.fails("Timeout", "new", "connect", at, kw{"timeout": 0.2, "wait": true})
	require.True(t, f.is("Unavailable"))
	require.Contains(t, f.Text, "the relay cannot reach the store at "+addr)
}
