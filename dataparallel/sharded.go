package dataparallel

import (
	"context"
	"errors"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/tensor"
)

// Shard is the part of all parameters that one rank updates: a range of the sequence of all their elements.
// The shards of all ranks have equally many elements, padded with zeros at the end.
type Shard struct {
	Offset        int       // of the first element
	Params, Grads []float32 // Grads are averaged over all ranks
}

// StepSharded is a step of an optimizer of which each rank has a part of the state, as in ZeRO-1 (Rajbhandari
// et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020) and PyTorch's
// ZeroRedundancyOptimizer. It averages grads by a reduce-scatter, calls step with this rank's shard, which
// changes Params in place, and gathers the shards into params on all ranks by an all-gather. Together these
// move as many bytes as an AllReduceGradients.
//
// params and grads have the same names and shapes, in float32. The order of the elements, Offset and the
// length of the shard depend on names, shapes and Size, so the state of the optimizer is a
// slice of len(Params) that each rank keeps for itself. step computes each element from those at the same
// index. If step fails on a rank, the group ends with its error on all ranks.
//
// If StepSharded fails, params and grads are unchanged, but other ranks may have completed it, and step may
// have changed the optimizer's state. A worker that fails takes its part of the state with it: in an elastic
// job, each rank must be able to make the state of any shard again.
//
// All ranks have the same bits in every run: averages are sums in the order of the ranks, divided once. Between
// ranks that share memory they are those of AllReduceGradients.
func (s *Strategy) StepSharded(ctx context.Context, params, grads map[string]*tensor.Tensor, step func(shard Shard) error) error {
	return s.do(ctx, stepSharded, func(ctx context.Context) (int64, error) {
		p, err := s.agree(ctx, stepSharded, -1, grads, func(p *plan) error {
			own, err := newPlan(params)
			if err == nil && own.hash != p.hash {
				err = errors.New("params and grads have other names, dtypes or shapes")
			}
			return err
		})
		if err != nil {
			return 0, err
		}
		return 2 * p.bytes, s.stepShard(ctx, p, params, step)
	})
}

// stepShard is StepSharded when all ranks agree.
func (s *Strategy) stepShard(ctx context.Context, p *plan, params map[string]*tensor.Tensor, step func(shard Shard) error) error {
	length := (int(p.bytes)/4 + s.Size() - 1) / s.Size()
	sums, all := s.buffer(0, length*s.Size()), s.buffer(1, length*s.Size())
	at := s.Rank() * length
	own := Shard{Offset: at, Params: all[at:][:length], Grads: sums[at:][:length]}

	p.each(s.data, sums, func(x, flat []byte) { copy(flat, x) })
	if err := collective.ReduceScatter(ctx, s.comm, collective.Avg, own.Grads, sums); err != nil {
		return err
	}
	data := make([][]byte, len(p.parts))
	for i := range p.parts {
		data[i] = params[p.parts[i].name].Data
	}
	p.each(data, all, func(x, flat []byte) { copy(flat, x) })
	if err := step(own); err != nil {
		s.comm.Group().Abort(err) // the other ranks wait in the all-gather
		return s.fail(stepSharded, err)
	}
	if err := collective.AllGather(ctx, s.comm, all, own.Params); err != nil {
		return err
	}
	p.each(data, all, func(x, flat []byte) { copy(x, flat) })
	return nil
}

// buffer returns reusable memory for n elements; those beyond the tensors stay 0.
func (s *Strategy) buffer(i, n int) []float32 {
	if len(s.flat[i]) != n {
		s.flat[i] = make([]float32, n)
	}
	return s.flat[i]
}

// each calls f with each tensor's data and its range of flat, in which the tensors follow each other.
func (p *plan) each(data [][]byte, flat []float32, f func(x, flat []byte)) {
	bytes := tensor.From(flat).Data
	for _, x := range data {
		f(x, bytes[:len(x)])
		bytes = bytes[len(x):]
	}
}
