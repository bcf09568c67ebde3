package store_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

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
	p, addr := relayProcess(t, s, "127.0.0.1:0")
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
			bad, summary := linear(t, h, nil, *linearFor, seed)
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
			bad, summary := linear(t, inProcess(newMemory), wrong, 1500*time.Millisecond, 1)
			t.Log(summary)
			require.NotEmpty(t, bad)
		})
	}
}

// faulty is an engine whose requests go through do, with their number.
type faulty struct {
	store.Engine
	n  atomic.Int64
	do func(ctx context.Context, req *wire.Request, rep *wire.Reply, n int64) error
}

func (f *faulty) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	return f.do(ctx, req, rep, f.n.Add(1))
}

const (
	linearClients = 8
	linearKeys    = 4
	roundTime     = 700 * time.Millisecond // then keys change: short histories are checked fast
)

// linear records histories for the duration d, and returns those that are not linearizable. A wrong
// that is not nil makes the clients faulty.
func linear(t *testing.T, h host, wrong func(store.Engine) store.Engine, d time.Duration, seed uint64) (bad []string, summary string) {
	addr, restart := h(t)
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
		r := &history{began: began, round: round}
		ctx, cancel := context.WithTimeout(t.Context(), roundTime)
		var running sync.WaitGroup
		for i, c := range clients {
			own := rand.New(rand.NewPCG(chance.Uint64(), uint64(i)))
			running.Go(func() { r.client(ctx, i, c, own) })
			trouble := rand.New(rand.NewPCG(chance.Uint64(), uint64(i)))
			running.Go(func() { faults(ctx, proxies[i], trouble) })
		}
		if restart != nil && chance.IntN(3) == 0 {
			running.Go(restart)
		}
		running.Wait()
		cancel()
		total += len(r.done)
		unknown += r.unknown
		bad = append(bad, r.check(seed)...)
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

// history records the calls of some clients for some keys.
type history struct {
	began time.Time
	round int
	next  atomic.Int64

	mu      sync.Mutex // protects the fields below
	done    []porcupine.Operation
	unknown int
}

// kvInput is a call.
type kvInput struct {
	op       wire.Op
	key      string
	old, new string
	absent   bool // the old value of a swap is absent
	reads    int
}

// kvOutput is the result of a call.
type kvOutput struct {
	unknown bool
	there   bool // there is a value
	value   string
	n       int64
	ok      bool // no conflict, no error
}

var kvOps = []wire.Op{wire.OpGet, wire.OpGet, wire.OpSet, wire.OpAdd, wire.OpAdd, wire.OpSwap, wire.OpAppend, wire.OpDelete, wire.OpTake}

// client makes calls until ctx ends.
func (h *history) client(ctx context.Context, id int, s *store.Store, chance *rand.Rand) {
	seen := map[string]kvOutput{}
	for ctx.Err() == nil {
		in := kvInput{op: kvOps[chance.IntN(len(kvOps))], key: fmt.Sprintf("%d/%d", h.round, chance.IntN(linearKeys))}
		in.new = strconv.FormatInt(h.next.Add(1), 10)
		last := seen[in.key]
		in.old, in.absent = last.value, !last.there
		if in.op == wire.OpTake { // it sets an entry with counted reads, which gets then consume
			in.op, in.reads = wire.OpSet, 1+chance.IntN(2)
		}
		within, cancel := context.WithTimeout(ctx, time.Duration(20+chance.IntN(200))*time.Millisecond)
		call := time.Since(h.began)
		out, happened := kvCall(within, s, in)
		cancel()
		h.note(id, in, out, call, happened)
		if in.op == wire.OpGet || in.op == wire.OpSwap {
			seen[in.key] = out
		}
	}
}

// kvCall makes a call. If happened is false, the call certainly had no effect, and is not part of
// the history.
func kvCall(ctx context.Context, s *store.Store, in kvInput) (out kvOutput, happened bool) {
	var err error
	var v []byte
	switch in.op {
	case wire.OpGet:
		v, err = s.Get(ctx, in.key)
		out.there = err == nil
	case wire.OpSet:
		err = s.Set(ctx, in.key, []byte(in.new), &store.SetOptions{Reads: in.reads})
	case wire.OpAdd:
		out.n, err = s.Add(ctx, in.key, 1)
	case wire.OpSwap:
		var old []byte
		if !in.absent {
			old = []byte(in.old)
		}
		v, err = s.Swap(ctx, in.key, old, []byte(in.new))
		out.there = v != nil
	case wire.OpAppend:
		var n int
		n, err = s.Append(ctx, in.key, []byte("7"))
		out.n = int64(n)
	case wire.OpDelete:
		var n int
		n, err = s.Delete(ctx, in.key)
		out.n = int64(n)
	}
	out.value, out.ok = string(v), err == nil
	out.unknown = errors.Is(err, store.ErrUnknown)
	said := err == nil || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrInvalid)
	return out, said || out.unknown
}

