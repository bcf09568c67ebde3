package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/wire"
)

// cluster is three members, each behind a proxy for the others and one for its clients.
type cluster struct {
	members        []*member
	peers, clients []*testcluster.Proxy
}

func threeMembers(t *testing.T) *cluster {
	c := &cluster{}
	c.members = etcdBehind(t, 3, func(peer string) string {
		c.peers = append(c.peers, testcluster.NewProxy(t, peer))
		return c.peers[len(c.peers)-1].Addr()
	})
	for _, m := range c.members {
		c.clients = append(c.clients, testcluster.NewProxy(t, m.client))
	}
	return c
}

func (c *cluster) addrs() (addrs []string) {
	for _, p := range c.clients {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// leader waits until there is one, and returns its number.
func (c *cluster) leader(t *testing.T) int {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: addresses(c.members), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()
	leader := -1
	require.Eventually(t, func() bool {
		for i, m := range c.members {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			s, err := client.Status(ctx, m.client)
			cancel()
			if err == nil && s.Leader == s.Header.MemberId && s.Leader != 0 {
				leader = i
				return true
			}
		}
		return false
	}, patience, 20*time.Millisecond)
	return leader
}

// fault is what happens to a cluster, and how that ends.
type fault struct {
	name string
	do   func(t *testing.T, c *cluster, leader int) (undo func())
}

var faults = []fault{
	{"kill -9 of the leader", func(t *testing.T, c *cluster, leader int) func() {
		m := c.members[leader]
		m.kill()
		return func() { m.start(t) }
	}},
	{"a leader that stands still", func(t *testing.T, c *cluster, leader int) func() {
		m := c.members[leader]
		testcluster.Freeze(t, m)
		return func() { testcluster.Thaw(t, m) }
	}},
	{"a leader that is cut off", func(_ *testing.T, c *cluster, leader int) func() { return c.cut(leader) }},
	{"a follower that is cut off", func(_ *testing.T, c *cluster, leader int) func() { return c.cut((leader + 1) % 3) }},
}

// cut has nobody reach a member: what is sent to it goes nowhere.
func (c *cluster) cut(i int) func() {
	for _, p := range []*testcluster.Proxy{c.peers[i], c.clients[i]} {
		p.Blackhole(true)
		p.Refuse(true)
	}
	return func() {
		for _, p := range []*testcluster.Proxy{c.peers[i], c.clients[i]} {
			p.Refuse(false)
			p.Blackhole(false)
			p.Cut(testcluster.RST)
		}
	}
}

// TestFaults has ranks in barriers and all-gathers, one after the other, while members fail: all of them succeed on all ranks, with what
// each rank gave, and they go on while a member is away.
func TestFaults(t *testing.T) {
	const n = 4
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			c := threeMembers(t)
			leader := c.leader(t)
			o := &etcdstore.Options{Root: newRoot(), Session: 5 * time.Second, Mend: patience}
			ranks := make([]*store.Store, n)
			for i := range ranks {
				ranks[i] = store.New(dial(t, c.addrs(), o))
			}
			var rounds atomic.Int64
			var over atomic.Bool
			var running sync.WaitGroup
			for i := range n {
				running.Go(func() {
					if err := roundsOf(t.Context(), ranks[i], i, n, &rounds, &over); err != nil {
						t.Errorf("rank %d: %v", i, err)
						over.Store(true)
					}
				})
			}
			waitFor(t, &rounds, &over, 50)
			undo := f.do(t, c, leader)
			waitFor(t, &rounds, &over, 50) // while it is away
			undo()
			waitFor(t, &rounds, &over, 50)
			over.Store(true)
			running.Wait()
		})
	}
}

// waitFor waits for some more rounds, of all ranks together.
func waitFor(t *testing.T, rounds *atomic.Int64, over *atomic.Bool, more int64) {
	t.Helper()
	until := rounds.Load() + more
	began := time.Now()
	assert.Eventually(t, func() bool { return rounds.Load() >= until || over.Load() }, patience, 5*time.Millisecond, "no more rounds")
	t.Logf("%d rounds in %v", more, time.Since(began).Round(time.Millisecond))
}

