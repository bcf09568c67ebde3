package gather_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/trace"
)

// list's first rank, which receives, is not the lowest one, and rank 1 is not in it.
var list = []int{2, 0, 3}

// TestTensors has every set of the three ranks absent.
func TestTensors(t *testing.T) {
	overAll(t, 4, func(r *rank) {
		for absent := range 8 { // later rounds reuse segments and connections
			mine := r.tensor(10*r.me()+absent, 300, 1000)
			if i := slices.Index(list, r.me()); i >= 0 && absent&(1<<i) != 0 {
				mine = nil
			}
			res := r.gather(list, mine)
			assert.Equal(r, r.me() == 2, res.First)
			assert.Equal(r, r.me() == 1, res.Outside)
			if !res.First {
				assert.Empty(r, res.Items)
				res.Release()
				assert.NoError(r, res.WaitReleased(r.ctx))
				continue
			}
			require.Len(r, res.Items, 3)
			present := maps.Collect(res.Present())
			for i, it := range res.Items {
				assert.Equal(r, list[i], it.Rank)
				assert.Equal(r, absent&(1<<i) != 0, it.Absent)
				if it.Absent {
					assert.Nil(r, it.Value)
				} else {
					equal(r.T, filled(10*it.Rank+absent, 300, 1000), it.Value)
				}
				assert.Equal(r, it.Value, present[it.Rank])
			}
			theirs := res.Items[1].Value
			res.Release()
			res.Release()
			assert.True(r, theirs == nil || theirs.Data == nil, "it must no longer be touched")
		}
	})
}

// TestDisagreement has one rank that differs: all ranks get an error that says which and how, and
// continue.
func TestDisagreement(t *testing.T) {
	for name, test := range map[string]struct {
		odd  map[string]*tensor.Tensor
		want string
	}{
		"shape": {map[string]*tensor.Tensor{"tensor": tensor.New(tensor.F32, 2, 4)}, `tensor "tensor": rank 3 has F32[2,4], and rank 2 F32[2,3]`},
		"dtype": {map[string]*tensor.Tensor{"tensor": tensor.New(tensor.I32, 2, 3)}, `tensor "tensor": rank 3 has I32[2,3], and rank 2 F32[2,3]`},
		"more":  {map[string]*tensor.Tensor{"more": tensor.New(tensor.I32)}, `rank 3 has tensor "more", and rank 2 has not`},
		"fewer": {map[string]*tensor.Tensor{}, `rank 2 has tensor "tensor", and rank 3 has not`},
	} {
		t.Run(name, func(t *testing.T) {
			overAll(t, 4, func(r *rank) {
				mine := map[string]*tensor.Tensor{"tensor": r.tensor(0, 2, 3)}
				if r.me() == 3 {
					mine = test.odd
				}
				res, err := gather.TensorMaps(r.ctx, r.ga, list, mine)
				if r.me() == 1 {
					assert.NoError(r, err)
					assert.True(r, res.Outside)
					return
				}
				assert.Nil(r, res)
				re := r.rankError(err)
				assert.ErrorIs(r, err, pgroup.ErrMismatch)
				assert.Equal(r, 3, re.By)
				assert.ErrorContains(r, err, test.want)

				r.gathers(list, 0, 4)
			})
		})
	}
}

// TestBadInput checks that the rank with bad input detects it, and that all ranks get the error.
func TestBadInput(t *testing.T) {
	overAll(t, 2, func(r *rank) {
		for _, broken := range []int{0, 1} {
			mine := r.tensor(0, 4)
			if r.me() == broken {
				mine = &tensor.Tensor{DType: tensor.F32, Shape: []int{5}, Data: make([]byte, 3)}
			}
			_, err := gather.Tensors(r.ctx, r.ga, []int{0, 1}, mine)
			re := r.rankError(err)
			assert.ErrorIs(r, err, pgroup.ErrFailed)
			assert.Equal(r, broken, re.By)
			assert.ErrorContains(r, err, "20 bytes, not 3")
		}
		_, err := gather.Tensors(r.ctx, r.ga, []int{0, 1}, &tensor.Tensor{DType: tensor.U8, Shape: make([]int, 65)})
		assert.ErrorContains(r, err, "65 axes")
		r.gathers([]int{0, 1}, 0, 10)
		for _, ranks := range [][]int{nil, {0, 2}, {-1, 0}, {0, 1, 0}} {
			_, err := gather.Tensors(r.ctx, r.ga, ranks, nil)
			assert.ErrorIs(r, err, pgroup.ErrInvalid)
		}
	})
}

func TestMissing(t *testing.T) {
	overAllAtOnce(t, 3, func(r *rank) {
		ranks := []int{1, 0, 2}
		if !r.gathers(ranks, 0, 9) { // sets up the list for the later calls
			return
		}
		for _, absent := range []int{0, 1} {
			if r.me() != absent {
				_, err := gather.Tensors(testcluster.Within(r, 2*time.Second), r.ga, ranks, r.tensor(r.me(), 9))
				assert.ErrorIs(r, err, context.DeadlineExceeded)
				assert.Equal(r, []int{absent}, r.rankError(err).Missing, "%v", err)
			}
			assert.NoError(r, r.group.Barrier(r.ctx))
			if r.me() == absent { // gets the error that the others got
				_, err := gather.Tensors(r.ctx, r.ga, ranks, r.tensor(r.me(), 9))
				assert.ErrorIs(r, err, context.DeadlineExceeded)
			}
			assert.NoError(r, r.group.Barrier(r.ctx))
			r.gathers(ranks, 10, 9) // the list remains usable
		}
	})
}

// TestTrace checks that every verb is traced on every rank of its list, whichever way its tensors
// take.
func TestTrace(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			sink := new(testcluster.Events)
			job{way: w, n: 4, trace: sink}.run(t, func(r *rank) {
				r.gather(list, r.tensor(1, 300)).Release()
				_, err := gather.Concat(r.ctx, r.ga, list, 0, r.tensor(1, 3+r.me()))
				assert.NoError(r, err)
				_, err = gather.Tensors(r.ctx, r.ga, list, r.tensor(1, 3+r.me())) // of other shapes
				if r.me() != 1 {
					assert.ErrorIs(r, err, pgroup.ErrMismatch)
				}
			})
			of := map[uint64][]trace.Event{}
			for _, e := range append(sink.Of("gather.tensors"), sink.Of("gather.concat")...) {
				of[e.Seq] = append(of[e.Seq], e)
			}
			require.Len(t, of, 3)
			for seq, events := range of {
				require.Len(t, events, 3, "the one that is not in the list has done nothing")
				seen := map[int]bool{}
				for _, e := range events {
					seen[e.Rank] = true
					require.Equal(t, map[uint64]string{1: "gather.tensors", 2: "gather.concat", 3: "gather.tensors"}[seq], e.Op)
					require.Equal(t, []any{3, -1, events[0].Group, events[0].Generation}, []any{e.Size, e.Last, e.Group, e.Generation})
					require.Positive(t, e.Waited)
					require.LessOrEqual(t, e.Waited, e.Duration())
					require.Equal(t, seq == 3, e.Err != nil)
					if seq == 1 {
						require.EqualValues(t, map[bool]int{true: 2400, false: 1200}[e.Rank == 0], e.Bytes, "rank %d of the list", e.Rank)
					}
				}
				require.Len(t, seen, 3)
			}
		})
	}
}
