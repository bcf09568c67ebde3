package tcpstore_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func dial(t *testing.T, addr string, o *tcpstore.Options) *tcpstore.Client {
	t.Helper()
	c, err := tcpstore.Dial(testcluster.Within(t, testTimeout), addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestClientOfOurServer runs the tests of clients with our client of our server.
func TestClientOfOurServer(t *testing.T) {
	s := current(t)
	clientsOf(t, func() *store.Store { return store.New(dial(t, s.addr, nil)) })
}

// TestClientListsPages checks that the client lists the keys and values of several pages, in order, those of
// empty values and no others.
func TestClientListsPages(t *testing.T) {
	s := current(t)
	var keys []string
	for i := range 1100 {
		keys = append(keys, fmt.Sprintf("k/%04d", i))
		require.NoError(t, s.Set(s.ctx, keys[i], []byte(keys[i])[:i%2*6], nil))
	}
	require.NoError(t, s.Set(s.ctx, "other", nil, nil))
	c := store.New(dial(t, s.addr, nil))
	var listed, only []string
	for e, err := range c.List(s.ctx, "k/") {
		require.NoError(t, err)
		require.Equal(t, e.Key[:len(listed)%2*6], string(e.Value))
		listed = append(listed, e.Key)
	}
	for key, err := range c.Keys(s.ctx, "k/") {
		require.NoError(t, err)
		only = append(only, key)
	}
	require.Equal(t, keys, listed)
	require.Equal(t, keys, only)
}

// The largest key and value of a TCPStore.
const (
	maxKey   = 8<<10 - 1
	maxValue = 8 << 20
)

// clientsOf tests what scenarios cannot show of clients of one server: sizes, bytes that callers change,
// and many calls at the same time.
func clientsOf(t *testing.T, open func() *store.Store) {
	ctx, s := t.Context(), open()
	longest, largest := strings.Repeat("k", maxKey), bytes.Repeat([]byte("v"), maxValue)
	require.NoError(t, s.Set(ctx, longest, largest, nil))
	_, err := s.Append(ctx, longest, []byte("1"))
	require.ErrorIs(t, err, store.ErrTooLarge)
	require.ErrorIs(t, s.Set(ctx, longest, append(largest, 'v'), nil), store.ErrTooLarge)
	got, err := s.Get(ctx, longest)
	require.NoError(t, err)
	require.True(t, bytes.Equal(largest, got))
	require.ErrorIs(t, s.Set(ctx, longest+"k", nil, nil), store.ErrTooLarge)
	_, err = s.Wait(ctx, make([]string, wire.MaxKeys+1)...)
	require.ErrorIs(t, err, store.ErrTooLarge)

	v := []byte("value")
	require.NoError(t, s.Set(ctx, "key", v, nil))
	clear(v)
	values, err := s.Wait(ctx, "key", "key")
	require.NoError(t, err)
	clear(values[0])
	require.Equal(t, "value", string(values[1]))

	const callers, rounds = 16, 50
	errs := make(chan error, callers)
	for i := range callers {
		c := []*store.Store{s, open()}[i%2]
		go func() { errs <- manyCalls(ctx, c, fmt.Sprint("own ", i), rounds) }()
	}
	for range callers {
		require.NoError(t, <-errs)
	}
	n, err := s.Add(ctx, "shared", 0)
	require.NoError(t, err)
	require.EqualValues(t, callers*rounds, n)
	require.NoError(t, s.Close())
	_, err = s.Get(ctx, "key")
	require.ErrorIs(t, err, store.ErrClosed)
	_, err = s.Wait(ctx, "key")
	require.ErrorIs(t, err, store.ErrClosed)
}

// manyCalls adds to a shared counter, and sets and gets its own key.
func manyCalls(ctx context.Context, s *store.Store, key string, rounds int) error {
	for n := range rounds {
		if _, err := s.Add(ctx, "shared", 1); err != nil {
			return err
		}
		if err := s.Set(ctx, key, fmt.Append(nil, n), nil); err != nil {
			return err
		}
		if v, err := s.Get(ctx, key); err != nil || string(v) != fmt.Sprint(n) {
			return fmt.Errorf("%s is %q: %w", key, v, err)
		}
	}
	_, err := s.Wait(ctx, "own 0", key)
	return err
}

// scenarios has the rules of stores as text.
const scenarios = "../../internal/scenario/testdata"

func TestScenariosOfOurServer(t *testing.T) {
	scenario.Run(t, scenarios, scenario.Engine{
		Name: "a client of TCPStores",
		Only: []string{"keys", "counters", "swap", "wait", "wait_ends"},
		Start: func(t *testing.T, s scenario.Settings) func(string) scenario.Session {
			l := scenario.Listen(t, &store.Server{Engine: &store.Memory{Limits: s.Limits}, Protocol: &tcpstore.Protocol{}})
			return func(string) scenario.Session {
				return scenario.Session{Engine: dial(t, "127.0.0.1:1", &tcpstore.Options{Dial: l.Conn})}
			}
		},
	})
}

// host is a Python process that hosts TCPStores.
type host struct{ *testcluster.Peer }

func newHost(t *testing.T) host {
	t.Helper()
	h := host{testcluster.NewPeer(t, python(context.Background(), t, "host.py"))} // it ends after the TCPStores of the test
	torch, err := h.Line()
	require.NoError(t, err)
	t.Log(torch)
	return h
}

// do evaluates a Python expression in the host, and returns its output. An error fails the test.
func (h host) do(t *testing.T, format string, args ...any) string {
	t.Helper()
	said := h.try(t, format, args...)
	require.NotContains(t, said, "error ")
	return said
}

// try is do for an expression that may fail.
func (h host) try(t *testing.T, format string, args ...any) string {
	t.Helper()
	answer, err := h.Ask(fmt.Sprintf(format, args...))
	require.NoError(t, err)
	return answer
}

// server makes a TCPStore that ends with the test, and returns its port and address.
func (h host) server(t *testing.T, args string) (port, addr string) {
	t.Helper()
	port = h.do(t, "new(%s)", args)
	t.Cleanup(func() { h.do(t, "stores.pop(%s, None) and None", port) })
	return port, "127.0.0.1:" + port
}

// TestPythonsServer runs the tests of engines, the scenarios in which no call waits, and joint use with
// Python, with our client of each of PyTorch's two server implementations.
func TestPythonsServer(t *testing.T) {
	h := newHost(t)
	for name, args := range map[string]string{"libuv": "", "without libuv": "use_libuv=False"} {
		t.Run(name, func(t *testing.T) {
			_, addr := h.server(t, args)
			clientsOf(t, func() *store.Store { return store.New(dial(t, addr, nil)) })
			scenario.Run(t, scenarios, scenario.Engine{
				Name: "a TCPStore of PyTorch",
				Only: []string{"keys", "counters", "swap"},
				Real: true,
				Start: func(t *testing.T, _ scenario.Settings) func(string) scenario.Session {
					_, addr := h.server(t, args)
					return func(string) scenario.Session { return scenario.Session{Engine: dial(t, addr, nil)} }
				},
			})
			t.Run("Python sees what Go does", func(t *testing.T) { sharedWithPython(t, h, args) })
		})
	}
	t.Run("we join its world", func(t *testing.T) { joinTheWorld(t, h) })
	t.Run("what it says", func(t *testing.T) { whatHostsSay(t, h) })
	t.Run("its client of a lost rank", func(t *testing.T) { pythonErrorOfAFailedRank(t, h) })
}

func sharedWithPython(t *testing.T, h host, args string) {
	port, addr := h.server(t, args)
	s := store.New(dial(t, addr, nil))
	ctx := t.Context()
	require.NoError(t, s.Set(ctx, "from Go", []byte("1"), nil))
	require.Equal(t, "b'1'", h.do(t, "stores[%s].get('from Go')", port))
	require.Equal(t, "None", h.do(t, "stores[%s].set('from Python', '2')", port))
	require.Equal(t, "5", h.do(t, "stores[%s].add('n', 5)", port))
	require.Equal(t, "None", h.do(t, "dist.PrefixStore('p', stores[%s]).set('k', 'v')", port))
	v, err := s.Wait(ctx, "from Python", "n", "p/k")
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("2"), []byte("5"), []byte("v")}, v)
}

