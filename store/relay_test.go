package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/storetest"
	"github.com/muster-pg/muster/store"
)

// relayed returns a world in which the engine is behind a Server, behind a relay.
func relayed(engine func(*testing.T) store.Backend, w wires, grace time.Duration) world {
	return func(t *testing.T) func() store.Engine {
		s := serve(t, &store.Server{Engine: engine(t), Limits: store.ServerLimits{ReconnectTimeout: grace}}, tcp)
		r := relay(t, s.addr, &store.Server{}, w)
		return func() store.Engine {
			c, err := store.Dial(t.Context(), "127.0.0.1:1", &store.DialOptions{Dial: r.dial})
			require.NoError(t, err)
			return c.Engine()
		}
	}
}

// relay runs a relay of the store at addr on srv, over w.
func relay(t *testing.T, addr string, srv *store.Server, w wires) *service {
	t.Helper()
	r, err := store.NewRelay(bounded(t), "muster://"+addr, nil)
	require.NoError(t, err)
	srv.Engine = r
	return serve(t, srv, w)
}

func TestRelay(t *testing.T) {
	t.Parallel()
	storetest.Run(t, relayed(newMemory, tcp, soonLost), nil)
}

// TestRelayOverPipes runs the contract over connections that are not sockets, each of which the
// relay reads in a goroutine of its own.
func TestRelayOverPipes(t *testing.T) {
	otherWay(t)
	storetest.Run(t, relayed(newMemory, pipes, soonLost), nil)
}

func TestRelayDurable(t *testing.T) {
	otherWay(t)
	storetest.Run(t, relayed(onDisk, tcp, soonLost), nil)
}

func TestReconnectThroughARelay(t *testing.T) {
	for _, e := range append(engines[:2:2], way{"durable", onDisk, tcp}) {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, relayed(e.engine, e.wires, comesBack), &storetest.Options{Break: breaks, Only: []string{"Reconnect"}})
		})
	}
}
