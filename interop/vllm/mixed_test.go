package vllm_test

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// TestMixed runs two Go ranks and two Python ranks under every verb, with each kind of host.
func TestMixed(t *testing.T) {
	for _, class := range classes {
		t.Run(class, func(t *testing.T) { mixedWith(t, class) })
	}
}

// mixedWith is TestMixed with one class of Python.
func mixedWith(t *testing.T, class string) {
	peers := start(t, class, 2)
	for name, host := range hosts {
		t.Run(name, func(t *testing.T) {
			for name, body := range map[string]func(*testing.T, *mixed){
				"broadcast objects": mixedBroadcast,
				"all-gather":        mixedAllGather,
				"a ring of objects": mixedRing,
				"tensors":           mixedTensors,
				"all-reduce":        mixedAllReduce,
				"barriers":          mixedBarriers,
			} {
				t.Run(name, func(t *testing.T) { body(t, mix(t, host(t), peers, world{})) })
			}
			t.Run("two groups of one store", func(t *testing.T) {
				at := host(t)
				mixedBeside(t, mix(t, at, peers, world{}), at)
			})
			t.Run("expired", func(t *testing.T) {
				mixedExpiry(t, mix(t, host(t), peers, world{expiration: time.Second}))
			})
		})
	}
	t.Run("late", func(t *testing.T) {
		mixedLate(t, mix(t, hostedByGo(t), peers, world{timeout: 2 * time.Second}))
	})
	t.Run("death", func(t *testing.T) { // last, since it kills a peer
		mixedDeath(t, mix(t, hostedByGo(t), peers, world{timeout: time.Hour}))
	})
}

// objects are Python values, as source text, and their Go equivalents. Python ranks print what they receive, or
// an expression of it, if its text is not its source.
var objects = []struct {
	python      string
	value       any
	print, want string
}{
	{python: "None"},
	{python: "True", value: true},
	{python: "-42", value: int64(-42)},
	{python: "1180591620717411303424", value: new(big.Int).Lsh(big.NewInt(1), 70)},
	{python: "1.5", value: 1.5},
	{python: "'größer'", value: "größer"},
	{python: `b'\x00\xff'`, value: []byte{0, 255}},
	{python: "[1, [2, 'three'], []]", value: []any{int64(1), []any{int64(2), "three"}, []any{}}},
	{python: "(1, (), 'x')", value: pickle.Tuple{int64(1), pickle.Tuple{}, "x"}},
	{python: "{'a': 1, 2: {'b': None}}", value: pickle.Dict{{Key: "a", Value: int64(1)}, {Key: int64(2), Value: pickle.Dict{{Key: "b", Value: nil}}}}},
	{
		"np.array([[1, 2, 3], [4, 5, 6]], 'int16')",
		pickle.Array{Tensor: tensor.From([]int16{1, 2, 3, 4, 5, 6}, 2, 3)},
		"(str(v.dtype), v.tolist())", "('int16', [[1, 2, 3], [4, 5, 6]])",
	},
	{"nccl(b'muster' * 20 + bytes(8))", pickle.NcclUniqueID([]byte(strings.Repeat("muster", 20) + "\x00\x00\x00\x00\x00\x00\x00\x00")), "bytes(v) == b'muster' * 20 + bytes(8)", "True"},
}

func mixedBroadcast(t *testing.T, m *mixed) {
	for _, v := range objects {
		for src := range 4 {
			got := fmt.Sprintf("(lambda v: %s)(g['it'].broadcast_obj(%s if RANK == %d else None, %d))", cmp.Or(v.print, "v"), v.python, src, src)
			m.step(t, got, cmp.Or(v.want, v.python), func(g *vllm.Group) (bool, any, error) {
				got, err := vllm.BroadcastObj(m.ctx, g, src, v.value)
				return reflect.DeepEqual(got, v.value), got, err
			})
		}
	}
}

func mixedAllGather(t *testing.T, m *mixed) {
	for round := range 3 {
		m.step(t, fmt.Sprintf("g['it'].all_gather_obj({'rank': RANK, 'round': %d})", round),
			fmt.Sprintf("[{'rank': 0, 'round': %[1]d}, {'rank': 1, 'round': %[1]d}, {'rank': 2, 'round': %[1]d}, {'rank': 3, 'round': %[1]d}]", round),
			func(g *vllm.Group) (bool, any, error) {
				got, err := vllm.AllGatherObj(m.ctx, g, pickle.Dict{{Key: "rank", Value: int64(g.Rank())}, {Key: "round", Value: int64(round)}})
				for rank, v := range got {
					if !reflect.DeepEqual(v, pickle.Dict{{Key: "rank", Value: int64(rank)}, {Key: "round", Value: int64(round)}}) {
						return false, got, err
					}
				}
				return len(got) == 4, got, err
			})
	}
}

