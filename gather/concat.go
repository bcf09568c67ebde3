package gather

import (
	"context"
	"fmt"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/internal/joint"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Concat joins the t of each rank of the list along axis, in the order of the list; a rank without
// a part passes nil. The first rank gets the result, in memory of its own; all other ranks get nil.
// All parts have the same dtype, and the same shape except along axis.
func Concat(ctx context.Context, ga *Gatherer, ranks []int, axis int, t *tensor.Tensor) (out *tensor.Tensor, err error) {
	own := contributionOf(t)
	own.axis, own.lazy = axis, true
	ctx, cancel := ga.bound(ctx)
	defer cancel()
	v, err := ga.begin(ctx, opConcat, ranks)
	if v == nil || err != nil {
		return nil, err
	}
	defer func() { v.end(ctx, err) }()
	if !v.first() {
		return nil, v.sendAll(ctx, own, sameAxis)
	}
	l := &resources{}
	defer l.release()
	err = v.receiveOffers(ctx, own, l, sameAxis, func(ctx context.Context, offers []offer) error {
		from, err := v.sources(ctx, offers, own, l)
		if err == nil {
			out, err = v.concat(ctx, offers, from)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// sendAll sends a lazy contribution, and returns when the first rank has read all of it.
func (v *verb) sendAll(ctx context.Context, own contribution, agree check) error {
	l, err := v.send(ctx, own, agree)
	if err != nil {
		return err
	}
	// all data has been read, but the first rank may not have released it yet
	if err := l.returned(ctx); ctx.Err() != nil {
		return err
	}
	return nil // it is released, or the first rank is gone and reads nothing
}

func sameAxis(v *verb, offers []offer) error {
	for i := range offers {
		if offers[i].Axis != offers[0].Axis {
			return mismatch(i, "rank %d joins along axis %d, and rank %d along axis %d", v.ranks[i], offers[i].Axis, v.ranks[0], offers[0].Axis)
		}
	}
	return nil
}

// concat joins what ranks offer; nil if all are absent.
func (v *verb) concat(ctx context.Context, offers []offer, from []source) (*tensor.Tensor, error) {
	axis := offers[0].Axis
	plan := &joint.Plan{
		Joints: map[string]*joint.Joint{}, Axis: func(string) (int, bool) { return axis, true },
		Who: func(i int) string { return fmt.Sprint("rank ", v.ranks[i]) },
	}
	for i := range offers {
		for k := range offers[i].items {
			it := &offers[i].items[k]
			if err := plan.Add(i, it.Name, safetensors.Info{DType: it.DType, Shape: it.Shape, End: int64(it.size())}); err != nil {
				return nil, mismatch(i, "%v", err)
			}
		}
	}
	if _, err := plan.Check(); err != nil {
		return nil, err
	}
	j := plan.Joints[unnamed]
	if j == nil {
		return nil, nil
	}
	size, _ := tensor.Size(j.DType, j.Shape...) // plan has checked it
	if err := shm.CheckMemory(int64(size)); err != nil {
		return nil, failed(0, err)
	}
	out := tensor.New(j.DType, j.Shape...)
	at := 0
	for _, i := range j.From {
		part := blocks.Whole(offers[i].items[0].Shape)
		part.Start[axis] = at
		at += part.Shape[axis]
		if part.Size() == 0 {
			continue
		}
		if err := v.copyPart(ctx, out, part, from[i]); err != nil {
			return nil, failed(i, err)
		}
	}
	return out, nil
}

// copyPart reads a part of out from a source.
func (v *verb) copyPart(ctx context.Context, out *tensor.Tensor, part blocks.Box, from source) error {
	whole, err := blocks.Whole(out.Shape).ToBytes(out.DType.Bits())
	if err != nil {
		return err
	}
	a, err := blocks.Array{Box: part}.ToBytes(out.DType.Bits())
	if err != nil {
		return err
	}
	_, err = new(blocks.Copier).Copy(ctx, []blocks.Part{{Array: a, Read: reading(ctx, from, unnamed)}}, whole, out.Data)
	return err
}

// reading returns what reads a tensor of a source.
func reading(ctx context.Context, from source, name string) func(b []byte, at int64) error {
	return func(b []byte, at int64) error {
		got, err := from.at(ctx, name, at, len(b), b)
		if err == nil && &got[0] != &b[0] {
			copy(b, got)
		}
		return err
	}
}
