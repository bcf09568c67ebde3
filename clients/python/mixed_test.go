package python_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// agree runs a verb on all ranks at once, with the arguments of each for Python, and requires the results
// that each is to have.
func (m *mixed) agree(verb string, inGo func(g *pgroup.Group) (any, error), args func(r int) []any, want func(r int) any) {
	m.t.Helper()
	same := func(r int, got any, err error) error {
		if err != nil {
			return err
		}
		wanted, _ := json.Marshal(want(r))
		shown, err := json.Marshal(got)
		assert.JSONEq(m.t, string(wanted), string(shown), "rank %d: %s", r, verb)
		return err
	}
	m.each(func(r int) error {
		got, err := inGo(m.gs[r])
		return same(r, got, err)
	}, func(r int, p *rank) error {
		got, err := p.do("group", verb, args(r)...)
		return same(r, got, err)
	})
}

// TestEveryVerbAcrossLanguages runs each verb on two Go ranks and two Python ranks.
func TestEveryVerbAcrossLanguages(t *testing.T) {
	type config struct {
		Name   string
		Layers []int
		Raw    []byte
		Rate   float64
	}
	ctx := bounded(t)
	m := create(t, 4, testcluster.Serve(t, new(store.Server)), nil, pgroup.Config{})
	is := func(t *testing.T, want any, verb string, args ...any) func(int, *rank) error {
		return func(r int, p *rank) error {
			got, err := p.do("group", verb, args...)
			if err == nil {
				assert.EqualValues(t, want, got, "rank %d: %s", r, verb)
			}
			return err
		}
	}

	t.Run("barrier", func(*testing.T) {
		m.agree("barrier", func(g *pgroup.Group) (any, error) { return nil, g.Barrier(ctx) },
			func(int) []any { return nil }, func(int) any { return nil })
	})
	t.Run("all_gather", func(*testing.T) {
		m.agree("all_gather", func(g *pgroup.Group) (any, error) { return pgroup.AllGather(ctx, g, fmt.Sprint("rank ", g.Rank())) },
			func(r int) []any { return []any{fmt.Sprint("rank ", r)} },
			func(int) any { return []string{"rank 0", "rank 1", "rank 2", "rank 3"} })
	})
	t.Run("gather", func(*testing.T) {
		for root := range 4 {
			m.agree("gather", func(g *pgroup.Group) (any, error) { return pgroup.Gather(ctx, g, root, g.Rank()*100) },
				func(r int) []any { return []any{r * 100, root} },
				func(r int) any { return map[bool][]int{true: {0, 100, 200, 300}}[r == root] })
		}
	})
	t.Run("scatter", func(*testing.T) {
		parts := []string{"a", "b", "c", "d"}
		for root := range 4 {
			m.agree("scatter", func(g *pgroup.Group) (any, error) { return pgroup.Scatter(ctx, g, root, parts) },
				func(int) []any { return []any{parts, root} },
				func(r int) any { return parts[r] })
		}
	})
	t.Run("all_to_all", func(*testing.T) {
		parts := func(r int) []int { return []int{10 * r, 10*r + 1, 10*r + 2, 10*r + 3} }
		m.agree("all_to_all", func(g *pgroup.Group) (any, error) { return pgroup.AllToAll(ctx, g, parts(g.Rank())) },
			func(r int) []any { return []any{parts(r)} },
			func(r int) any { return []int{r, 10 + r, 20 + r, 30 + r} })
	})
	t.Run("all_reduce", func(*testing.T) {
		for op, want := range map[pgroup.Op][]int64{pgroup.Sum: {-10, 6}, pgroup.Min: {-4, 0}, pgroup.Max: {-1, 3}, pgroup.Product: {24, 0}, pgroup.Avg: {-2, 1}} {
			m.agree("all_reduce", func(g *pgroup.Group) (any, error) {
				return pgroup.AllReduce(ctx, g, op, int64(-g.Rank()-1), int64(g.Rank()))
			}, func(r int) []any { return []any{[]int{-r - 1, r}, op.String()} },
				func(int) any { return want })
		}
	})
	t.Run("broadcast of a struct from Go", func(t *testing.T) {
		sent := config{"block.0", []int{1, 200, -70000}, []byte("raw\x00"), 0.5}
		want := map[string]any{"Name": "block.0", "Layers": []any{1., 200., -70000.}, "Raw": raw("raw\x00"), "Rate": 0.5}
		m.each(func(r int) error {
			got, err := pgroup.Broadcast(ctx, m.gs[r], 0, sent)
			assert.Equal(t, sent, got)
			return err
		}, is(t, want, "broadcast", kw{"root": 0}))
	})
	t.Run("broadcast of a dict from Python", func(t *testing.T) {
		sent := kw{"Name": "é", "Layers": []int{3}, "Raw": raw("x"), "Rate": 2}
		m.each(func(r int) error {
			got, err := pgroup.Broadcast(ctx, m.gs[r], 3, config{})
			assert.Equal(t, config{"é", []int{3}, []byte("x"), 2}, got)
			return err
		}, func(r int, p *rank) error {
			_, err := p.do("group", "broadcast", sent, 3)
			return err
		})
	})
	t.Run("send and recv", func(t *testing.T) {
		m.each(func(r int) error {
			if err := pgroup.Send(ctx, m.gs[r], r+1, config{Name: "from Go"}); err != nil {
				return err
			}
			if err := pgroup.Send(ctx, m.gs[r], r+1, []byte("bytes of Go")); err != nil {
				return err
			}
			got, err := pgroup.Recv[config](ctx, m.gs[r], r+1)
			assert.Equal(t, config{Name: "from Python"}, got)
			if err != nil {
				return err
			}
			b, err := pgroup.Recv[[]byte](ctx, m.gs[r], r+1)
			assert.Equal(t, "bytes of Python", string(b))
			return err
		}, func(r int, p *rank) error {
			if err := is(t, nil, "send", kw{"obj": kw{"Name": "from Python"}, "dst": r - 1})(r, p); err != nil {
				return err
			}
			if err := is(t, nil, "send", raw("bytes of Python"), r-1)(r, p); err != nil {
				return err
			}
			if err := is(t, map[string]any{"Name": "from Go", "Layers": nil, "Raw": nil, "Rate": 0.}, "recv", r-1)(r, p); err != nil {
				return err
			}
			return is(t, raw("bytes of Go"), "recv", r-1)(r, p)
		})
	})
	t.Run("facts", func(t *testing.T) {
		for r, g := range m.gs {
			if g != nil {
				members, err := g.Members(ctx)
				require.NoError(t, err)
				require.Equal(t, 1, g.NodeCount())
				require.Equal(t, m.ps[1].Cmd.Process.Pid, members[1].PID)
				require.Equal(t, 3, members[3].LocalRank)
				continue
			}
			facts := m.ps[r].must("new", "facts").([]any)
			require.Equal(t, []any{float64(r), 4., "world"}, facts[:3])
			require.EqualValues(t, r, facts[4])
			require.EqualValues(t, m.ps[3].Cmd.Process.Pid, facts[3].([]any)[3])
		}
		m.ps[1].must("new", "key", "k", raw("the group's own key"))
		v, err := m.gs[2].Store().Get(ctx, "k")
		require.NoError(t, err)
		assert.Equal(t, "the group's own key", string(v))
	})
	t.Run("tensors", func(t *testing.T) {
		of := func(r int) *tensor.Tensor { return tensor.From([]float32{float32(r), 0.5, -1, 2, 3, 4}, 2, 3) }
		array := func(r int) map[string]any {
			return map[string]any{"array": []any{[]any{float64(r), 0.5, -1.}, []any{2., 3., 4.}}, "dtype": "float32"}
		}
		for root := range 4 {
			m.each(func(r int) error {
				got, err := pgroup.Broadcast(ctx, m.gs[r], root, of(r))
				assert.True(t, tensor.Equal(of(root), got), "%v", got)
				return err
			}, is(t, array(root), "broadcast", kw{"obj": array(root), "root": root}))
		}
		type layer struct {
			Config  map[string]any
			Weights map[string]*tensor.Tensor
		}
		m.each(func(r int) error {
			mine := layer{map[string]any{"name": fmt.Sprint("block.", r)}, map[string]*tensor.Tensor{"w": of(r), "absent": nil}}
			got, err := pgroup.Gather(ctx, m.gs[r], 0, mine)
			for i := range got {
				assert.Equal(t, map[string]any{"name": fmt.Sprint("block.", i)}, got[i].Config)
				assert.True(t, tensor.Equal(of(i), got[i].Weights["w"]), "%v", got[i])
			}
			assert.Len(t, got, []int{0: 4, 2: 0}[r])
			return err
		}, func(r int, p *rank) error {
			mine := map[string]any{"Config": map[string]any{"name": fmt.Sprint("block.", r)}, "Weights": map[string]any{"w": array(r)}}
			return is(t, nil, "gather", mine, 0)(r, p)
		})
		m.each(func(r int) error {
			_, err := pgroup.Gather(ctx, m.gs[r], 3, layer{Weights: map[string]*tensor.Tensor{"w": of(r)}})
			return err
		}, func(r int, p *rank) error {
			var want any
			if r == 3 {
				want = []any{
					map[string]any{"Config": nil, "Weights": map[string]any{"w": array(0)}},
					map[string]any{"w": array(1)},
					map[string]any{"Config": nil, "Weights": map[string]any{"w": array(2)}},
					map[string]any{"w": array(3)},
				}
			}
			return is(t, want, "gather", map[string]any{"w": array(r)}, 3)(r, p)
		})
		// A Go rank does not name the shape, so the rank that receives reports it.
		for r, err := range m.outcomes(func(r int) error {
			_, err := pgroup.Broadcast(ctx, m.gs[r], 0, of(r))
			return err
		}, func(r int, p *rank) error {
			_, err := p.do("group", "broadcast", map[string]any{"array": []int{1, 2}, "dtype": "int32"})
			return err
		}) {
			if m.ps[r] == nil {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, fmt.Sprintf("rank 0 has F32[2,3], rank %d has I32[2]", r))
			}
		}
	})
	t.Run("shutdown", func(t *testing.T) {
		m.each(func(r int) error { return m.gs[r].Shutdown(ctx) }, is(t, nil, "shutdown"))
	})
}