// mixedRing sends to the next rank, and receives from the previous one: objects and tensors
// alternate, and are counted together.
func mixedRing(t *testing.T, m *mixed) {
	for round := range 3 {
		m.step(t, fmt.Sprintf("(g['it'].send_obj(('from', RANK, %d), (RANK + 1) %% 4), g['it'].recv_obj((RANK + 3) %% 4))[1] == ('from', (RANK + 3) %% 4, %d)", round, round), "True",
			func(g *vllm.Group) (bool, any, error) {
				if err := vllm.SendObj(m.ctx, g, (g.Rank()+1)%4, pickle.Tuple{"from", g.Rank(), round}); err != nil {
					return false, nil, err
				}
				src := (g.Rank() + 3) % 4
				got, err := vllm.RecvObj[any](m.ctx, g, src)
				return reflect.DeepEqual(got, pickle.Tuple{"from", int64(src), int64(round)}), got, err
			})
		m.step(t, "(g['it'].send(torch.tensor([RANK, 7]), (RANK + 1) % 4), g['it'].recv(torch.zeros(2, dtype=torch.int64), (RANK + 3) % 4))[1].tolist() == [(RANK + 3) % 4, 7]", "True",
			func(g *vllm.Group) (bool, any, error) {
				if err := g.Send(m.ctx, (g.Rank()+1)%4, tensor.From([]int64{int64(g.Rank()), 7}, 2)); err != nil {
					return false, nil, err
				}
				src := (g.Rank() + 3) % 4
				got, err := g.Recv(m.ctx, src)
				return tensor.Equal(got, tensor.From([]int64{int64(src), 7}, 2)), got, err
			})
	}
}

func mixedTensors(t *testing.T, m *mixed) {
	want := tensor.From([]float32{0.5, -1, 3e38, 0}, 2, 2)
	for src := range 4 {
		m.step(t, fmt.Sprintf("g['it'].broadcast(torch.tensor([[0.5, -1], [3e38, 0]]) if RANK == %d else None, %d).equal(torch.tensor([[0.5, -1], [3e38, 0]]))", src, src), "True",
			func(g *vllm.Group) (bool, any, error) {
				var mine *tensor.Tensor
				if g.Rank() == src {
					mine = want
				}
				got, err := g.Broadcast(m.ctx, src, mine)
				return tensor.Equal(got, want), got, err
			})
		m.step(t, fmt.Sprintf("g['it'].broadcast_obj('%d' if RANK == %d else None, %d)", src, src, src), fmt.Sprintf("'%d'", src),
			func(g *vllm.Group) (bool, any, error) { // of the same count
				got, err := vllm.BroadcastObj(m.ctx, g, src, fmt.Sprint(src))
				return got == fmt.Sprint(src), got, err
			})
	}
}

// mixedAllReduce compares bits with torch's result of the same operation: 16-bit floats are rounded
// after each step.
func mixedAllReduce(t *testing.T, m *mixed) {
	const floats, ints = "1.0009765625 + r, 1000.3 * r, -r", "1 + r, 60 * r, 200 - r"
	for dtype, numbers := range map[string]string{
		"float64": floats, "float32": floats, "float16": floats, "bfloat16": floats, "int64": ints, "int32": ints, "uint8": ints,
	} {
		for name, op := range map[string]vllm.Op{"SUM add": vllm.Sum, "PRODUCT mul": vllm.Product, "MAX maximum": vllm.Max, "MIN minimum": vllm.Min} {
			name, function, _ := strings.Cut(name, " ")
			all := fmt.Sprintf("[torch.tensor([%s], dtype=torch.%s) for r in range(4)]", numbers, dtype)
			together := fmt.Sprintf("functools.reduce(torch.%s, %s)", function, all)
			text, err := m.peers[3].do(fmt.Sprintf("pickle.dumps([*%s, %s]).hex()", all, together))
			require.NoError(t, err)
			b, err := hex.DecodeString(strings.Trim(text, "'"))
			require.NoError(t, err)
			var values []any
			require.NoError(t, pickle.ParseInto(b, &values))
			m.step(t, fmt.Sprintf("g['it'].all_reduce(%s[RANK], torch.distributed.ReduceOp.%s).equal(%s)", all, name, together), "True", func(g *vllm.Group) (bool, any, error) {
				got, err := g.AllReduce(m.ctx, values[g.Rank()].(*tensor.Tensor), op)
				return tensor.Equal(got, values[4].(*tensor.Tensor)), got, err
			})
		}
	}
}