// roundsOf are the rounds of one rank: an all-gather of what nobody else gives, and a barrier. Rank 0 says when it is the last one.
func roundsOf(ctx context.Context, s *store.Store, rank, n int, rounds *atomic.Int64, over *atomic.Bool) error {
	ctx, cancel := context.WithTimeout(ctx, 4*patience)
	defer cancel()
	roll, err := s.Join(ctx, wire.Contribution{Group: "g", Rank: rank, Size: n}, nil)
	if err != nil {
		return err
	}
	c := wire.Contribution{Generation: roll.Generation, Rank: rank, Root: -1}
	for {
		last := rank == 0 && over.Load()
		c.Seq, c.Verb, c.Want = c.Seq+1, "all-gather", wire.WantAll
		values, err := s.Collect(ctx, c, fmt.Appendf(nil, "%d of %d %t", c.Seq, rank, last))
		if err != nil {
			return err
		}
		for i, v := range values {
			if string(v) != fmt.Sprintf("%d of %d true", c.Seq, i) && string(v) != fmt.Sprintf("%d of %d false", c.Seq, i) {
				return fmt.Errorf("record %d: rank %d has %q of rank %d", c.Seq, rank, v, i)
			}
		}
		c.Seq, c.Verb, c.Want = c.Seq+1, "barrier", wire.WantNothing
		if _, err := s.Collect(ctx, c, nil); err != nil {
			return err
		}
		rounds.Add(1)
		if string(values[0]) == fmt.Sprintf("%d of 0 true", c.Seq-1) {
			return nil
		}
	}
}

// bounded is the test's context, which does not last for ever.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	t.Cleanup(cancel)
	return ctx
}

// TestVerdictsUnderFaults has ranks in barriers with deadlines that may pass, while members fail: of each record all who hear a verdict
// hear the same.
func TestVerdictsUnderFaults(t *testing.T) {
	const n, records = 4, 60
	c := threeMembers(t)
	o := &etcdstore.Options{Root: newRoot(), Session: 20 * time.Second, Attempt: 300 * time.Millisecond, Mend: patience}
	outcomes := make([][]error, n)
	var running sync.WaitGroup
	for i := range n {
		s := store.New(dial(t, c.addrs(), o))
		running.Go(func() {
			roll, err := s.Join(bounded(t), wire.Contribution{Group: "g", Rank: i, Size: n}, nil)
			if !assert.NoError(t, err) {
				outcomes[i] = make([]error, records)
				return
			}
			for seq := uint64(1); seq <= records; seq++ {
				ctx, cancel := context.WithTimeout(bounded(t), time.Duration(5+rand.IntN(300))*time.Millisecond)
				_, err := s.Collect(ctx, wire.Contribution{Generation: roll.Generation, Rank: i, Seq: seq, Root: -1, Verb: "barrier", Want: wire.WantNothing}, nil)
				cancel()
				outcomes[i] = append(outcomes[i], err)
			}
		})
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	for i := 0; ; i++ {
		undo := faults[i%len(faults)].do(t, c, c.leader(t))
		<-time.After(time.Second)
		undo()
		select {
		case <-done:
			compareVerdicts(t, outcomes)
			return
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func compareVerdicts(t *testing.T, outcomes [][]error) {
	t.Helper()
	count := map[string]int{}
	for seq := range outcomes[0] {
		var first *string
		for rank := range outcomes {
			err := outcomes[rank][seq]
			said := "success"
			if e, ok := errors.AsType[*store.Error](err); ok && e.Verdict != nil {
				said = fmt.Sprintf("%+v", *e.Verdict)
			} else if err != nil {
				require.ErrorIs(t, err, store.ErrUnknown, "record %d, rank %d", seq+1, rank)
				count["unknown"]++
				continue
			}
			if first == nil {
				first = &said
			}
			require.Equal(t, *first, said, "record %d, rank %d", seq+1, rank)
			count[said[:7]]++
		}
	}
	t.Log(count)
}

// TestLinearizable checks the histories of clients of which each reaches the members by its own way, while members fail.
func TestLinearizable(t *testing.T) {
	const clients = 5
	c := threeMembers(t)
	o := &etcdstore.Options{Root: newRoot(), Session: 20 * time.Second, Attempt: 300 * time.Millisecond, Mend: patience}
	var mu sync.Mutex
	var history []porcupine.Operation
	began := time.Now()
	over := began.Add(8 * time.Second)
	var running sync.WaitGroup
	for i := range clients {
		s := store.New(dial(t, c.addrs(), o))
		running.Go(func() {
			for time.Now().Before(over) {
				in := registerInput{key: fmt.Sprint("key ", rand.IntN(3)), op: rand.IntN(4), arg: rand.IntN(1000)}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rand.IntN(2000))*time.Millisecond)
				call := time.Since(began).Nanoseconds()
				out, happened := in.do(ctx, s)
				cancel()
				if !happened {
					continue
				}
				ret := time.Since(began).Nanoseconds()
				if out.unknown {
					ret = int64(1 << 62)
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: i, Input: in, Call: call, Output: out, Return: ret})
				mu.Unlock()
				if out.unknown { // nothing that this client does comes before its outcome is known
					i += clients
				}
				<-time.After(time.Duration(rand.IntN(10)) * time.Millisecond)
			}
		})
	}
	for i := 0; time.Now().Before(over); i++ {
		undo := faults[i%len(faults)].do(t, c, c.leader(t))
		<-time.After(700 * time.Millisecond)
		undo()
		<-time.After(300 * time.Millisecond)
	}
	running.Wait()
	unknown := 0
	for _, op := range history {
		if op.Output.(registerOutput).unknown {
			unknown++
		}
	}
	t.Logf("%d operations, %d of them with an unknown outcome", len(history), unknown)
	require.Greater(t, len(history), 100)
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(register, history, patience))
}

