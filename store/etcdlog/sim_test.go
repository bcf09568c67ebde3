package etcdlog_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-pg/muster/internal/linear"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store/etcdlog"
)

var (
	simSeeds = flag.Int("sim.seeds", 40, "how many schedules TestSimulation runs: those of the seeds from 1 on")
	simSeed  = flag.Int("sim.seed", 0, "the only seed to run; 0 is all")
)

// TestSimulation runs whole replicated stores in simulated time: processes that lead and follow,
// which are the shipped code over an etcd in memory, and clients that reconnect and repeat calls
// without an answer. Requests to etcd are delayed, lost, or carried out without an answer or long
// after their caller has given up. Processes are killed, end, or are stopped and continue, also
// while they lead. etcd loses its quorum, or compacts its history. An auditor checks what the
// clients receive; see audit.
//
// A seed makes nearly the same schedule each time: events at the same moment run in the order of
// the Go scheduler.
func TestSimulation(t *testing.T) {
	t.Setenv("TMPDIR", testcluster.Scratch(t)) // of checkpoints
	first, last := 1, *simSeeds
	switch {
	case *simSeed > 0:
		first, last = *simSeed, *simSeed
	case testing.Short():
		last = min(last, 8)
	}
	all := counts{}
	for seed := first; seed <= last; seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(seed)
			w.run()
			all.add(w.audit.counts)
			if b := w.audit.broken; b != nil {
				t.Fatalf("%v\nseed %d: go test ./store/etcdlog -run '^TestSimulation$' -v -sim.seed %d", b, seed, seed)
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d schedules: %v", last-first+1, all)
	if last-first+1 >= 40 {
		all.check(t)
	}
}

// world is one schedule.
type world struct {
	chance  *chance
	etcd    *memEtcd
	busy    bool // etcd is often slow
	quiet   bool // almost all calls are reads
	quorum  gate // closed while etcd has no quorum
	history *linear.History
	mu      sync.Mutex // protects procs, which only the driver changes
	procs   []*proc
	audit   *audit
	healed  atomic.Bool // all requests to etcd are answered from now on
	clients sync.WaitGroup
	running sync.WaitGroup  // all other goroutines
	over    context.Context // until the end of the schedule
	end     context.CancelFunc
	stop    context.Context // until clients must begin no more calls
	finish  context.CancelFunc
}

// simRoot is the root of the simulated store.
const simRoot = "sim/"

// simKeys are the keys of calls that must be linearizable.
var simKeys = []string{"key 0", "key 1", "key 2", ownKey}

// ownKey is a key that only processes of the store change.
const ownKey = "own"

// lastTTL is the longest TTL of an entry.
const lastTTL = 3 * time.Second

// simOptions are the options of the simulated store. A value of valueBytes is a batch of several
// parts.
var simOptions = etcdlog.Options{Root: simRoot, MaxValueBytes: 1000}

const valueBytes = 3000

func newWorld(seed int) *world {
	w := &world{chance: newChance(seed, 0), etcd: newMemEtcd()}
	w.over, w.end = context.WithCancel(context.Background())
	w.stop, w.finish = context.WithCancel(w.over)
	w.audit, w.history = newAudit(), linear.NewHistory()
	w.busy, w.quiet = w.chance.is(0.3), w.chance.is(0.3)
	return w
}

// run runs the schedule: clients with faults, and then an end without faults, in which all calls
// must be answered.
func (w *world) run() {
	defer func() {
		w.end()
		for _, p := range w.procs {
			p.kill()
		}
		w.clients.Wait()
		w.running.Wait()
	}()
	seed := w.chance.IntN(1 << 30)
	for i := range 3 {
		w.procs = append(w.procs, newProc(w, i, seed))
	}
	const ranks, others = 3, 3
	var clients []*simClient
	for i := range ranks + others {
		c := newClient(w, i, newChance(seed, 100+i))
		clients = append(clients, c)
		w.clients.Go(func() {
			if i < ranks {
				c.rank(i, ranks)
			} else {
				c.errands()
			}
		})
	}
	n := 2 + w.chance.IntN(12)
	for range n {
		if !w.sleep(w.chance.between(100*time.Millisecond, 1500*time.Millisecond)) || w.audit.failed() {
			return
		}
		w.fault()
	}
	w.sleep(w.chance.between(0, time.Second))
	w.heal()
	if w.chance.is(0.3) && w.audit.has("rounds") {
		w.dies(clients[w.chance.IntN(ranks)])
	}
	w.finish()
	done := make(chan struct{})
	w.running.Go(func() {
		w.clients.Wait()
		close(done)
	})
	select {
	case <-done:
		w.last()
	case <-time.After(5 * time.Minute):
		w.audit.breaks("H1 all are answered once faults are over", "a call has waited for five minutes")
	case <-w.audit.ended:
	}
}

// last checks what must hold when all clients are done.
func (w *world) last() {
	c := newClient(w, 99, newChance(1, 99))
	defer c.leave()
	for _, p := range w.procs {
		// Checkpoints take no time then. Two concurrent ones would stop the clock of the bubble.
		p.calm.Store(true)
	}
	// A key lives for its TTL and a second at most, and the last takeover may be under way. A longer sleep would hide a
	// clock that stands still after a takeover.
	w.sleep(lastTTL + 3*time.Second)
	w.audit.last(c)
	w.audit.space(w)
}

// fault injects a fault, mostly into the leader.
func (w *world) fault() {
	i := w.chance.IntN(len(w.procs))
	for j, p := range w.procs {
		if p.serving() != nil && w.chance.is(0.7) {
			i = j
		}
	}
	p := w.procs[i]
	switch w.chance.IntN(10) {
	case 0, 1:
		w.audit.count("kills")
		p.kill()
		w.sleep(w.chance.between(0, 2*time.Second))
		w.starts(i)
	case 2, 3, 4:
		w.audit.count("stops")
		p.runs.close()
		w.later(w.chance.between(100*time.Millisecond, 8*time.Second), p.runs.open)
	case 5:
		w.audit.count("cut off")
		p.reach.close()
		w.later(w.chance.between(100*time.Millisecond, 8*time.Second), p.reach.open)
	case 6:
		w.audit.count("outages")
		w.quorum.close()
		w.later(w.chance.between(100*time.Millisecond, 7*time.Second), w.quorum.open)
	case 7:
		p.hangUp()
	case 8:
		w.audit.count("compactions")
		w.etcd.Compact(w.etcd.Revision())
	case 9:
		w.audit.count("ends")
		p.end()
		w.starts(i)
	}
}

// dies kills a rank together with the leader. The next leader detects the loss, since the session
// is not resumed.
func (w *world) dies(c *simClient) {
	w.audit.dies(c.id)
	close(c.dead)
	for i, p := range w.procs {
		if p.serving() != nil {
			p.kill()
			w.starts(i)
		}
	}
}

// heal ends all faults.
func (w *world) heal() {
	w.healed.Store(true)
	w.quorum.open()
	for _, p := range w.procs {
		p.runs.open()
		p.reach.open()
	}
}

// later calls f after d.
func (w *world) later(d time.Duration, f func()) {
	w.running.Go(func() {
		w.sleep(d)
		f()
	})
}

// proc returns process i, or nil while it is not running.
func (w *world) proc(i int) *proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[i%len(w.procs)]
}

