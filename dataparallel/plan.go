package dataparallel

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"slices"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// plan is the order in which a set of tensors is moved. It depends on names, dtypes and shapes only, so it
// is the same on all ranks. It is reused while the calls have the same tensors.
type plan struct {
	parts []part
	bytes int64
	hash  uint64
}

// part describes a tensor. The parts of a plan are ordered by dtype, then by descending, then by name.
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
	slices.SortStableFunc(p.parts, func(a, b part) int { return cmp.Or(cmp.Compare(a.dtype, b.dtype), descending(a.name, b.name)) })
	h := fnv.New64a()
	for i := range p.parts {
		fmt.Fprintf(h, "%q %v %v\n", p.parts[i].name, p.parts[i].dtype, p.parts[i].shape)
	}
	p.hash = h.Sum64()
	return p, nil
}

// buckets yields ranges of parts, of one dtype each, that end with the part with which they have limit bytes.
func (p *plan) buckets(limit int) iter.Seq2[int, int] {
	return func(yield func(from, to int) bool) {
		for from := 0; from < len(p.parts); {
			size, to := p.parts[from].bytes, from+1
			for to < len(p.parts) && p.parts[to].dtype == p.parts[from].dtype && size < limit {
				size += p.parts[to].bytes
				to++
			}
			if !yield(from, to) {
				return
			}
			from = to
		}
	}
}

// words is how many words each rank sends to the others in agree: the operation, and the hash of the plan and
// of the options.
const words = 2

// codes are the numbers of operations other than a broadcast, in agree.
var codes = map[string]uint64{allReduceGradients: 0, startGradients: 1 << 40}

// invalid marks the operation of a rank whose arguments are not valid.
const invalid = 1 << 63

// agree returns the plan if all ranks have the same one, for the same operation. Otherwise all ranks
// return the same error. A few words from each rank decide it; only when they differ do ranks exchange
// what their calls are, in explain.
func (s *Strategy) agree(ctx context.Context, op string, root int, ts map[string]*tensor.Tensor) (*plan, error) {
	p, bad := s.planFor(ts)
	if bad == nil {
		bad = s.refuses(op, root, p)
	}
	s.mine[0], s.mine[1] = uint64(root+1)|codes[op], 0
	if bad != nil {
		s.mine[0] |= invalid
	} else {
		s.mine[1] = p.hash ^ uint64(s.opts.Wire)<<32 ^ uint64(s.opts.Bucket)
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

// refuses returns why the arguments of op are not valid.
func (s *Strategy) refuses(op string, root int, p *plan) error {
	_, reduces := codes[op]
	if root >= s.Size() || root < 0 && !reduces {
		return fmt.Errorf("there is no rank %d in a group of %d", root, s.Size())
	}
	if !reduces {
		return nil
	}
	for i := range p.parts {
		if part := &p.parts[i]; averages[part.dtype] == nil {
			return fmt.Errorf("tensor %q is %v, which cannot be averaged", part.name, part.dtype)
		}
	}
	if i, j, ok := s.aliases.Find(s.data); ok {
		a, b := p.parts[i].name, p.parts[j].name
		return fmt.Errorf("tensors %q and %q share memory", min(a, b), max(a, b))
	}
	if s.opts.Wire != tensor.Invalid && s.opts.Wire != tensor.F16 && s.opts.Wire != tensor.BF16 {
		return fmt.Errorf("Options.Wire is %v, and not F16 or BF16", s.opts.Wire)
	}
	return nil
}

// claim describes a rank's call when ranks do not agree.
type claim struct {
	Op      string
	Options string
	Bad     string            // why it is not valid, or empty
	Tensors map[string]string // dtype and shape by name
}

// explain gathers the claims of all ranks, and returns an error that says how they differ.
func (s *Strategy) explain(ctx context.Context, op string, root int, ts map[string]*tensor.Tensor, bad error) error {
	mine := claim{Op: op, Options: fmt.Sprintf("Wire %v and Bucket %d", s.opts.Wire, s.opts.Bucket), Tensors: map[string]string{}}
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
	if c.Options != zero.Options {
		return fmt.Sprintf("rank %d has Options with %s, rank 0 with %s", rank, c.Options, zero.Options)
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
