package pgroup_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

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

func TestConfigErrorsNameTheField(t *testing.T) {
	l := testcluster.Listen(t)
	defer l.Close()
	s := store.New(new(store.Memory))
	defer s.Close()
	for _, c := range []struct {
		pgroup.Config
		words []string
	}{
		{pgroup.Config{}, []string{"Config.Size is 0"}},
		{pgroup.Config{Size: -2}, []string{"Config.Size is -2"}},
		{pgroup.Config{Rank: -1, Size: 4}, []string{"Config.Rank is -1", "Config.Size of 4"}},
		{pgroup.Config{Rank: 4, Size: 4, Store: s}, []string{"Config.Rank is 4", "Config.Size of 4", "ranks are 0 to 3"}},
		{pgroup.Config{Size: 2e9, Store: s}, []string{"rank 0 of 2000000000: a group has at most 1048576 ranks"}},
		{pgroup.Config{Size: 2}, []string{"none of Config.Address, Config.Listener and Config.Store"}},
		{pgroup.Config{Size: 2, Address: "h:1", Store: s}, []string{"Config.Address and Config.Store"}},
		{pgroup.Config{Rank: 1, Size: 2, Listener: testcluster.Listen(t)}, []string{"Config.Listener on rank 1"}},
		{pgroup.Config{Size: 2, Address: "localhost"}, []string{`Config.Address "localhost"`, "host:port"}},
		{pgroup.Config{Size: 2, Address: "::1:29500"}, []string{"Config.Address", "too many colons"}},
		{pgroup.Config{Size: 2, Address: "h:99999"}, []string{"Config.Address", `"99999"`}},
		{pgroup.Config{Size: 2, Address: "h:port"}, []string{"Config.Address", `"port"`}},
		{pgroup.Config{Size: 2, Address: "127.0.0.1:0"}, []string{"Config.Address", "port 0", "Config.Listener"}},
		{pgroup.Config{Size: 2, Address: "redis://127.0.0.1:1"}, []string{`unknown scheme "redis"`, "muster://"}},
		{pgroup.Config{Size: 2, Address: "muster://127.0.0.1:1:1"}, []string{"127.0.0.1:1:1"}},
		{pgroup.Config{Size: 2, Store: s, Timeout: -1}, []string{"Config.Timeout"}},
		{pgroup.Config{Size: 2, Store: s, Expiry: -1}, []string{"Config.Expiry"}},
		{pgroup.Config{Size: 2, Store: s, Name: strings.Repeat("n", 5000)}, []string{"Config.Name", "5000"}},
		{pgroup.Config{Size: 2, Store: s, Run: strings.Repeat("n", 5000)}, []string{"Config.Run", "5000"}},
	} {
		_, err := pgroup.Create(t.Context(), c.Config)
		says(t, err, pgroup.ErrInvalid, c.words...)
	}
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
		return kept{s}, nil
	}}
	ranks(t, 2, all(pgroup.Config{Address: "mine://here", Schemes: schemes}), func(t *testing.T, g *pgroup.Group) { ok(t, g, "barrier", g.Barrier(t.Context())) })
	assert.Equal(t, []string{"here", "here"}, hosts)
}

// kept is an engine whose Close leaves the store open.
type kept struct{ *store.Store }

func (kept) Close() error { return nil }

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
	closeAll(gs)
}

// TestCreateAtAnotherServer checks the error if the server at the address speaks another
// protocol, as PyTorch's TCPStore does.
func TestCreateAtAnotherServer(t *testing.T) {
	l := testcluster.Listen(t)
	defer l.Close()
	var conns sync.WaitGroup
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
	_ = l.Close()
	conns.Wait()
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
		var once sync.Once
		c.Dial = &store.DialOptions{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			once.Do(dialed.Done)
			return c, err
		}}
	}))
	together(3, func(rank int) { ok(t, gs[rank], "barrier", gs[rank].Barrier(t.Context())) })
	closeAll(gs)
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
	last := &store.Server{Engine: new(store.Memory)}
	served := make(chan error)
	go func() { served <- last.Serve(l) }()
	connected := make(chan struct{})
	gs := create(t, 2, all(pgroup.Config{Address: l.Addr().String(), Dial: reports(connected)}).with(func(c *pgroup.Config) {
		if c.Rank == 1 {
			<-connected
			assert.NoError(t, last.Shutdown(t.Context()))
			says(t, <-served, store.ErrServerClosed)
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
	s := testcluster.Store(t)()
	together(2, func(rank int) {
		if rank == 1 {
			_, err := s.Join(t.Context(), wire.Contribution{Group: "world", Rank: 1, Size: 2}, []byte("garbage"))
			assert.NoError(t, err)
			return
		}
		_, err := pgroup.Create(t.Context(), pgroup.Config{Size: 2, Store: s})
		says(t, err, nil, "rank 1", "malformed member")
	})
}
