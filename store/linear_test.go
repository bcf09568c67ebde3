package store_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/linear"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// These tests check that histories of clients whose connections are cut, delayed and frozen are
// linearizable; runs of minutes also that their second half needs no more memory than the first.
// testdata/mutants.txt has clients whose histories are not linearizable. To run them longer, or to repeat a run:
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

// killed is a host of a durable store in a separate process, which restart kills.
func killed(t *testing.T) (string, func()) {
	p := newProcess(t, "server", t.TempDir())
	return p.addr, func() { p.kill(t); p.start(t) }
}

// killedRelay is a host of a store behind a relay; restart kills and starts the relay only.
func killedRelay(t *testing.T) (string, func()) {
	s := serve(t, &store.Server{Limits: store.ServerLimits{ReconnectTimeout: time.Second}}, tcp)
	p := newProcess(t, "relay", s.addr)
	return p.addr, func() { p.kill(t); p.start(t) }
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
			bad, summary := linearize(t, h, *linearFor, seed)
			t.Log(summary)
			for _, b := range bad {
				t.Error(b)
			}
		})
	}
}

const (
	linearClients = 8
	linearKeys    = 4
	roundTime     = 700 * time.Millisecond // then keys change: short histories are checked fast
)

// linearize records histories for the duration d, and returns those that are not linearizable.
func linearize(t *testing.T, at host, d time.Duration, seed uint64) (bad []string, summary string) {
	addr, restart := at(t)
	proxies := make([]*testcluster.Proxy, linearClients)
	clients := make([]*store.Store, linearClients)
	for i := range clients {
		proxies[i] = testcluster.NewProxy(t, addr)
		clients[i] = dial(t, proxies[i].Addr())
	}
	chance := rand.New(rand.NewPCG(seed, 0))
	began := time.Now()
	var total, unknown int
	var heaps [2]int64 // the largest one of each half
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
		half := int(2 * time.Since(began) / d)
		heaps[min(half, 1)] = max(heaps[min(half, 1)], heap())
		n, unclear := h.Counts()
		total, unknown = total+n, unknown+unclear
		for _, text := range h.Check() {
			bad = append(bad, fmt.Sprintf("seed %d: %s", seed, text))
		}
	}
	if d >= time.Minute && heaps[1] > heaps[0]+heaps[0]/4+16<<20 { // in a short one other tests run too
		bad = append(bad, fmt.Sprintf("the heap has grown from %d to %d bytes", heaps[0], heaps[1]))
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
