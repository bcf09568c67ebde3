// Package merge merges several shards of a model, which are local files, into one model. Tensors
// that were split are joined along an axis. All other tensors may be in one shard, or identical in
// several.
package merge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"slices"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Shard is a part of a model. Errors refer to it by its name.
type Shard struct {
	Name  string
	Model *safetensors.Model
}

// Plan describes the merged model.
type Plan struct {
	shards []Shard
	joints map[string]*joint
}

// joint is one tensor of the result.
type joint struct {
	safetensors.Info
	axis  int   // along which it is joined; -1: all shards have the same tensor
	from  []int // the indexes of the shards that have it
	outer int   // how many runs of bytes each shard contributes, in turn
}

// New compares the dtypes and shapes of the tensors of all shards; it reads no data. A tensor whose
// name is in axes is joined along that axis, from all shards that have it, in their order.
func New(shards []Shard, axes map[string]int) (*Plan, error) {
	p := &Plan{shards: shards, joints: map[string]*joint{}}
	for i, s := range shards {
		for _, f := range s.Model.Files() {
			for name, info := range f.Infos() {
				axis, joined := axes[name]
				if !joined {
					axis = -1
				}
				if err := p.add(i, name, info, axis); err != nil {
					return nil, fmt.Errorf("tensor %q: %w", name, err)
				}
			}
		}
	}
	for name, j := range p.joints {
		if _, err := tensor.Size(j.DType, j.Shape...); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
	}
	return p, nil
}

// add adds a tensor of shard i.
func (p *Plan) add(i int, name string, info safetensors.Info, axis int) error {
	this := p.shards[i].Name
	if axis >= len(info.Shape) {
		return fmt.Errorf("%s has %v, which has no axis %d to join along", this, info, axis)
	}
	j := p.joints[name]
	if j == nil {
		j = &joint{Info: info, axis: axis, outer: 1}
		j.Shape = slices.Clone(info.Shape)
		if axis >= 0 {
			j.outer = (&tensor.Tensor{Shape: info.Shape[:axis]}).Len()
			j.Shape[axis] = 0
		}
		p.joints[name] = j
	}
	if !j.fits(info) {
		rule := "they are not joined along an axis, so they must be the same"
		if axis >= 0 {
			rule = fmt.Sprintf("they may differ along axis %d only", axis)
		}
		first := p.info(j.from[0], name)
		return fmt.Errorf("%s has %v, and %s has %v; %s", this, info, p.shards[j.from[0]].Name, first, rule)
	}
	j.from = append(j.from, i)
	if axis < 0 {
		return nil
	}
	if info.Shape[axis] > math.MaxInt-j.Shape[axis] {
		return fmt.Errorf("all lengths along axis %d are more than there are numbers for", axis)
	}
	j.Shape[axis] += info.Shape[axis]
	if j.outer > 1 && (info.End-info.Begin)%int64(j.outer) != 0 {
		return fmt.Errorf("%s has %v, whose rows along axis %d are no whole bytes", this, info, axis)
	}
	return nil
}

// fits reports whether info has j's dtype, and j's shape except along the axis.
func (j *joint) fits(info safetensors.Info) bool {
	if info.DType != j.DType || len(info.Shape) != len(j.Shape) {
		return false
	}
	for i := range info.Shape {
		if i != j.axis && info.Shape[i] != j.Shape[i] {
			return false
		}
	}
	return true
}

// info returns the header entry of a tensor in shard i.
func (p *Plan) info(i int, name string) (info safetensors.Info) {
	for _, f := range p.shards[i].Model.Files() {
		if found, ok := f.Info(name); ok {
			return found
		}
	}
	return info
}

// block is how many bytes are compared or written between two checks of the context.
const block = 4 << 20

// Write writes the merged model to w. It stops when ctx ends. Before the data, it calls begin with
// the header of the file. If a mapped shard is truncated meanwhile, Write returns an error.
func (p *Plan) Write(ctx context.Context, w io.Writer, metadata map[string]string, begin func(*safetensors.Header)) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // a fault in a mapping
			err = errors.New("a shard was cut off, or can no longer be read")
		default:
			panic(r)
		}
	}()
	infos := make(map[string]safetensors.Info, len(p.joints))
	for name, j := range p.joints {
		infos[name] = j.Info
	}
	const small = 1 << 20 // buffers the runs along an inner axis, which are short
	last := &stopper{ctx: ctx, w: w}
	buffer := bufio.NewWriterSize(last, small)
	out, err := safetensors.NewWriter(buffer, infos, metadata)
	if err != nil {
		return cmp.Or(last.err, err)
	}
	begin(out.Header())
	for _, name := range out.Names() {
		if err := p.write(ctx, out, name); err != nil {
			return cmp.Or(last.err, err)
		}
	}
	return cmp.Or(last.err, out.Close(), buffer.Flush())
}

// write writes one tensor.
func (p *Plan) write(ctx context.Context, w io.Writer, name string) error {
	j := p.joints[name]
	parts := make([][]byte, len(j.from))
	for k, i := range j.from {
		t, err := p.shards[i].Model.Tensor(name)
		if err != nil {
			return err
		}
		parts[k] = t.Data
	}
	if j.axis < 0 {
		if err := p.compare(ctx, j, name, parts); err != nil {
			return err
		}
		_, err := w.Write(parts[0])
		return err
	}
	if !slices.ContainsFunc(parts, func(part []byte) bool { return len(part) > 0 }) {
		return nil // avoids iterating over any number of empty rows
	}
	for row := range j.outer {
		for _, part := range parts {
			n := len(part) / j.outer
			if _, err := w.Write(part[row*n:][:n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare returns an error if the bytes of a shard differ from those of the first one.
func (p *Plan) compare(ctx context.Context, j *joint, name string, parts [][]byte) error {
	first := p.shards[j.from[0]].Name
	for k, part := range parts[1:] {
		for at := 0; at < len(part); at += block {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			end := min(at+block, len(part))
			if !bytes.Equal(part[at:end], parts[0][at:end]) {
				return fmt.Errorf("tensor %q: %s has other bytes than %s, and no axis to join them along is given", name, p.shards[j.from[k+1]].Name, first)
			}
		}
	}
	return nil
}

// stopper is a writer that fails when its context has ended, and keeps its first error.
type stopper struct {
	ctx context.Context
	w   io.Writer
	err error
}

func (s *stopper) Write(b []byte) (n int, err error) {
	for len(b) > 0 && s.err == nil {
		if s.ctx.Err() != nil {
			s.err = context.Cause(s.ctx)
			break
		}
		var k int
		k, s.err = s.w.Write(b[:min(len(b), block)])
		n += k
		b = b[k:]
	}
	return n, s.err
}
