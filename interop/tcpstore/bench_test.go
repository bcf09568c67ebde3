package tcpstore_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// BenchmarkCall measures the latency of calls that one client makes in sequence on the loopback.
func BenchmarkCall(b *testing.B) {
	push := tcpwire.Request{Op: tcpwire.OpQueuePush, Key: "/q", Value: make([]byte, 100)}
	for name, bc := range map[string]struct {
		asks   []tcpwire.Request
		answer int // size in bytes
	}{
		"ping":           {[]tcpwire.Request{of(tcpwire.OpPing)}, 4},
		"add":            {[]tcpwire.Request{add("/n", 1)}, 8},
		"set, check":     {[]tcpwire.Request{set("/k", "value"), check("/k")}, 1},
		"wait for 2":     {[]tcpwire.Request{wait("/k", "/k1")}, 1},
		"get":            {[]tcpwire.Request{get("/k")}, 8 + 5},
		"get of 64 KiB":  {[]tcpwire.Request{get("/k64")}, 8 + 64<<10},
		"get of 1 MiB":   {[]tcpwire.Request{get("/k1024")}, 8 + 1<<20},
		"multi_get of 5": {[]tcpwire.Request{{Op: tcpwire.OpMultiGet, Keys: []string{"/k", "/k", "/k", "/k", "/k"}}}, 5 * (8 + 5)},
		"push, pop":      {[]tcpwire.Request{push, {Op: tcpwire.OpQueuePop, Key: "/q"}}, 8 + 8 + 100},
		"num_keys":       {[]tcpwire.Request{of(tcpwire.OpGetNumKeys)}, 8},
	} {
		b.Run(name, func(b *testing.B) {
			c := current(b).client(b)
			c.send(set("/k", "value"), set("/k1", "value"), set("/k64", strings.Repeat("x", 64<<10)), set("/k1024", strings.Repeat("x", 1<<20)))
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
