package pgroup_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// says checks that err matches target, if there is one, and has all of these words, on one line.
func says(t *testing.T, err, target error, words ...string) {
	t.Helper()
	if err == nil || target != nil && !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
		return
	}
	for _, w := range words {
		assert.ErrorContains(t, err, w)
	}
	assert.NotContains(t, err.Error(), "\n")
	t.Log(err)
}

// TestConfigErrorsNameTheField checks what testdata/config.txt says.
func TestConfigErrorsNameTheField(t *testing.T) {
	s := store.New(new(store.Memory))
	defer s.Close()
	refused := func(c pgroup.Config) error {
		_, err := pgroup.Create(t.Context(), c)
		says(t, err, pgroup.ErrInvalid)
		return err
	}
	datadriven.RunTest(t, "testdata/config.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			var c pgroup.Config
			require.NoError(t, json.Unmarshal([]byte(line), &c))
			if d.HasArg("store") {
				c.Store = s
			}
			if d.HasArg("listener") {
				c.Listener = testcluster.Listen(t)
			}
			fmt.Fprintln(&out, refused(c))
		}
		return out.String()
	})
	long := strings.Repeat("n", 5000)
	assert.ErrorContains(t, refused(pgroup.Config{Size: 2, Store: s, Name: long}), "Config.Name has 5000 bytes")
	assert.ErrorContains(t, refused(pgroup.Config{Size: 2, Store: s, Run: long}), "Config.Run has 5000 bytes")
}

func TestCreateWithSchemes(t *testing.T) {
	s := store.New(new(store.Memory))
	defer s.Close()
	var mu sync.Mutex
	var hosts []string
	schemes := store.Schemes{"mine": func(_ context.Context, u *url.URL) (store.Engine, error) {
		mu.Lock()
		defer mu.Unlock()
		hosts = append(hosts, u.Host)
		return store.Prefix(s, ""), nil // whose Close leaves s open
	}}
	ranks(t, 2, all(pgroup.Config{Address: "mine://here", Schemes: schemes}), func(t *testing.T, g *pgroup.Group) { ok(t, g, "barrier", g.Barrier(t.Context())) })
	assert.Equal(t, []string{"here", "here"}, hosts)
}

func TestCreateWithoutListener(t *testing.T) {
	addr := testcluster.Port(t)
	start := time.Now()
	_, err := pgroup.Create(within(t, 300*time.Millisecond), pgroup.Config{Rank: 1, Size: 4, Address: addr})
	says(t, err, context.DeadlineExceeded, `create of group "world" on rank 1 of 4`, "no process listens at "+addr+" after ", "start rank 0 or the store, or check its address (MASTER_ADDR and MASTER_PORT, or MUSTER_STORE)")
	assert.LessOrEqual(t, time.Since(start), 4*time.Second)
}

// TestCreateWhereTheStoreHangs checks the error of a server that accepts and does not answer: it
// does not say that no server listens.
func TestCreateWhereTheStoreHangs(t *testing.T) {
	l := testcluster.Listen(t)
	defer l.Close()
	addr := l.Addr().String()
	_, err := pgroup.Create(within(t, 300*time.Millisecond), pgroup.Config{Rank: 1, Size: 4, Address: addr})
	says(t, err, context.DeadlineExceeded, "no answer from "+addr+" after ", "check that rank 0 or a store listens there, and is not frozen")
	assert.NotContains(t, err.Error(), "no process listens")
}

func TestCreateRefusesASecondRank(t *testing.T) {
	addr := "muster://" + serve(t)
	gs := create(t, 2, all(pgroup.Config{Address: addr}))
	_, err := pgroup.Create(t.Context(), pgroup.Config{Rank: 1, Size: 2, Address: addr})
	says(t, err, pgroup.ErrConflict, `create of group "world" on rank 1 of 2`, "rank 1 is already in use by pid ", ", which joined ", "each process needs a rank of its own")
	together(2, func(rank int) { ok(t, gs[rank], "barrier", gs[rank].Barrier(t.Context())) })
}

// TestCreateAtAnotherServer checks the error if the server at the address speaks another
// protocol, as PyTorch's TCPStore does.
func TestCreateAtAnotherServer(t *testing.T) {
	l := testcluster.Listen(t)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer l.Close()
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.9 or some such\r\n"))
			_ = c.Close()
		}
	})
	start := time.Now()
	_, err := pgroup.Create(within(t, 20*time.Second), pgroup.Config{Rank: 0, Size: 2, Address: l.Addr().String()})
	says(t, err, store.ErrProtocol, "address already in use", "not a muster store")
	_, err = pgroup.Create(within(t, 20*time.Second), pgroup.Config{Rank: 1, Size: 2, Address: l.Addr().String()})
	says(t, err, store.ErrProtocol, "not a muster store")
	assert.LessOrEqual(t, time.Since(start), 5*time.Second)
}

