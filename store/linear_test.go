package store_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/linear"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// These tests check that histories of clients whose connections are cut, delayed and frozen are
// linearizable. To run them longer, or to repeat a run:
//
//	go test ./store -run TestLinearizable -linear.for 2m -linear.seed 17
var (
	linearFor  = flag.Duration("linear.for", 2*roundTime, "how long TestLinearizable makes histories")
	linearSeed = flag.Uint64("linear.seed", 0, "of TestLinearizable; 0 draws one")
)

// host starts a server for a test. restart kills the server and starts it again, with its memory,
// at the same address; it is nil if that is impossible.
type host func(t *testing.T) (addr string, restart func())

// inProcess returns a host of an engine whose state is lost with the server.
func inProcess(engine func(*testing.T) store.Backend) host {
	return func(t *testing.T) (string, func()) {
		s := serve(t, &store.Server{Engine: engine(t), Limits: store.ServerLimits{ReconnectTimeout: 150 * time.Millisecond}}, tcp)
		return s.addr, nil
	}
}

// killedRelay is a host of a store behind a relay; restart kills and starts the relay only.
func killedRelay(t *testing.T) (string, func()) {
	s := serve(t, &store.Server{Limits: store.ServerLimits{ReconnectTimeout: time.Second}}, tcp)
	p, addr := relayProcess(t, s, "")
	return addr, func() {
		testcluster.Kill(t, p)
		p, _ = relayProcess(t, s, addr)
	}
}

func TestLinearizable(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]host{
		"memory": inProcess(newMemory), "durable": inProcess(onDisk), "durable, kill -9": killed, "relay, kill -9": killedRelay,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := *linearSeed
			if seed == 0 {
				seed = rand.Uint64()
			}
			bad, summary := linearize(t, h, nil, *linearFor, seed)
			t.Log(summary)
			for _, b := range bad {
				t.Error(b)
			}
		})
	}
}

// TestLinearizableFindsWhatIsWrong checks that the checker finds histories that are not
// linearizable. Otherwise its success would prove nothing.
func TestLinearizableFindsWhatIsWrong(t *testing.T) {
	for name, wrong := range map[string]func(store.Engine) store.Engine{
		"an add that counts twice": func(e store.Engine) store.Engine {
			return &faulty{Engine: e, do: func(ctx context.Context, req *wire.Request, rep *wire.Reply, n int64) error {
				if req.Op == wire.OpAdd && n%5 == 0 {
					if err := e.Do(ctx, req, new(wire.Reply)); err != nil {
						return err
					}
				}
				return e.Do(ctx, req, rep)
			}}
		},
		"a get of what was": func(e store.Engine) store.Engine {
			var seen sync.Map
			return &faulty{Engine: e, do: func(ctx context.Context, req *wire.Request, rep *wire.Reply, n int64) error {
				if was, ok := seen.Load(req.Key); ok && req.Op == wire.OpGet && n%3 == 0 {
					*rep = was.(wire.Reply)
					return nil
				}
				err := e.Do(ctx, req, rep)
				if err == nil && req.Op == wire.OpGet && rep.Code == wire.CodeOK {
					seen.LoadOrStore(string([]byte(req.Key)), *rep)
				}
				return err
			}}
		},
		"a set that is lost": func(e store.Engine) store.Engine {
			return &faulty{Engine: e, do: func(ctx context.Context, req *wire.Request, rep *wire.Reply, n int64) error {
				if req.Op == wire.OpSet && n%5 == 0 {
					*rep = wire.Reply{}
					return nil
				}
				return e.Do(ctx, req, rep)
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, summary := linearize(t, inProcess(newMemory), wrong, 1500*time.Millisecond, 1)
			t.Log(summary)
			require.NotEmpty(t, bad)
		})
	}
}

const (
	linearClients = 8
	linearKeys    = 4
	roundTime     = 700 * time.Millisecond // then keys change: short histories are checked fast
)

// linearize records histories for the duration d, and returns those that are not linearizable. A wrong
// that is not nil makes the clients faulty.
func linearize(t *testing.T, at host, wrong func(store.Engine) store.Engine, d time.Duration, seed uint64) (bad []string, summary string) {
	addr, restart := at(t)
	proxies := make([]*testcluster.Proxy, linearClients)
	clients := make([]*store.Store, linearClients)
	for i := range clients {
		proxies[i] = testcluster.NewProxy(t, addr)
		clients[i] = dial(t, proxies[i].Addr())
		if wrong != nil {
			clients[i] = store.New(wrong(clients[i].Engine()))
		}
	}
	chance := rand.New(rand.NewPCG(seed, 0))
	began := time.Now()
	var total, unknown int
	round := 0
	for ; time.Since(began) < d && len(bad) == 0; round++ {
		h := linear.NewHistory()
		ctx, cancel := context.WithTimeout(t.Context(), roundTime)
		var running sync.WaitGroup
		for i, c := range clients {
			own := rand.New(rand.NewPCG(chance.Uint64(), uint64(i)))
			running.Go(func() { calls(ctx, h.Client(c, own), round, own) })
			trouble := rand.New(rand.NewPCG(chance.Uint64(), uint64(i)))
			running.Go(func() { faults(ctx, proxies[i], trouble) })
		}
		if restart != nil && chance.IntN(3) == 0 {
			running.Go(restart)
		}
		running.Wait()
		cancel()
		n, unclear := h.Counts()
		total, unknown = total+n, unknown+unclear
		for _, text := range h.Check() {
			bad = append(bad, fmt.Sprintf("seed %d: %s", seed, text))
		}
	}
	return bad, fmt.Sprintf("seed %d: %d calls in %d rounds, %d of them with an unknown outcome", seed, total, round, unknown)
}

// faults injects faults into a client's connection until ctx ends.
func faults(ctx context.Context, p *testcluster.Proxy, chance *rand.Rand) {
	defer func() { p.Stall(false); p.Delay(0); p.Throttle(0) }()
	for {
		switch chance.IntN(6) {
		case 0:
			p.Cut(testcluster.RST)
		case 1:
			p.Cut(testcluster.FIN)
		case 2:
			p.Delay(time.Duration(chance.IntN(5000)) * time.Microsecond)
		case 3:
			p.Throttle(chance.IntN(40) * 1000) // pieces of at most 400 bytes
		case 4: // frozen and then cut off, sometimes for longer than the reconnect timeout
			p.Stall(true)
			pause(ctx, time.Duration(chance.IntN(300))*time.Millisecond)
			p.Cut(testcluster.Ending(chance.IntN(2)))
			p.Stall(false)
		case 5: // replies do not arrive
			p.Down.Stall(true)
			pause(ctx, time.Duration(chance.IntN(50))*time.Millisecond)
			p.Cut(testcluster.RST)
			p.Down.Stall(false)
		}
		if !pause(ctx, time.Duration(chance.IntN(40))*time.Millisecond) {
			return
		}
	}
}

// pause waits for d, and reports whether ctx is still active.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// calls makes calls of a client for the keys of a round until ctx ends.
func calls(ctx context.Context, c *linear.Client, round int, chance *rand.Rand) {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, time.Duration(20+chance.IntN(200))*time.Millisecond)
		c.Call(within, fmt.Sprintf("%d/%d", round, chance.IntN(linearKeys)))
		cancel()
	}
}

// killed is a host of a durable store in a separate process, which restart kills.
func killed(t *testing.T) (string, func()) {
	p := newProcess(t)
	return p.addr, func() { p.kill(t); p.start(t) }
}