func mixedBarriers(t *testing.T, m *mixed) {
	for range 6 {
		m.step(t, "g['it'].barrier()", "None", func(g *vllm.Group) (bool, any, error) { return true, nil, g.Barrier(m.ctx) })
	}
}

// mixedExpiry checks that late Go ranks get the error that an object has expired, if Python sent
// it, and deleted it when it sent again.
func mixedExpiry(t *testing.T, m *mixed) {
	m.step(t, "None if RANK != 3 else (g['it'].broadcast_obj('old', 3), time.sleep(1.1), g['it'].broadcast_obj('new', 3)) and None", "None",
		func(*vllm.Group) (bool, any, error) { return true, nil, nil })
	for _, g := range m.ranks {
		if g != nil {
			_, err := vllm.BroadcastObj[any](m.ctx, g, 3, nil)
			failure(t, err, pgroup.ErrExpired, `"broadcast_from/3/0"`)
		}
	}
}

// mixedBeside checks two groups of the same ranks and the same store, one of them below a prefix.
func mixedBeside(t *testing.T, it *mixed, at place) {
	beside := make([]*vllm.Group, len(it.ranks))
	it.step(t, "g.update(beside=beside(g['it'], 'beside'))", "None", func(g *vllm.Group) (bool, any, error) {
		b, err := vllm.Join(it.ctx, vllm.Config{Rank: g.Rank(), Size: g.Size(), Store: store.Prefix(at.reach(g.Rank()), "beside/"), Shared: true})
		beside[g.Rank()] = b
		return err == nil, nil, err
	})
	for rank, g := range beside {
		if g != nil {
			t.Cleanup(func() { _ = g.Close() })
		}
		require.Equal(t, it.ranks[rank] == nil, g == nil)
	}
	it.step(t, "[g['beside'].broadcast_obj(RANK, 3), g['it'].broadcast_obj(-RANK, 3)]", "[3, -3]", func(g *vllm.Group) (bool, any, error) {
		one, err := vllm.BroadcastObj(it.ctx, beside[g.Rank()], 3, g.Rank())
		two, err2 := vllm.BroadcastObj(it.ctx, g, 3, -g.Rank())
		return one == 3 && two == -3, []int{one, two}, errors.Join(err, err2)
	})
	it.step(t, "g['beside'].barrier()", "None", func(g *vllm.Group) (bool, any, error) { return true, nil, beside[g.Rank()].Barrier(it.ctx) })
}

// mixedLate checks that a late Python rank does not pass a barrier that the Go ranks have given up.
func mixedLate(t *testing.T, m *mixed) {
	const late = 3
	together(late, func(rank int) {
		if g := m.ranks[rank]; g != nil {
			re, _ := errors.AsType[*pgroup.RankError](g.Barrier(within(t, time.Second)))
			check(t, nil, re != nil && slices.Equal(re.Missing, []int{late}) && strings.Contains(re.Error(), "or a Python rank"), re)
			return
		}
		_, err := m.peers[rank].do("g['it'].barrier(1.0)")
		check(t, nil, err != nil && strings.Contains(err.Error(), "timed out"), err)
	})
	_, err := m.peers[late].do("g['it'].barrier(1.0)")
	require.ErrorContains(t, err, "timed out")
}

// mixedDeath checks that when a Python rank is killed, Python ranks that wait for its broadcast get
// the error at once, if the server knows the owner of each key; Go ranks name it in their errors.
func mixedDeath(t *testing.T, m *mixed) {
	m.step(t, "g['it'].all_gather_obj(RANK)", "[0, 1, 2, 3]", func(g *vllm.Group) (bool, any, error) {
		got, err := vllm.AllGatherObj(m.ctx, g, g.Rank())
		return slices.Equal(got, []int{0, 1, 2, 3}), got, err
	})
	require.NoError(t, m.peers[3].Cmd.Process.Kill())
	together(3, func(rank int) {
		if g := m.ranks[rank]; g != nil {
			_, err := vllm.AllGatherObj(within(t, 2*time.Second), g, rank)
			re, _ := errors.AsType[*pgroup.RankError](err)
			check(t, nil, re != nil && slices.Equal(re.Missing, []int{3}), err)
			return
		}
		got, err := m.peers[rank].do("g['it'].all_gather_obj(0)") // its timeout is an hour
		check(t, nil, err != nil, got)
	})
}
