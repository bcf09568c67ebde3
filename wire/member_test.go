package wire_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

func TestMember(t *testing.T) {
	m := wire.Member{Node: 1<<63 + 7, PID: 12, Hosts: true, Host: "node-1", Addr: "10.0.0.1:99"}
	b := wire.AppendMember([]byte("front"), &m)
	require.Equal(t, unhex(t, "0700000000000080 0c000000 01 06 6e6f64652d31 31302e302e302e313a3939"), b[5:])
	got, err := wire.ParseMember(b[5:])
	require.NoError(t, err)
	assert.Equal(t, m, got)
	node, hosts := wire.MemberNode(b[5:])
	assert.Equal(t, m.Node, node)
	assert.True(t, hosts)
	node, hosts = wire.MemberNode([]byte("too short"))
	assert.Zero(t, node)
	assert.False(t, hosts)
	for name, bad := range map[string][]byte{
		"empty": nil, "cut": b[5 : 5+13], "no bool": slices.Concat(b[5:5+12], []byte{2}, b[5+13:]), "a name beyond the end": b[5 : 5+15],
		"a name too long": slices.Concat(b[5:5+13], make([]byte, 100)), "an address too long": append(slices.Clone(b[5:]), make([]byte, 255)...),
	} {
		if name == "a name too long" {
			bad[13] = 65
		}
		_, err := wire.ParseMember(bad)
		assert.ErrorContains(t, err, "another version of muster?", name)
	}
}

// TestRankSet compares sets of ranks with lists: of one node, of consecutive ranks, of every nth, and
// random ones.
func TestRankSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	lists := map[string][]int{"none": nil, "one": {5}, "consecutive": {8, 9, 10, 11, 12, 13, 14, 15}, "every third": {1, 4, 7, 10}, "two runs": {0, 1, 2, 6, 7, 8}}
	for range 200 {
		var list []int
		p := rng.Float64()
		for rank := range 40 {
			if rng.Float64() < p {
				list = append(list, rank)
			}
		}
		lists["random"] = list
		for name, list := range lists {
			var s wire.RankSet
			for _, rank := range list {
				s = s.Append(rank)
			}
			if name != "random" {
				require.LessOrEqual(t, len(s), 6, name)
			}
			for rank := range 42 {
				require.Equal(t, slices.Contains(list, rank), s.Has(rank), "%s: %v has %d: %v", name, list, rank, s)
				below, _ := slices.BinarySearch(list, rank)
				require.Equal(t, below, s.Below(rank), "%s: %v below %d: %v", name, list, rank, s)
			}
			require.False(t, s.Has(-1))
		}
	}
}

func TestFormed(t *testing.T) {
	f := wire.Formed{Generation: 7, ID: 1<<63 + 1, Rank: 9, Size: 100, Host: -1, Nodes: 25, Local: wire.RankSet{9, 4, 25}}
	reply := func() *wire.Reply {
		return &wire.Reply{Rev: f.Generation, N: int64(f.Rank) + 1, Nums: wire.AppendFormed(nil, &f)}
	}
	got, err := wire.ParseFormed(reply(), 0)
	require.NoError(t, err)
	assert.Equal(t, f, got)
	same := reply()
	same.N = 0
	got, err = wire.ParseFormed(same, f.Rank)
	require.NoError(t, err)
	assert.Equal(t, f, got)
	for name, damage := range map[string]func(r *wire.Reply){
		"nothing":                   func(r *wire.Reply) { r.Nums = nil },
		"no size":                   func(r *wire.Reply) { r.Nums[0] = 0 },
		"a size beyond ints":        func(r *wire.Reply) { r.Nums[0] = 1 << 40 },
		"a rank below 0":            func(r *wire.Reply) { r.N = -1 },
		"a rank beyond the size":    func(r *wire.Reply) { r.N = 101 },
		"a rank on another node":    func(r *wire.Reply) { r.N = 11 },
		"a host that is no rank":    func(r *wire.Reply) { r.Nums[1] = 100 },
		"no nodes":                  func(r *wire.Reply) { r.Nums[2] = 0 },
		"more nodes than ranks":     func(r *wire.Reply) { r.Nums[2] = 101 },
		"a cut sequence":            func(r *wire.Reply) { r.Nums = r.Nums[:6] },
		"a sequence beyond the end": func(r *wire.Reply) { r.Nums[5] = 5 },
		"a huge sequence":           func(r *wire.Reply) { r.Nums[5] = 1 << 62 },
		"an empty sequence":         func(r *wire.Reply) { r.Nums[5] = 0 },
		"a sequence that stays":     func(r *wire.Reply) { r.Nums[6] = 0 },
		"a rank twice":              func(r *wire.Reply) { r.Nums = append(r.Nums, 84, 1, 1) },
		"other members":             func(r *wire.Reply) { r.Values = make([][]byte, 99) },
	} {
		r := reply()
		damage(r)
		_, err := wire.ParseFormed(r, f.Rank)
		assert.Error(t, err, name)
	}
}

func FuzzParseMember(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 14))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := wire.ParseMember(b)
		if err == nil && !bytes.Equal(b, wire.AppendMember(nil, &m)) {
			t.Errorf("%q is parsed as %+v", b, m)
		}
	})
}