// registerInput is an operation on a key: get, set, add or append.
type registerInput struct {
	key     string
	op, arg int
}

type registerOutput struct {
	value   string // got, or the counter, or the length; "-" is nothing, or refused
	unknown bool
}

// do reports whether it may have happened.
func (in registerInput) do(ctx context.Context, s *store.Store) (out registerOutput, happened bool) {
	var err error
	switch in.op {
	case 0:
		var v []byte
		v, err = s.Get(ctx, in.key)
		out.value = string(v)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return out, false
		}
	case 1:
		err = s.Set(ctx, in.key, []byte(strconv.Itoa(in.arg)), nil)
	case 2:
		var n int64
		n, err = s.Add(ctx, in.key, int64(in.arg))
		out.value = fmt.Sprint(n)
	case 3:
		var n int
		n, err = s.Append(ctx, in.key, []byte("1"))
		out.value = fmt.Sprint(n)
	}
	switch {
	case errors.Is(err, store.ErrUnknown):
		return registerOutput{unknown: true}, true
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		out.value = "-"
	case err != nil:
		return out, false
	}
	return out, true
}

// register is what a key is: its value, or nothing.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(registerInput).key
			keys[key] = append(keys[key], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range keys {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		was, in, out := state.(string), input.(registerInput), output.(registerOutput)
		now, says := in.step(was)
		return out.unknown || says == out.value, now
	},
	Equal: func(a, b any) bool { return a == b },
}

// step is what an operation makes of a value, and says. Values are never empty but for "there is none".
func (in registerInput) step(was string) (now, says string) {
	switch in.op {
	case 0:
		if was == "" {
			return was, "-"
		}
		return was, was
	case 1:
		return strconv.Itoa(in.arg), ""
	case 2:
		n, err := strconv.ParseInt(was, 10, 64)
		if err != nil && was != "" {
			return was, "-"
		}
		if n > 1<<62 {
			return was, "-"
		}
		n += int64(in.arg)
		return fmt.Sprint(n), fmt.Sprint(n)
	}
	now = was + "1"
	return now, fmt.Sprint(len(now))
}