// joinTheWorld checks that a host that waits for its world counts our client if Join is set.
func joinTheWorld(t *testing.T, h host) {
	addr := testcluster.Port(t)
	_, port, _ := strings.Cut(addr, ":")
	var joining sync.WaitGroup
	defer joining.Wait()
	// Dial retries until a process listens.
	joining.Go(func() { dial(t, addr, &tcpstore.Options{Join: true}) })
	require.Equal(t, port, h.do(t, "dist.TCPStore('127.0.0.1', %s, 2, True, timedelta(seconds=30)).port", port))
}

// whatHostsSay checks that a Python host that times out says how many clients have joined, with
// our clients as with Python's, and that it reports a port that is in use.
func whatHostsSay(t *testing.T, h host) {
	s := serve(t, &tcpstore.Protocol{}, nil)
	_, port, _ := strings.Cut(s.addr, ":")
	said := h.try(t, "new(port=%s)", port)
	require.Contains(t, said, "error ")
	require.Contains(t, said, port)
	require.Contains(t, h.try(t, "dist.TCPStore('127.0.0.1', 0, 3, True, timedelta(seconds=4))"), "1/3 clients joined")
}

// pythonErrorOfAFailedRank checks that an unmodified client that waits for a key of a lost rank
// raises an error at once, instead of at its timeout, and that its connection still works.
func pythonErrorOfAFailedRank(t *testing.T, h host) {
	s := serve(t, &tcpstore.Protocol{Ranks: []string{"ready/{rank}", "part/{rank}/*"}}, nil)
	_, port, _ := strings.Cut(s.addr, ":")
	h.do(t, "stores.update(c=dist.TCPStore('127.0.0.1', %s, None, False, timedelta(seconds=300)))", port)
	peer := s.client(t)
	peer.send(set("/ready/1", "yes"))
	require.Equal(t, "b'yes'", h.do(t, "stores['c'].get('ready/1')"))
	said := make(chan string, 1)
	go func() { said <- h.try(t, "stores['c'].get('part/1/x')") }()
	peer.silent()
	_ = peer.Close()
	require.Contains(t, <-said, "error ")
	s.Says(t, `rank=1 key=part/1/x reason="rank 1 has disconnected`)
	require.Equal(t, "None", h.do(t, "stores['c'].set('k', 'v')"))
	require.Equal(t, "b'v'", h.do(t, "stores['c'].get('k')"))
}
