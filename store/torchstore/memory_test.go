package torchstore_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// TestIdleConnectionsHoldLittle checks that an idle connection keeps no large buffers after a large
// request, whichever small request follows it. Most connections are idle most of the time.
func TestIdleConnectionsHoldLittle(t *testing.T) {
	const conns, each = 20, 4 << 20
	large := strings.Repeat("x", each)
	for what, last := range map[string]func(c *client){
		"a request": func(c *client) { c.send(set("/large", large)) },
		"several keys": func(c *client) {
			c.send(tcpstore.Request{Op: tcpstore.OpMultiSet, Keys: []string{"/large"}, Values: [][]byte{[]byte(large)}})
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

// inUse returns the number of bytes in use.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
