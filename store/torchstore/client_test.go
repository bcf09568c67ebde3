package torchstore_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/storetest"
	"github.com/muster-pg/muster/store/torchstore"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// never is what no TCPStore can do.
var never = []storetest.Feature{
	storetest.Collect, storetest.Streams, storetest.TTL, storetest.Reads, storetest.Leases, storetest.Watch, storetest.Compaction, storetest.Remove, storetest.Checked,
}

func dial(t *testing.T, addr string, o *torchstore.Options) *torchstore.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := torchstore.Dial(ctx, addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Our client over our server, each generation.
func TestClientOfOurServer(t *testing.T) {
	for _, g := range []tcpstore.Generation{tcpstore.A, tcpstore.B, tcpstore.C} {
		t.Run(g.String(), func(t *testing.T) {
			without := never
			var only []string
			switch g {
			case tcpstore.A:
				without = append(without[:len(without):len(without)], storetest.Append, storetest.List)
			case tcpstore.B:
				without = append(without[:len(without):len(without)], storetest.List)
			default: // all but Lists: its keys with a zero byte are not for Python
				only = []string{"Keys", "Counters", "Swap", "Lifetimes", "Wait", "Limits", "Many", "Close"}
			}
			storetest.Run(t, func(t *testing.T) func() store.Engine {
				older := g
				if g == tcpstore.C {
					older = 0
				}
				s := serve(t, &torchstore.Protocol{Older: older}, nil)
				return func() store.Engine { return dial(t, s.addr, &torchstore.Options{Generation: g}) }
			}, &storetest.Options{Without: without, Only: only, Key: 8<<10 - 1, Value: 8 << 20})
		})
	}
}
