package gather

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

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

// joint is one tensor of the result.
type joint struct {
	safetensors.Info
	axis  int   // -1: all ranks in from have the same bytes
	from  []int // indexes of the ranks that have it
	outer int   // number of runs of each rank
}

// plan compares all offers, before any bytes are read, and returns the tensors of the result.
func (m *merge) plan(v *verb, offers []offer) (map[string]*joint, error) {
	has := func(name string) bool {
		return slices.ContainsFunc(offers, func(o offer) bool { return o.find(name) != nil })
	}
	if err := m.check(has); err != nil {
		return nil, err
	}
	plan := map[string]*joint{}
	for i := range offers {
		for k := range offers[i].items {
			if err := m.add(v, plan, i, &offers[i].items[k], offers); err != nil {
				return nil, err
			}
		}
	}
	for name, j := range plan {
		if _, err := tensor.Size(j.DType, j.Shape...); err != nil {
			return nil, named(name, err)
		}
	}
	return plan, nil
}

// add adds a tensor of the rank with index i to the plan.
func (m *merge) add(v *verb, plan map[string]*joint, i int, it *item, offers []offer) error {
	j := plan[it.Name]
	axis, joins := m.axes(it.Name)
	switch {
	case joins && (axis < 0 || axis >= len(it.Shape)):
		return mismatch(i, "%srank %d has %v, which has no axis %d to join along", prefix(it.Name), v.ranks[i], it, axis)
	case j == nil:
		j = &joint{Info: safetensors.Info{DType: it.DType, Shape: slices.Clone(it.Shape)}, axis: axis, from: []int{i}, outer: 1}
		if !joins {
			j.axis = -1
		} else {
			j.outer = (&tensor.Tensor{Shape: it.Shape[:axis]}).Len()
		}
		plan[it.Name] = j
		return m.whole(v, i, it, j)
	}
	first := offers[j.from[0]].find(it.Name)
	if !fits(it, first, j.axis) {
		return mismatch(i, "%srank %d has %v, and rank %d %v%s", prefix(it.Name), v.ranks[i], it, v.ranks[j.from[0]], first, along(j.axis))
	}
	j.from = append(j.from, i)
	if j.axis >= 0 {
		if it.Shape[j.axis] > maxInt-j.Shape[j.axis] {
			return mismatch(i, "%sall ranks' lengths along axis %d are more than there are numbers for", prefix(it.Name), j.axis)
		}
		j.Shape[j.axis] += it.Shape[j.axis]
	}
	return m.whole(v, i, it, j)
}

// whole rejects packed elements whose runs do not begin and end on whole bytes.
func (m *merge) whole(v *verb, i int, it *item, j *joint) error {
	if j.outer > 1 && it.size()%j.outer != 0 {
		return mismatch(i, "%srank %d has %v, whose rows along axis %d are no whole bytes", prefix(it.Name), v.ranks[i], it, j.axis)
	}
	return nil
}

func along(axis int) string {
	if axis < 0 {
		return "; they are not joined along an axis, so they must be the same"
	}
	return fmt.Sprintf("; they may differ along axis %d only", axis)
}

// fits reports whether a and b have the same dtype, and the same shape except along axis.
func fits(a, b *item, axis int) bool {
	if a.DType != b.DType || len(a.Shape) != len(b.Shape) {
		return false
	}
	for i := range a.Shape {
		if i != axis && a.Shape[i] != b.Shape[i] {
			return false
		}
	}
	return true
}

// write copies all tensors to the sink, in the order of the result.
func (m *merge) write(ctx context.Context, v *verb, plan map[string]*joint, offers []offer, own contribution, l *resources) error {
	infos := make(map[string]safetensors.Info, len(plan))
	for name, j := range plan {
		infos[name] = j.Info
	}
	out, err := m.open(infos)
	if out == nil || err != nil {
		return err
	}
	from, err := v.sources(ctx, offers, own, l)
	if err != nil {
		return err
	}
	for _, name := range out.Names() {
		if err := plan[name].write(ctx, v, out, from, name); err != nil {
			return err
		}
	}
	return out.Close()
}

// write writes one tensor: for each index of the outer axes, a run of every rank.
func (j *joint) write(ctx context.Context, v *verb, w io.Writer, from []source, name string) error {
	readers := make([]*reader, len(j.from))
	for k, i := range j.from {
		readers[k] = newReader(from[i], name, v.blockLen(len(j.from)))
	}
	if j.axis < 0 {
		return j.copySame(ctx, v, w, name, readers)
	}
	if j.outer > 0 && slices.IndexFunc(readers, func(r *reader) bool { return r.size > 0 }) < 0 {
		return nil // there may be any number of empty rows
	}
	for range j.outer {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for k, r := range readers {
			if err := r.copyTo(ctx, w, r.size/int64(j.outer)); err != nil {
				return blame(j.from[k], name, err)
			}
		}
	}
	return nil
}

// copySame writes the tensor of the first of readers, and compares the others with it.
func (j *joint) copySame(ctx context.Context, v *verb, w io.Writer, name string, readers []*reader) error {
	first := readers[0]
	for first.left() > 0 {
		b, err := first.next(ctx, pieceLen)
		if err != nil {
			return blame(j.from[0], name, err)
		}
		for k, r := range readers[1:] {
			if err := r.same(ctx, b); err != nil {
				return v.diverged(j, k+1, name, err)
			}
		}
		if _, err := w.Write(b); err != nil {
			return blame(j.from[0], name, writeError{err})
		}
	}
	return nil
}

func (v *verb) diverged(j *joint, k int, name string, err error) error {
	if !errors.Is(err, errDiffers) {
		return blame(j.from[k], name, err)
	}
	return mismatch(j.from[k], prefix(name)+"rank %d has other bytes than rank %d, and no axis to join them along is given", v.ranks[j.from[k]], v.ranks[j.from[0]])
}
