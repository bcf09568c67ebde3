package tcpstore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/internal/storetest"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// never are the features that no TCPStore has.
var never = []storetest.Feature{
	storetest.Collect, storetest.Streams, storetest.TTL, storetest.Reads, storetest.Leases, storetest.Watch, storetest.Status, storetest.Remove,
	storetest.Queues, storetest.Channels,
}

func dial(t *testing.T, addr string, o *tcpstore.Options) *tcpstore.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	c, err := tcpstore.Dial(ctx, addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// scenarios has the rules of stores as text.
const scenarios = "../../internal/scenario/testdata"

func TestScenariosOfOurServer(t *testing.T) {
	scenario.Run(t, scenarios, scenario.Engine{
		Name: "a client of TCPStores",
		Only: []string{"keys", "counters", "swap", "wait", "wait_ends"},
		Start: func(t *testing.T, s scenario.Settings) func(string) scenario.Session {
			l := scenario.Listen(t, &store.Server{Engine: &store.Memory{Limits: s.Limits}, Protocols: []store.Protocol{&tcpstore.Protocol{}}})
			return func(string) scenario.Session {
				return scenario.Session{Engine: dial(t, "127.0.0.1:1", &tcpstore.Options{Dial: l.Conn})}
			}
		},
	})
}

// host is a Python process that hosts TCPStores.
type host struct {
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Scanner
}

func newHost(t *testing.T) *host {
	t.Helper()
	cmd := python(context.Background(), t, "host.py") // it ends after the TCPStores of the test
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	h := &host{in: in, out: bufio.NewScanner(out)}
	require.True(t, h.out.Scan())
	t.Log(h.out.Text())
	return h
}

// do evaluates a Python expression in the host, and returns its output. An error fails the test.
func (h *host) do(t *testing.T, format string, args ...any) string {
	t.Helper()
	said := h.try(t, format, args...)
	require.NotContains(t, said, "error ")
	return said
}

// try is do for an expression that may fail.
func (h *host) try(t *testing.T, format string, args ...any) string {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := fmt.Fprintf(h.in, format+"\n", args...)
	require.NoError(t, err)
	require.True(t, h.out.Scan())
	return h.out.Text()
}

// server makes a TCPStore that ends with the test, and returns its port and address.
func (h *host) server(t *testing.T, args string) (port, addr string) {
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
			storetest.Run(t, func(t *testing.T) func() store.Engine {
				_, addr := h.server(t, args)
				return func() store.Engine { return dial(t, addr, nil) }
			}, &storetest.Options{Without: never, Key: 8<<10 - 1, Value: 8 << 20})
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

func sharedWithPython(t *testing.T, h *host, args string) {
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
func joinTheWorld(t *testing.T, h *host) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	_, port, _ := strings.Cut(addr, ":")
	var joining sync.WaitGroup
	defer joining.Wait()
	// Dial retries until a process listens.
	joining.Go(func() { dial(t, addr, &tcpstore.Options{Join: true}) })
	require.Equal(t, port, h.do(t, "dist.TCPStore('127.0.0.1', %s, 2, True, timedelta(seconds=30)).port", port))
}

// whatHostsSay checks that a Python host that times out says how many clients have joined, with
// our clients as with Python's, and that it reports a port that is in use.
func whatHostsSay(t *testing.T, h *host) {
	s := serve(t, &tcpstore.Protocol{}, nil)
	_, port, _ := strings.Cut(s.addr, ":")
	said := h.try(t, "new(port=%s)", port)
	require.Contains(t, said, "error ")
	require.Contains(t, said, port)
	require.Contains(t, h.try(t, "dist.TCPStore('127.0.0.1', 0, 3, True, timedelta(seconds=1))"), "1/3 clients joined")
}

// pythonErrorOfAFailedRank checks that an unmodified client that waits for a key of a lost rank
// raises an error at once, instead of at its timeout, and that its connection still works.
func pythonErrorOfAFailedRank(t *testing.T, h *host) {
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