// starts starts process i, which has ended.
func (w *world) starts(i int) {
	p := newProc(w, i, w.chance.IntN(1<<30))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[i] = p
}

// sleep waits for d, and returns false if the schedule has ended.
func (w *world) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.over.Done():
		return false
	}
}

// rest returns how long a client pauses between changes.
func (w *world) rest(c *chance) time.Duration {
	if w.quiet {
		return c.between(0, 4*time.Second)
	}
	return c.between(0, 100*time.Millisecond)
}

// chance is a seeded random source that several goroutines may use.
type chance struct{ *rand.Rand }

func newChance(seed, of int) *chance {
	return &chance{rand.New(&lockedSource{pcg: rand.NewPCG(uint64(seed), uint64(of))})}
}

type lockedSource struct {
	mu  sync.Mutex
	pcg *rand.PCG // protected by mu
}

// Uint64 implements rand.Source.
func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}

// is returns true with probability p.
func (c *chance) is(p float64) bool { return c.Float64() < p }

// between returns a duration in [low, high).
func (c *chance) between(low, high time.Duration) time.Duration {
	return low + time.Duration(c.Int64N(int64(high-low)))
}

// gate is open unless it is shut, as its zero value is.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: it is open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// pass waits until g is open, and reports whether it had to wait. ok is false if done was closed
// first.
func (g *gate) pass(done <-chan struct{}) (waited, ok bool) {
	for {
		g.mu.Lock()
		shut := g.shut
		g.mu.Unlock()
		if shut == nil {
			return waited, true
		}
		waited = true
		select {
		case <-shut:
		case <-done:
			return waited, false
		}
	}
}

// broken is a property that does not hold.
type broken struct{ property, how string }

func (b *broken) Error() string { return b.property + " does not hold: " + b.how }

// errCutOff is the error of requests of a process that can no longer reach etcd.
var errCutOff = errors.New("the process has ended")