// TestCreateBeforeTheHost checks that ranks may call Create before rank 0 listens.
func TestCreateBeforeTheHost(t *testing.T) {
	addr := testcluster.Port(t)
	var dialed sync.WaitGroup // each of the others was refused once
	dialed.Add(2)
	gs := create(t, 3, all(pgroup.Config{Address: addr}).with(func(c *pgroup.Config) {
		if c.Rank == 0 {
			dialed.Wait()
			return
		}
		c.Dial = afterDial(dialed.Done)
	}))
	together(3, func(rank int) { ok(t, gs[rank], "barrier", gs[rank].Barrier(t.Context())) })
}

// afterDial returns dial options that call f once, when a store has been dialed, or was not there.
func afterDial(f func()) *store.DialOptions {
	var once sync.Once
	return &store.DialOptions{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		once.Do(f)
		return c, err
	}}
}

// reports returns dial options that close welcomed when a store has answered for the first time.
func reports(welcomed chan struct{}) *store.DialOptions {
	var once sync.Once
	return &store.DialOptions{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &signallingConn{c, func() { once.Do(func() { close(welcomed) }) }}, nil
	}}
}

type signallingConn struct {
	net.Conn
	answered func()
}

func (c *signallingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.answered()
	}
	return n, err
}

// TestCreateWhileTheLastRunEnds checks that ranks of the next run retry while rank 0 of the last
// run is still ending.
func TestCreateWhileTheLastRunEnds(t *testing.T) {
	addr := testcluster.Port(t)
	last, err := pgroup.Create(t.Context(), pgroup.Config{Name: "last run", Size: 1, Address: addr})
	require.NoError(t, err)
	connected := make(chan struct{})
	gs := create(t, 2, all(pgroup.Config{Address: addr, Dial: reports(connected)}).with(func(c *pgroup.Config) {
		if c.Rank == 0 {
			<-connected
			ok(t, last, "shutdown", last.Shutdown(t.Context()))
		}
	}))
	together(2, func(rank int) { ok(t, gs[rank], "shutdown", gs[rank].Shutdown(t.Context())) })
}

// TestCreateHostsWhenTheLastHostHasGone checks that rank 0, if its port is in use by the last run
// of another process, hosts when that has ended.
func TestCreateHostsWhenTheLastHostHasGone(t *testing.T) {
	l := testcluster.Listen(t)
	stop := testcluster.ServeAt(t, new(store.Server), l)
	connected := make(chan struct{})
	gs := create(t, 2, all(pgroup.Config{Address: l.Addr().String(), Dial: reports(connected)}).with(func(c *pgroup.Config) {
		if c.Rank == 1 {
			<-connected
			stop()
		}
	}))
	equal(t, gs[1], "rank 0 hosts", members(t, gs[1])[0].Addr, l.Addr().String())
	together(2, func(rank int) { ok(t, gs[rank], "shutdown", gs[rank].Shutdown(t.Context())) })
}

func TestCreateWithAClosedListener(t *testing.T) {
	l := testcluster.Listen(t)
	_ = l.Close()
	start := time.Now()
	_, err := pgroup.Create(within(t, 20*time.Second), pgroup.Config{Size: 2, Listener: l})
	says(t, err, net.ErrClosed, "serving at")
	assert.LessOrEqual(t, time.Since(start), 5*time.Second)
}

func TestCreateCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []pgroup.Config{{Size: 2, Listener: testcluster.Listen(t)}, {Rank: 1, Size: 2, Address: testcluster.Port(t)}} {
		_, err := pgroup.Create(ctx, c)
		says(t, err, context.Canceled, "create of group")
	}
}

// TestCreateWithAMalformedMember checks that the data of another rank, which comes from the
// network, is validated.
func TestCreateWithAMalformedMember(t *testing.T) {
	s := malformed(t, wire.OpJoin)
	together(2, func(rank int) {
		_, err := pgroup.Create(t.Context(), pgroup.Config{Rank: rank, Size: 2, Store: s})
		says(t, err, nil, "rank 1", "malformed member")
	})
}

// malformed returns a store whose answers to op have a member that is none, at the last rank.
func malformed(t *testing.T, op wire.Op) *store.Store {
	t.Helper()
	return hooked(t, func(ctx context.Context, req *wire.Request, rep *wire.Reply, next store.Engine) error {
		err := next.Do(ctx, req, rep)
		if n := len(rep.Values); req.Op == op && n > 0 {
			rep.Values = append(slices.Clone(rep.Values[:n-1]), []byte("no member"))
		}
		return err
	})
}