func (h *history) note(id int, in kvInput, out kvOutput, call time.Duration, happened bool) {
	if !happened {
		return
	}
	back := int64(time.Since(h.began))
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.unknown {
		h.unknown++
		back = math.MaxInt64 // the effect may come at any later time, or never
		id = linearClients + h.unknown
	}
	h.done = append(h.done, porcupine.Operation{ClientId: id, Input: in, Call: int64(call), Output: out, Return: back})
}

// check returns the histories that are not linearizable.
func (h *history) check(seed uint64) (bad []string) {
	byKey := map[string][]porcupine.Operation{}
	for _, op := range h.done {
		key := op.Input.(kvInput).key
		byKey[key] = append(byKey[key], op)
	}
	for key, ops := range byKey {
		switch porcupine.CheckOperationsTimeout(kvModel, ops, 20*time.Second) {
		case porcupine.Illegal:
			bad = append(bad, fmt.Sprintf("seed %d: the history of %s is not linearizable (%d calls):\n%s", seed, key, len(ops), kvText(ops)))
		case porcupine.Unknown:
			bad = append(bad, fmt.Sprintf("seed %d: the history of %s is too hard to check (%d calls)", seed, key, len(ops)))
		}
	}
	return bad
}

func kvText(ops []porcupine.Operation) (text string) {
	for i, op := range ops {
		if i == 400 {
			return text + "…"
		}
		text += fmt.Sprintf("%v … %v: %s\n", time.Duration(op.Call), time.Duration(op.Return), kvModel.DescribeOperation(op.Input, op.Output))
	}
	return text
}

// kvState is the state of an entry.
type kvState struct {
	there bool
	value string
	reads int
}

var kvModel = porcupine.Model{
	Init: func() any { return kvState{} },
	Step: func(state, input, output any) (bool, any) {
		out := output.(kvOutput)
		next, said := kvStep(state.(kvState), input.(kvInput))
		return out.unknown || said == out, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v gave %+v", input, output) },
}

// kvStep is the sequential model of a store.
func kvStep(s kvState, in kvInput) (next kvState, out kvOutput) {
	out.ok = true
	switch in.op {
	case wire.OpGet:
		if out.there, out.value, out.ok = s.there, s.value, s.there; s.reads > 0 {
			if s.reads--; s.reads == 0 {
				s = kvState{}
			}
		}
	case wire.OpSet:
		s = kvState{true, in.new, in.reads}
	case wire.OpAdd:
		n, err := strconv.ParseInt(s.value, 10, 64)
		if s.there && (err != nil || n == math.MaxInt64) {
			out.ok = false
			break
		}
		s.there, s.value, out.n = true, strconv.FormatInt(n+1, 10), n+1
	case wire.OpSwap:
		if s.there == in.absent || s.there && s.value != in.old {
			out.ok = false
		} else {
			s = kvState{true, in.new, 0}
		}
		out.there, out.value = s.there, s.value
	case wire.OpAppend:
		s.there, s.value = true, s.value+"7"
		out.n = int64(len(s.value))
	case wire.OpDelete:
		if s.there {
			out.n = 1
		}
		s = kvState{}
	}
	return s, out
}

// killed is a host of a durable store in a separate process, which restart kills.
func killed(t *testing.T) (string, func()) {
	p := newProcess(t)
	return p.addr, func() { p.kill(t); p.start(t) }
}
