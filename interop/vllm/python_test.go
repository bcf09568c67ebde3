package vllm_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/store"
)

// classes are those that have vLLM's interface: see testdata/peer.py. The second is vLLM's own.
var classes = []string{"standin", "vllm"}

// peer is a Python process that evaluates expressions.
type peer struct{ *testcluster.Peer }

// start starts n peers of a class, which takes some seconds in which they load torch.
func start(t *testing.T, class string, n int) []*peer {
	t.Helper()
	needs := []string{"numpy"}
	if class == "vllm" {
		needs = append(needs, "vllm") // PYTHONPATH says where it is
	}
	exe := testcluster.Torch(t, needs...)
	peers := make([]*peer, n)
	for i := range peers {
		cmd := exec.CommandContext(within(t, 2*time.Minute), exe, "testdata/peer.py", class)
		cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
		peers[i] = &peer{testcluster.NewPeer(t, cmd)}
	}
	for _, peer := range peers {
		torch, err := peer.Line()
		require.NoError(t, err)
		t.Logf("torch %s", torch)
	}
	return peers
}

// do lets the peer evaluate an expression, and returns the value, as repr prints it.
func (p *peer) do(expression string) (string, error) {
	line, err := json.Marshal(expression)
	if err != nil {
		return "", err
	}
	text, err := p.Ask(string(line))
	if err != nil {
		return "", err
	}
	var answer struct{ Value, Error string }
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return "", err
	}
	if answer.Error != "" {
		return "", errors.New(answer.Error)
	}
	return answer.Value, nil
}

// mixed is a group of Go and Python ranks.
type mixed struct {
	ctx   context.Context
	ranks []*vllm.Group // nil for Python ranks
	peers []*peer       // nil for Go ranks
}

// place is the store of a mixed group of 4.
type place struct {
	addr  string
	ofGo  []int
	reach func(rank int) *store.Store // for a Go rank
}

// hosts are the kinds of host: of the other ranks two are Go and two are Python.
var hosts = map[string]func(t *testing.T) place{
	"rank 0 of Go":     hostedByGo,
	"rank 0 of Python": hostedByPython,
}

func hostedByGo(t *testing.T) place {
	l := testcluster.Listen(t)
	engine := new(store.Memory)
	protocol := &tcpstore.Protocol{Ranks: []string{"broadcast_from/{rank}/*"}}
	testcluster.ServeAt(t, &store.Server{Engine: engine, Protocol: protocol}, l)
	at := map[int]*store.Store{0: store.New(engine), 2: dial(t, l)}
	return place{l.Addr().String(), []int{0, 2}, func(rank int) *store.Store { return at[rank] }}
}

// hostedByPython lets the port be probed, closed and bound again, as users of vLLM do.
func hostedByPython(t *testing.T) place {
	l := testcluster.Listen(t)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	var mu sync.Mutex
	at := map[int]*store.Store{}
	return place{addr, []int{1, 2}, func(rank int) *store.Store {
		mu.Lock()
		defer mu.Unlock()
		if at[rank] == nil {
			c, err := tcpstore.Dial(within(t, time.Minute), addr, nil)
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
				return nil
			}
			at[rank] = store.New(c)
			t.Cleanup(func() { _ = c.Close() })
		}
		return at[rank]
	}}
}

// world is the configuration of a mixed group.
type world struct {
	expiration time.Duration // default 1 h
	timeout    time.Duration // the timeout of its peers; default 1 min
}

// mix makes a mixed group. Its peers are reused: they know it as g['it'].
func mix(t *testing.T, at place, peers []*peer, w world) *mixed {
	t.Helper()
	const size = 4
	w = world{cmp.Or(w.expiration, time.Hour), cmp.Or(w.timeout, time.Minute)}
	m := &mixed{ctx: within(t, time.Minute), ranks: make([]*vllm.Group, size), peers: make([]*peer, size)}
	ip, port, err := net.SplitHostPort(at.addr)
	require.NoError(t, err)
	free := slices.Clone(peers)
	for rank := range size {
		if !slices.Contains(at.ofGo, rank) {
			m.peers[rank], free = free[0], free[1:]
		}
	}
	together(size, func(rank int) {
		if p := m.peers[rank]; p != nil {
			_, err := p.do(fmt.Sprintf("g.update(it=create(%q, %s, %d, %d, %v, %v))", ip, port, rank, size, w.expiration.Seconds(), w.timeout.Seconds()))
			check(t, err, true, nil)
			return
		}
		var err error
		m.ranks[rank], err = vllm.Join(m.ctx, vllm.Config{Rank: rank, Size: size, Store: at.reach(rank), DataExpiration: w.expiration})
		check(t, err, true, nil)
	})
	for _, g := range m.ranks {
		if g != nil {
			t.Cleanup(func() { _ = g.Close() })
		}
	}
	require.False(t, t.Failed())
	return m
}

// step lets every rank do its part at once: Python ranks evaluate an expression whose value must be
// want, as repr prints it, with RANK for the rank.
func (m *mixed) step(t *testing.T, expression, want string, part func(g *vllm.Group) (ok bool, got any, err error)) {
	t.Helper()
	together(len(m.ranks), func(rank int) {
		if g := m.ranks[rank]; g != nil {
			ok, got, err := part(g)
			if err != nil || !ok {
				t.Errorf("rank %d, of Go: got %#v, %v", rank, got, err)
			}
			return
		}
		own := strings.NewReplacer("RANK", fmt.Sprint(rank))
		got, err := m.peers[rank].do(own.Replace(expression))
		if err != nil || got != own.Replace(want) {
			t.Errorf("rank %d, of Python: %s: got %s, %v, want %s", rank, own.Replace(expression), got, err, own.Replace(want))
		}
	})
	require.False(t, t.Failed())
}

// check reports errors from goroutines of a test.
func check(t *testing.T, err error, ok bool, got any) {
	t.Helper()
	if err != nil || !ok {
		t.Errorf("got %v, %v", got, err)
	}
}
