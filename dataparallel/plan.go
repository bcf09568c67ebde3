package dataparallel

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// plan is the order in which a set of tensors is moved. It depends on names, dtypes and shapes only, so it
// is the same on all ranks. It is reused while the calls have the same tensors.
type plan struct {
	parts        []part
	bytes        int64
	hash         uint64
	hasNoAverage *part // the first part whose dtype cannot be averaged, or nil
}

// part describes a tensor. The parts of a plan are ordered by dtype, then by name.
type part struct {
	name  string
	dtype tensor.DType
	shape []int
	bytes int
}

// matches reports whether p is the plan of ts.
func (p *plan) matches(ts map[string]*tensor.Tensor) bool {
	if p == nil || len(ts) != len(p.parts) {
		return false
	}
	for i := range p.parts {
		part := &p.parts[i]
		t := ts[part.name]
		if t == nil || t.DType != part.dtype || len(t.Data) != part.bytes || !slices.Equal(t.Shape, part.shape) {
			return false
		}
	}
	return true
}

// planFor returns the plan of ts and fills in s.tensors and s.data, or returns why a tensor is not valid.
func (s *Strategy) planFor(ts map[string]*tensor.Tensor) (*plan, error) {
	if !s.last.matches(ts) {
		p, err := newPlan(ts)
		if err != nil {
			return nil, err
		}
		s.last = p
	}
	s.tensors, s.data = s.tensors[:0], s.data[:0]
	for i := range s.last.parts {
		t := ts[s.last.parts[i].name]
		s.tensors, s.data = append(s.tensors, t), append(s.data, t.Data)
	}
	return s.last, nil
}

func newPlan(ts map[string]*tensor.Tensor) (*plan, error) {
	p := &plan{parts: make([]part, 0, len(ts))}
	for _, name := range slices.Sorted(maps.Keys(ts)) {
		t := ts[name]
		if t == nil {
			return nil, fmt.Errorf("tensor %q is nil", name)
		}
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		p.parts = append(p.parts, part{name, t.DType, slices.Clone(t.Shape), len(t.Data)})
		p.bytes += int64(len(t.Data))
	}
	slices.SortStableFunc(p.parts, func(a, b part) int { return cmp.Compare(a.dtype, b.dtype) })
	p.finish()
	return p, nil
}

// finish computes the hash, and sets hasNoAverage.
func (p *plan) finish() {
	h := fnv.New64a()
	for i := range p.parts {
		part := &p.parts[i]
		fmt.Fprintf(h, "%q %v %v\n", part.name, part.dtype, part.shape)
		if averages[part.dtype] == nil && p.hasNoAverage == nil {
			p.hasNoAverage = part
		}
	}
	p.hash = h.Sum64()
}

// words is how many words each rank sends to the others in agree: the operation, and the plan's hash.
const words = 2

// invalid marks the operation of a rank whose arguments are not valid.
const invalid = 1 << 63

// agree returns the plan if all ranks have the same one, for the same operation. Otherwise all ranks
// return the same error. Two words from each rank decide it; only when they differ do ranks exchange
// what their calls are, in explain.
func (s *Strategy) agree(ctx context.Context, op string, root int, ts map[string]*tensor.Tensor) (*plan, error) {
	p, bad := s.planFor(ts)
	switch {
	case root >= s.Size() || root < 0 && op != allReduceGradients:
		bad = fmt.Errorf("there is no rank %d in a group of %d", root, s.Size())
	case bad == nil && op == allReduceGradients && p.hasNoAverage != nil:
		bad = fmt.Errorf("tensor %q is %v, which cannot be averaged", p.hasNoAverage.name, p.hasNoAverage.dtype)
	case bad == nil && op == allReduceGradients:
		if i, j, ok := s.aliases.Find(s.data); ok {
			bad = fmt.Errorf("tensors %q and %q share memory", p.parts[i].name, p.parts[j].name)
		}
	}
	s.mine[0], s.mine[1] = uint64(root+1), 0
	if bad != nil {
		s.mine[0] |= invalid
	} else {
		s.mine[1] = p.hash
	}
	if err := collective.AllGather(ctx, s.comm, s.all, s.mine); err != nil {
		return nil, err
	}
	for i, w := range s.all {
		if w != s.all[i%words] || w&invalid != 0 && i%words == 0 {
			return nil, s.explain(ctx, op, root, ts, bad)
		}
	}
	return p, nil
}

// claim describes a rank's call when ranks do not agree.
type claim struct {
	Op      string
	Bad     string            // why it is not valid, or empty
	Tensors map[string]string // dtype and shape by name
}

// explain gathers the claims of all ranks, and returns an error that says how they differ.
func (s *Strategy) explain(ctx context.Context, op string, root int, ts map[string]*tensor.Tensor, bad error) error {
	mine := claim{Op: op, Tensors: map[string]string{}}
	if root >= 0 {
		mine.Op = fmt.Sprintf("%s from rank %d", op, root)
	}
	if bad != nil {
		mine.Bad = bad.Error()
	}
	for name, t := range ts {
		mine.Tensors[name] = t.String()
	}
	all, err := pgroup.AllGather(ctx, s.comm.Group().Channel("dataparallel"), mine)
	if err != nil {
		return err
	}
	for rank := range all {
		if all[rank].Bad != "" {
			return s.fail(op, fmt.Errorf("%w: rank %d: %s", pgroup.ErrInvalid, rank, all[rank].Bad))
		}
	}
	for rank := range all {
		if what := all[rank].differs(rank, &all[0]); what != "" {
			return s.fail(op, fmt.Errorf("%w: %s", pgroup.ErrMismatch, what))
		}
	}
	return s.fail(op, pgroup.ErrMismatch)
}

// differs describes the first difference between c, the claim of rank, and that of rank 0.
func (c *claim) differs(rank int, zero *claim) string {
	if c.Op != zero.Op {
		return fmt.Sprintf("rank %d called %s, rank 0 called %s", rank, c.Op, zero.Op)
	}
	both := map[string]string{} // a decoded map may be nil
	maps.Copy(both, zero.Tensors)
	maps.Copy(both, c.Tensors)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		here, ok := c.Tensors[name]
		there, known := zero.Tensors[name]
		switch {
		case !known:
			return fmt.Sprintf("rank %d has a tensor %q, rank 0 has none", rank, name)
		case !ok:
			return fmt.Sprintf("rank 0 has a tensor %q, rank %d has none", name, rank)
		case here != there:
			return fmt.Sprintf("tensor %q is %s on rank %d, and %s on rank 0", name, here, rank, there)
		}
	}
	return ""
}
