package gather_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// list's first rank, which receives, is not the lowest one, and rank 1 is not in it.
var list = []int{2, 0, 3}

func TestTensors(t *testing.T) {
	overAll(t, 4, func(r *rank) {
		for round := range 5 { // later rounds reuse segments and connections
			res, err := gather.Tensors(r.ctx, r.ga, list, r.tensor(10*r.me()+round, 300, 1000))
			if !assert.NoError(r, err, "rank %d", r.me()) {
				return
			}
			assert.Equal(r, r.me() == 2, res.First)
			assert.Equal(r, r.me() == 1, res.Outside)
			if !res.First {
				assert.Empty(r, res.Items)
				res.Release()
				assert.NoError(r, res.WaitReleased(r.ctx))
				continue
			}
			require.Len(r, res.Items, 3)
			for i, it := range res.Items {
				assert.Equal(r, list[i], it.Rank)
				assert.False(r, it.Absent)
				equal(r.T, filled(10*it.Rank+round, 300, 1000), it.Value)
			}
			theirs := res.Items[1].Value
			res.Release()
			res.Release()
			assert.Nil(r, theirs.Data, "it must no longer be touched")
		}
	})
}

func TestAbsent(t *testing.T) {
	overAll(t, 4, func(r *rank) {
		for absent := range 8 { // every set of the three
			var mine *tensor.Tensor
			for i, rank := range list {
				if rank == r.me() && absent&(1<<i) == 0 {
					mine = r.tensor(rank, 5)
				}
			}
			res, err := gather.Tensors(r.ctx, r.ga, list, mine)
			if !assert.NoError(r, err) {
				return
			}
			if !res.First {
				continue
			}
			var want, got []int
			for i, it := range res.Items {
				assert.Equal(r, list[i], it.Rank)
				assert.Equal(r, absent&(1<<i) != 0, it.Absent)
				if it.Absent {
					assert.Nil(r, it.Value)
				} else {
					want = append(want, list[i])
				}
			}
			for rank, v := range res.Present() {
				got = append(got, rank)
				equal(r.T, filled(rank, 5), v)
			}
			assert.Equal(r, want, got)
			res.Release()
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

				next, err := gather.Tensors(r.ctx, r.ga, list, r.tensor(r.me(), 4))
				if assert.NoError(r, err) {
					next.Release()
				}
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
				ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
				_, err := gather.Tensors(ctx, r.ga, ranks, r.tensor(r.me(), 9))
				cancel()
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

// TestSharedTensorsMayChange has tensors that were allocated in shared memory, and are changed as
// soon as that is allowed.
func TestSharedTensorsMayChange(t *testing.T) {
	for _, w := range ways() {
		if !w.allocated {
			continue
		}
		w.run(t, 2, gather.Options{}, func(r *rank) {
			mine := r.tensor(r.me(), 1<<16)
			for round := range 20 {
				mine.Data[0] = byte(round)
				res, err := gather.Tensors(r.ctx, r.ga, []int{0, 1}, mine)
				if !assert.NoError(r, err) {
					return
				}
				if res.First {
					assert.Equal(r, byte(round), res.Items[1].Value.Data[0])
					res.Release()
				}
				assert.NoError(r, res.WaitReleased(r.ctx))
			}
		})
	}
}
