package collective_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
)

// verb is a call of one rank.
type verb func(r *rank) error

func allReduce[T int16 | int32 | float32](op collective.Op, length int) verb {
	return func(r *rank) error { return collective.AllReduce(r.ctx, r.c, op, make([]T, length)) }
}

func allReduceAll(lengths ...int) verb {
	return func(r *rank) error {
		return collective.AllReduceAll(r.ctx, r.c, collective.Sum, split(make([]float32, total(lengths)), lengths...))
	}
}

func broadcast(root, length int) verb {
	return func(r *rank) error { return collective.Broadcast(r.ctx, r.c, root, make([]float32, length)) }
}

func broadcastAll(lengths ...int) verb {
	return func(r *rank) error {
		return collective.BroadcastAll(r.ctx, r.c, 0, split(make([]int8, total(lengths)), lengths...))
	}
}

func reduce(length int) verb {
	return func(r *rank) error { return collective.Reduce(r.ctx, r.c, 0, collective.Sum, make([]int16, length)) }
}

func allGather(length int) verb {
	return func(r *rank) error {
		return collective.AllGather(r.ctx, r.c, make([]float32, length*r.g.Size()), make([]float32, length))
	}
}

func reduceScatter(length int) verb {
	return func(r *rank) error {
		return collective.ReduceScatter(r.ctx, r.c, collective.Sum, make([]float32, length), make([]float32, length*r.g.Size()))
	}
}

func allToAll(length int) verb {
	return func(r *rank) error {
		x := length * r.g.Size()
		return collective.AllToAll(r.ctx, r.c, make([]float32, x), make([]float32, x))
	}
}

func barrier(r *rank) error { return r.c.Barrier(r.ctx) }

// TestDisagreement has rank 1 make a different call: all ranks get one error, which names the calls of
// two ranks, and the Comm has failed on all of them.
func TestDisagreement(t *testing.T) {
	t.Parallel()
	sum := allReduce[float32](collective.Sum, 1000)
	for name, c := range map[string]struct {
		one, others verb
		says        []string
	}{
		"length":                {allReduce[float32](collective.Sum, 1001), sum, nil},
		"type":                  {allReduce[int32](collective.Sum, 1000), sum, nil},
		"op":                    {allReduce[float32](collective.Max, 1000), sum, nil},
		"op without data":       {allReduce[float32](collective.Max, 0), allReduce[float32](collective.Sum, 0), nil},
		"verb":                  {broadcast(0, 1000), sum, nil},
		"order":                 {barrier, sum, nil},
		"root":                  {broadcast(1, 50_000), broadcast(0, 50_000), []string{"with root 0", "with root 1"}},
		"empty":                 {allReduce[float32](collective.Sum, 0), sum, nil},
		"empty broadcast":       {broadcast(0, 0), broadcast(0, 5), nil},
		"empty all-gather":      {allGather(0), allGather(5), nil},
		"empty reduce-scatter":  {reduceScatter(0), reduceScatter(5), nil},
		"empty all-to-all":      {allToAll(0), allToAll(5), nil},
		"few to reduce":         {reduce(2), reduce(1), nil}, // some ranks have none to combine
		"few to all-reduce":     {allReduce[int16](collective.Sum, 2), allReduce[int16](collective.Sum, 1), nil},
		"fewer slices":          {allReduceAll(7), allReduceAll(3, 4), []string{"in 2 slices", "in 3 slices"}},
		"other slices":          {allReduceAll(4, 3), allReduceAll(3, 4), []string{"in 3 slices"}},
		"other large slices":    {allReduceAll(100_000, 200_000), allReduceAll(200_000, 100_000), []string{"of 300000 F32 in 3 slices"}},
		"an empty slice":        {allReduceAll(7, 0), allReduceAll(7), []string{"in 2 slices", "in 3 slices"}},
		"slices of nothing":     {allReduceAll(0), allReduceAll(), []string{"in 2 slices", "in 1 slice"}},
		"one slice":             {allReduce[float32](collective.Sum, 7), allReduceAll(3, 4), []string{"of 7 F32 in 3 slices"}},
		"slices of a broadcast": {broadcastAll(2, 1), broadcastAll(1, 2), []string{"broadcast", "in 3 slices"}},
	} {
		t.Run(name, func(t *testing.T) {
			over(t, []int{4}, func(t *testing.T, w way, n int) {
				texts := make([]string, n)
				w.run(t, n, func(r *rank) {
					r.allReduce(10)
					call := c.others
					if r.me() == 1 {
						call = c.one
					}
					err := call(r)
					if err == nil && strings.HasSuffix(name, "broadcast") { // a rank may have got all of it from one that has not noticed
						err = barrier(r)
					}
					assert.ErrorIs(r, err, pgroup.ErrMismatch)
					assert.ErrorContains(r, err, "rank 1 ")
					texts[r.me()] = r.rankError(err).Reason
					assert.ErrorIs(r, barrier(r), pgroup.ErrMismatch)
				})
				for _, text := range texts {
					assert.Equal(t, texts[0], text)
				}
				for _, say := range c.says {
					assert.Contains(t, texts[0], say)
				}
			})
		})
	}
}
