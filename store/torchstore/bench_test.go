package torchstore_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire/tcpstore"
)

// BenchmarkCall measures the latency of calls that one client makes in sequence on the loopback.
func BenchmarkCall(b *testing.B) {
	push := tcpstore.Request{Op: tcpstore.OpQueuePush, Key: "/q", Value: make([]byte, 100)}
	for name, bc := range map[string]struct {
		asks   []tcpstore.Request
		answer int // size in bytes
	}{
		"ping":           {[]tcpstore.Request{of(tcpstore.OpPing)}, 4},
		"add":            {[]tcpstore.Request{add("/n", 1)}, 8},
		"set, check":     {[]tcpstore.Request{set("/k", "value"), check("/k")}, 1},
		"wait for 2":     {[]tcpstore.Request{wait("/k", "/k1")}, 1},
		"get":            {[]tcpstore.Request{get("/k")}, 8 + 5},
		"multi_get of 5": {[]tcpstore.Request{{Op: tcpstore.OpMultiGet, Keys: []string{"/k", "/k", "/k", "/k", "/k"}}}, 5 * (8 + 5)},
		"push, pop":      {[]tcpstore.Request{push, {Op: tcpstore.OpQueuePop, Key: "/q"}}, 8 + 8 + 100},
		"num_keys":       {[]tcpstore.Request{of(tcpstore.OpGetNumKeys)}, 8},
	} {
		b.Run(name, func(b *testing.B) {
			c := current(b).client(b)
			c.send(set("/k", "value"), set("/k1", "value"))
			ask, answer := c.bytes(bc.asks...), make([]byte, bc.answer)
			b.ReportAllocs()
			for b.Loop() {
				c.write(ask)
				_, err := io.ReadFull(c, answer)
				require.NoError(b, err)
			}
		})
	}
}
