package store_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// soak is the duration of TestSoak. A long run: go test ./store -run TestSoak -soak 2h -timeout 3h
var soak = flag.Duration("soak", 2*time.Second, "how long TestSoak runs")

// TestSoak runs calls of all kinds by many clients whose connections are cut, for the duration of
// -soak. Neither memory nor goroutines may grow.
func TestSoak(t *testing.T) {
	const clients, samples = 50, 20
	memory := new(store.Memory)
	s := serve(t, &store.Server{Engine: memory, Limits: store.ServerLimits{ReconnectTimeout: 200 * time.Millisecond}}, tcp)
	ctx := testcluster.Within(t, *soak)
	before := runtime.NumGoroutine()
	proxies := make([]*testcluster.Proxy, 5)
	var running sync.WaitGroup
	upstream := testcluster.NewProxy(t, s.addr)
	through := relay(t, upstream.Addr(), new(store.Server), tcp)
	for i := range proxies {
		to := s.addr
		if i%2 == 1 {
			to = through.addr
		}
		proxies[i] = testcluster.NewProxy(t, to)
	}
	proxies = append(proxies, upstream)
	var calls, failed atomic.Int64
	stores := make([]*store.Store, clients)
	for i := range stores {
		c := dial(t, proxies[i%5].Addr())
		stores[i] = c
		running.Go(func() {
			l := &soaker{s: c, id: i, chance: rand.New(rand.NewPCG(2, uint64(i))), calls: &calls, failed: &failed}
			l.run(ctx, t)
		})
	}
	for i, p := range proxies {
		chance := rand.New(rand.NewPCG(1, uint64(i)))
		running.Go(func() {
			if i == 0 {
				faults(ctx, p, chance)
				return
			}
			for pause(ctx, time.Duration(10+chance.IntN(90))*time.Millisecond) {
				p.Cut(testcluster.Ending(chance.IntN(2)))
			}
		})
	}
	var heaps, goroutines []int64
	for len(heaps) == 0 || ctx.Err() == nil { // at least once, also on a machine that is too busy
		pause(ctx, *soak/samples)
		s.Reset() // otherwise its log grows
		heaps, goroutines = append(heaps, heap()), append(goroutines, int64(runtime.NumGoroutine()))
	}
	running.Wait()
	t.Logf("%d calls, %d failed; heap %d … %d kB; goroutines %d … %d", calls.Load(), failed.Load(),
		heaps[0]>>10, heaps[len(heaps)-1]>>10, goroutines[0], goroutines[len(goroutines)-1])
	flat(t, "heap", heaps, 16<<20)
	flat(t, "goroutines", goroutines, 200)
	require.Greater(t, calls.Load(), failed.Load()*10)
	for _, c := range stores {
		require.NoError(t, c.Close())
	}
	testcluster.Eventually(t, testTimeout, func() bool { return memory.Keys() == soakCounters }, "what had a TTL or a lease is gone")
	testcluster.Eventually(t, testTimeout, func() bool { return runtime.NumGoroutine() < before+clients }, "goroutines end")
}

// flat asserts that the second half of a run needs no more than the first.
func flat(t *testing.T, what string, samples []int64, slack int64) {
	t.Helper()
	half := len(samples) / 2
	first, second := int64(0), int64(0)
	for i, n := range samples {
		if i < half {
			first = max(first, n)
		} else {
			second = max(second, n)
		}
	}
	require.LessOrEqual(t, second, first+first/4+slack, "%s: %v", what, samples)
}

// soakCounters is how many keys of a soak are never deleted.
const soakCounters = 10

// soaker is a client that calls without a pause.
type soaker struct {
	s             *store.Store
	id            int
	chance        *rand.Rand
	calls, failed *atomic.Int64
	lease         *store.Lease
}

func (k *soaker) run(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		k.calls.Add(1)
		within, cancel := context.WithTimeout(ctx, time.Second)
		err := k.call(within)
		cancel()
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrCompacted):
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrLost), errors.Is(err, store.ErrStale):
			k.failed.Add(1)
		default:
			t.Errorf("client %d: %v", k.id, err)
			return
		}
	}
	if k.lease != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = k.lease.Close(end)
	}
}

func (k *soaker) call(ctx context.Context) error {
	n := k.chance.IntN(1000)
	key := fmt.Sprint("entry ", n)
	switch k.chance.IntN(10) {
	case 0, 1:
		_, err := k.s.Add(ctx, fmt.Sprint("counter ", n%soakCounters), 1)
		return err
	case 2, 3:
		return k.s.Set(ctx, key, make([]byte, k.chance.IntN(4096)), &store.SetOptions{TTL: time.Duration(1+n) * time.Millisecond})
	case 4, 5:
		_, err := k.s.Get(ctx, key)
		return err
	case 6:
		return k.onLease(ctx, n)
	case 7:
		short, cancel := context.WithTimeout(ctx, time.Duration(n)*10*time.Microsecond)
		defer cancel()
		if _, err := k.s.Wait(short, key); short.Err() == nil {
			return err
		}
		return nil
	case 8:
		return k.watch(ctx)
	default:
		return k.group(ctx, n)
	}
}

// onLease sets entries on a lease, and replaces the lease now and then.
func (k *soaker) onLease(ctx context.Context, n int) error {
	if k.lease == nil || k.lease.Err() != nil {
		l, err := k.s.Lease(ctx, time.Second)
		if err != nil {
			return err
		}
		k.lease = l
	}
	if n%10 == 0 {
		err := k.lease.Close(ctx)
		k.lease = nil
		return err
	}
	return k.s.Set(ctx, fmt.Sprint("held ", k.id, n%20), nil, &store.SetOptions{Lease: k.lease})
}

func (k *soaker) watch(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	seen := 0
	for _, err := range k.s.Watch(short, "entry", 0) {
		if seen++; err != nil && short.Err() == nil {
			return err
		}
		if seen > 3 {
			break
		}
	}
	return nil
}

// group runs a group of one rank: a join, a barrier, and a leave.
func (k *soaker) group(ctx context.Context, n int) error {
	c := wire.Contribution{Group: fmt.Sprint("group ", k.id), Run: fmt.Sprint(n), Size: 1}
	membership, err := k.s.Join(ctx, c, nil)
	if err != nil {
		return err
	}
	c = wire.Contribution{Generation: membership.Generation}
	_, err = k.s.Collect(ctx, barrier(membership.Generation, 0, 1), nil)
	return errors.Join(err, k.s.Leave(ctx, c))
}
