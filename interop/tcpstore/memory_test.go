package tcpstore_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// TestIdleConnectionsHoldLittle checks that an idle connection keeps no large buffers after a large
// request, whichever small request follows it. Most connections are idle most of the time.
func TestIdleConnectionsHoldLittle(t *testing.T) {
	const conns, each = 20, 4 << 20
	large := strings.Repeat("x", each)
	for what, last := range map[string]func(c *client){
		"a request": func(c *client) { c.send(set("/large", large)) },
		"several keys": func(c *client) {
			c.send(tcpwire.Request{Op: tcpwire.OpMultiSet, Keys: []string{"/large"}, Values: [][]byte{[]byte(large)}})
			c.works()
		},
		"half a second": func(c *client) { c.write(append(c.bytes(set("/large", large)), 1)) },
		"a check":       func(c *client) { c.send(set("/large", large)); c.call(check("/large")) },
	} {
		t.Run(what, func(t *testing.T) {
			s := current(t)
			before := inUse()
			clients := make([]*client, conns)
			for i := range clients {
				clients[i] = s.client(t)
				last(clients[i])
			}
			// The store has the value, and keeps 16 MiB of changes.
			testcluster.Eventually(t, testTimeout, func() bool { return inUse() < before+conns*each/2 }, "the connections hold little")
			runtime.KeepAlive(clients)
		})
	}
}

// TestAnswersThatWait checks that the answers of a client that does not read keep the values of their
// time, whatever changes these keys: they are not copied.
func TestAnswersThatWait(t *testing.T) {
	s := current(t)
	c, other := s.client(t), s.client(t)
	large := strings.Repeat("x", 700<<10)
	other.send(set("/a", large), set("/b", large))
	other.works()
	c.send(get("/a"), get("/b"), get("/works")) // more than a socket takes
	first := make([]byte, 1)                    // the server has answered
	_, err := c.Read(first)
	require.NoError(t, err)
	c.buf = first
	other.send(set("/a", strings.Repeat("y", 700<<10)), tcpwire.Request{Op: tcpwire.OpAppend, Key: "/b", Value: []byte("more")})
	other.works()
	for range 2 {
		if large != string(c.reply(tcpwire.OpGet, 0).Value) {
			t.Fatal("the value has changed")
		}
	}
	require.Equal(t, "yes", string(c.reply(tcpwire.OpGet, 0).Value))
}

// inUse returns the number of bytes in use.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestWhatCountsInBuffers checks that unfinished requests, and answers that are not read, count against
// ServerLimits.Buffers, as frames of the store's own protocol do, until their connections end.
func TestWhatCountsInBuffers(t *testing.T) {
	const conns, each, buffers = 8, 14 << 20, 64 << 20
	for what, send := range map[string]func(c *client, large tcpwire.Request){
		"unfinished requests": func(c *client, large tcpwire.Request) { _, _ = c.Write(c.bytes(large)[:each]) },
		"answers that are not read": func(c *client, large tcpwire.Request) {
			_, _ = c.Write(c.bytes(large, get("/large")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := serve(t, &tcpstore.Protocol{}, &store.Server{Limits: store.ServerLimits{Buffers: buffers}})
			large := set("/large", strings.Repeat("x", each))
			before := inUse()
			clients := make([]*client, conns)
			for i := range clients {
				clients[i] = s.client(t)
				send(clients[i], large) // an error: the server has ended the connection
			}
			s.Says(t, "the server's buffers are full (ServerLimits.Buffers)")
			testcluster.Eventually(t, testTimeout, func() bool { // a connection that ends frees what it had in a moment
				return inUse() <= before+buffers*6/5+each // the store has the value
			}, "no more than the buffers is in use")
			for _, c := range clients {
				_ = c.Close()
			}
			testcluster.Eventually(t, testTimeout, func() bool { return strings.Count(s.String(), "connection ended") == conns }, "all have ended")
			c := s.client(t)
			c.send(large, get("/large"))
			require.Len(t, c.reply(tcpwire.OpGet, 0).Value, each)
		})
	}
}
