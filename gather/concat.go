package gather

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/muster-pg/muster/internal/joint"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Concat joins the t of each rank of the list along axis, in the order of the list; a rank without
// a part passes nil. The first rank gets the result, in memory of its own; all other ranks get nil.
// All parts have the same dtype, and the same shape except along axis.
func Concat(ctx context.Context, ga *Gatherer, ranks []int, axis int, t *tensor.Tensor) (*tensor.Tensor, error) {
	var out *tensor.Tensor
	m := &merge{op: opConcat, axes: func(string) (int, bool) { return axis, true }}
	m.check = func(func(string) bool) error { return nil }
	m.open = func(infos map[string]safetensors.Info) (sink, error) {
		info, ok := infos[unnamed]
		if !ok { // all ranks are absent
			return nil, nil
		}
		size, _ := tensor.Size(info.DType, info.Shape...) // plan has checked it
		if err := shm.CheckMemory(int64(size)); err != nil {
			return nil, failed(0, err)
		}
		out = tensor.New(info.DType, info.Shape...)
		return &filler{buffer: out.Data}, nil
	}
	own := contributionOf(t)
	own.axis = axis
	err := m.run(ctx, ga, ranks, own)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ConcatTo merges the tensors of all ranks of the list into one safetensors file. The first rank
// writes it to w while the data arrives: it has one block in memory at a time, and ranks whose
// tensors were allocated in Options.Arena copy nothing. w and how are used on the first rank only.
// A rank without tensors passes a nil ts.
//
// A tensor whose name is in how.Axis is joined along that axis, from all ranks that have it, in the
// order of the list. Any other tensor is taken from the first rank that has it, and must have the
// same bytes on all others: a replica that has diverged is an error. After an error, w has received
// a part of a file.
func ConcatTo(ctx context.Context, ga *Gatherer, w io.Writer, ranks []int, how Merge, ts map[string]*tensor.Tensor) error {
	axis := how.Axis
	m := &merge{op: opConcatTo, axes: func(name string) (int, bool) { a, ok := axis[name]; return a, ok }}
	m.check = func(has func(name string) bool) error {
		for _, name := range slices.Sorted(maps.Keys(axis)) {
			if !has(name) {
				return fmt.Errorf("axis %d is given for tensor %q, and no rank has it", axis[name], name)
			}
		}
		return nil
	}
	m.open = func(infos map[string]safetensors.Info) (sink, error) {
		return safetensors.NewWriter(w, infos, how.Metadata)
	}
	own := contribution{absent: ts == nil, tensors: ts}
	if w == nil && len(ranks) > 0 && ranks[0] == ga.group.Rank() {
		own = contribution{fault: fmt.Errorf("there is nothing to write to: w is nil: %w", pgroup.ErrInvalid)}
	}
	return m.run(ctx, ga, ranks, own)
}

// Merge says how ConcatTo merges the tensors of the ranks into one file.
type Merge struct {
	Axis     map[string]int    // the axis of each tensor that is split across ranks
	Metadata map[string]string // of the file
}

// sink receives the data of tensors in the order of its Names.
type sink interface {
	io.WriteCloser
	Names() []string
}

// filler is the sink of Concat.
type filler struct{ buffer []byte }

func (f *filler) Names() []string { return []string{unnamed} }
func (f *filler) Close() error    { return nil }

func (f *filler) Write(p []byte) (int, error) {
	n := copy(f.buffer, p)
	f.buffer = f.buffer[n:]
	return n, nil
}

// merge is a call of Concat or ConcatTo.
type merge struct {
	op    string
	axes  func(name string) (axis int, ok bool)
	check func(has func(name string) bool) error // has reports whether a rank has a tensor
	open  func(infos map[string]safetensors.Info) (sink, error)
}

func (m *merge) run(ctx context.Context, ga *Gatherer, ranks []int, own contribution) (err error) {
	own.lazy = true
	ctx, cancel := ga.bound(ctx)
	defer cancel()
	v, err := ga.begin(ctx, m.op, ranks)
	if v == nil || err != nil {
		return err
	}
	defer func() { v.end(ctx, err) }()
	if !v.first() {
		l, err := v.send(ctx, own, sameAxis)
		if err != nil {
			return err
		}
		// all data has been read, but the first rank may not have released it yet
		err = l.returned(ctx)
		if ctx.Err() == nil {
			return nil // it is released, or the first rank is gone and reads nothing
		}
		return err
	}
	l := &resources{}
	defer l.release()
	return v.receiveOffers(ctx, own, l, sameAxis, func(ctx context.Context, offers []offer) error {
		plan, err := m.plan(v, offers)
		if err != nil {
			return err
		}
		return m.write(ctx, v, plan, offers, own, l)
	})
}

func sameAxis(v *verb, offers []offer) error {
	for i := range offers {
		if offers[i].Axis != offers[0].Axis {
			return mismatch(i, "rank %d joins along axis %d, and rank %d along axis %d", v.ranks[i], offers[i].Axis, v.ranks[0], offers[0].Axis)
		}
	}
	return nil
}

// plan compares all offers, before any bytes are read, and returns the tensors of the result.
func (m *merge) plan(v *verb, offers []offer) (*joint.Plan, error) {
	has := func(name string) bool {
		return slices.ContainsFunc(offers, func(o offer) bool { return o.find(name) != nil })
	}
	if err := m.check(has); err != nil {
		return nil, err
	}
	plan := &joint.Plan{Joints: map[string]*joint.Joint{}, Axis: m.axes, Who: func(i int) string { return fmt.Sprint("rank ", v.ranks[i]) }}
	for i := range offers {
		for k := range offers[i].items {
			it := &offers[i].items[k]
			if err := plan.Add(i, it.Name, safetensors.Info{DType: it.DType, Shape: it.Shape, End: int64(it.size())}); err != nil {
				return nil, mismatch(i, "%s%v", prefix(it.Name), err)
			}
		}
	}
	if name, err := plan.Check(); err != nil {
		return nil, named(name, err)
	}
	return plan, nil
}

// write copies all tensors to the sink, in the order of the result.
func (m *merge) write(ctx context.Context, v *verb, plan *joint.Plan, offers []offer, own contribution, l *resources) error {
	out, err := m.open(plan.Infos())
	if out == nil || err != nil {
		return err
	}
	from, err := v.sources(ctx, offers, own, l)
	if err != nil {
		return err
	}
	for _, name := range out.Names() {
		if err := v.writeJoint(ctx, plan.Joints[name], out, from, name); err != nil {
			return err
		}
	}
	return out.Close()
}

// writeJoint writes one tensor: for each index of the outer axes, a run of every rank.
func (v *verb) writeJoint(ctx context.Context, j *joint.Joint, w io.Writer, from []source, name string) error {
	readers := make([]*reader, len(j.From))
	for k, i := range j.From {
		readers[k] = newReader(from[i], name, v.blockLen(len(j.From)))
	}
	if j.Axis < 0 {
		return v.copySame(ctx, j, w, name, readers)
	}
	if j.Outer > 0 && slices.IndexFunc(readers, func(r *reader) bool { return r.size > 0 }) < 0 {
		return nil // there may be any number of empty rows
	}
	for range j.Outer {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for k, r := range readers {
			if err := r.copyTo(ctx, w, r.size/int64(j.Outer)); err != nil {
				return blame(j.From[k], name, err)
			}
		}
	}
	return nil
}

// copySame writes the tensor of the first of readers, and compares the others with it.
func (v *verb) copySame(ctx context.Context, j *joint.Joint, w io.Writer, name string, readers []*reader) error {
	first := readers[0]
	for first.left() > 0 {
		b, err := first.next(ctx, pieceLen)
		if err != nil {
			return blame(j.From[0], name, err)
		}
		for k, r := range readers[1:] {
			if err := r.same(ctx, b); err != nil {
				return v.diverged(j, k+1, name, err)
			}
		}
		if _, err := w.Write(b); err != nil {
			return blame(j.From[0], name, writeError{err})
		}
	}
	return nil
}

func (v *verb) diverged(j *joint.Joint, k int, name string, err error) error {
	if !errors.Is(err, errDiffers) {
		return blame(j.From[k], name, err)
	}
	return mismatch(j.From[k], prefix(name)+"rank %d has other bytes than rank %d, and no axis to join them along is given", v.ranks[j.From[k]], v.ranks[j.From[0]])
}
