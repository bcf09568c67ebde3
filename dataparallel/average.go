package dataparallel

import (
	"cmp"
	"context"
	"math"
	"strings"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/tensor"
)

// averageAll averages all tensors of the plan. The sum of floats depends on how they are grouped, and over
// connections the position of a number in its call decides that. There, and only there, the calls are those
// of the buckets of StartGradients, so that both have the same bits.
func (s *Strategy) averageAll(ctx context.Context, p *plan) error {
	limit := math.MaxInt
	if all, _ := s.comm.SharesMemory(); !all {
		limit = s.bucket()
	}
	for from, to := range p.buckets(limit) {
		if err := s.averagePart(ctx, s.comm, p, from, to); err != nil {
			return err
		}
	}
	return nil
}

// averagePart averages the tensors of a bucket, in place, on c.
func (s *Strategy) averagePart(ctx context.Context, c *collective.Comm, p *plan, from, to int) error {
	return averages[p.parts[from].dtype](ctx, s, c, s.tensors[from:to])
}

// The default of Options.Bucket: measured, see docs/explanation/benchmarks.md.
const (
	memoryBucket  = 1 << 20
	networkBucket = 4 << 20
)

func (s *Strategy) bucket() int {
	if all, _ := s.comm.SharesMemory(); all {
		return cmp.Or(s.opts.Bucket, memoryBucket)
	}
	return cmp.Or(s.opts.Bucket, networkBucket)
}

// averages has a function for each dtype that can be averaged.
var averages = map[tensor.DType]func(ctx context.Context, s *Strategy, c *collective.Comm, ts []*tensor.Tensor) error{
	tensor.F16: average[tensor.Float16], tensor.BF16: average[tensor.BFloat16], tensor.F32: average32, tensor.F64: average[float64],
	tensor.I8: average[int8], tensor.I16: average[int16], tensor.I32: average[int32], tensor.I64: average[int64],
	tensor.U8: average[uint8], tensor.U16: average[uint16], tensor.U32: average[uint32], tensor.U64: average[uint64],
}

// average averages tensors of one dtype in place. It copies those whose data is not aligned for T.
func average[T tensor.Number](ctx context.Context, s *Strategy, c *collective.Comm, ts []*tensor.Tensor) error {
	xs, restore, err := views[T](s, ts)
	if err == nil {
		err = collective.AllReduceAll(ctx, c, collective.Avg, xs)
	}
	if err == nil {
		restore()
	}
	return err
}

// views returns the elements of tensors. restore copies those back that are in other memory, because the
// data is not aligned for T.
func views[T tensor.Number](s *Strategy, ts []*tensor.Tensor) (xs [][]T, restore func(), err error) {
	xs = make([][]T, len(ts))
	clones := map[*tensor.Tensor]*tensor.Tensor{}
	for i, t := range ts {
		x, err := tensor.View[T](t)
		if err != nil {
			clones[t] = t.Clone()
			x, err = tensor.View[T](clones[t])
		}
		if err != nil { // a big-endian host
			s.comm.Group().Abort(err) // the other ranks are in the verb already
			return nil, nil, s.fail(allReduceGradients, err)
		}
		xs[i] = x
	}
	return xs, func() {
		for t, clone := range clones {
			copy(t.Data, clone.Data)
		}
	}, nil
}

// average32 is average, with Options.Wire between ranks that do not share memory.
func average32(ctx context.Context, s *Strategy, c *collective.Comm, ts []*tensor.Tensor) error {
	_, some := c.SharesMemory()
	switch {
	case some || s.Size() == 1:
	case s.opts.Wire == tensor.BF16:
		return averageAs(ctx, s, c, ts, tensor.BFloat16From, tensor.BFloat16.Float32)
	case s.opts.Wire == tensor.F16:
		return averageAs(ctx, s, c, ts, tensor.Float16From, tensor.Float16.Float32)
	}
	return average[float32](ctx, s, c, ts)
}

// averageAs averages float32 tensors that are converted to T.
func averageAs[T tensor.Float16 | tensor.BFloat16](ctx context.Context, s *Strategy, c *collective.Comm, ts []*tensor.Tensor, from func(float32) T, to func(T) float32) error {
	xs, restore, err := views[float32](s, ts)
	if err != nil {
		return err
	}
	n := 0
	for _, x := range xs {
		n += len(x)
	}
	narrow := make([]T, 0, n)
	for _, x := range xs {
		for _, v := range x {
			narrow = append(narrow, from(v))
		}
	}
	if err := collective.AllReduce(ctx, c, collective.Avg, narrow); err != nil {
		return err
	}
	for _, x := range xs {
		for i := range x {
			x[i] = to(narrow[i])
		}
		narrow = narrow[len(x):]
	}
	restore()
	return nil
}

// descending compares names in descending order, with numbers in them as numbers.
func descending(a, b string) int {
	for a != "" && b != "" {
		m, n := digits(a), digits(b)
		if m == 0 || n == 0 {
			if a[0] != b[0] {
				return cmp.Compare(b[0], a[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		x, y := strings.TrimLeft(a[:m], "0"), strings.TrimLeft(b[:n], "0")
		if c := cmp.Or(cmp.Compare(len(y), len(x)), cmp.Compare(y, x), cmp.Compare(n, m)); c != 0 {
			return c
		}
		a, b = a[m:], b[n:]
	}
	return cmp.Compare(len(b), len(a))
}

// digits returns the number of digits that name begins with.
func digits(name string) int {
	return len(name) - len(strings.TrimLeft(name, "0123456789"))
}
