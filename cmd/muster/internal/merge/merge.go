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
	"runtime/debug"
	"slices"

	"github.com/muster-pg/muster/internal/joint"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Shard is a part of a model. Errors refer to it by its name.
type Shard struct {
	Name  string
	Model *safetensors.Model
}

// Plan describes the merged model.
type Plan struct {
	joint.Plan
	shards []Shard
}

// New compares the dtypes and shapes of the tensors of all shards; it reads no data. A tensor whose
// name is in axes is joined along that axis, from all shards that have it, in their order.
func New(shards []Shard, axes map[string]int) (*Plan, error) {
	p := &Plan{shards: shards}
	p.Joints, p.Who = map[string]*joint.Joint{}, func(i int) string { return shards[i].Name }
	p.Axis = func(name string) (axis int, joined bool) { axis, joined = axes[name]; return axis, joined }
	for i, s := range shards {
		for _, f := range s.Model.Files() {
			for name, info := range f.Infos() {
				if err := p.Add(i, name, info); err != nil {
					return nil, fmt.Errorf("tensor %q: %w", name, err)
				}
			}
		}
	}
	if name, err := p.Check(); err != nil {
		return nil, fmt.Errorf("tensor %q: %w", name, err)
	}
	return p, nil
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
	const small = 1 << 20 // buffers the runs along an inner axis, which are short
	last := &stopper{ctx: ctx, w: w}
	buffer := bufio.NewWriterSize(last, small)
	out, err := safetensors.NewWriter(buffer, p.Infos(), metadata)
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
	j := p.Joints[name]
	parts := make([][]byte, len(j.From))
	for k, i := range j.From {
		t, err := p.shards[i].Model.Tensor(name)
		if err != nil {
			return err
		}
		parts[k] = t.Data
	}
	if j.Axis < 0 {
		if err := p.compare(ctx, j, name, parts); err != nil {
			return err
		}
		_, err := w.Write(parts[0])
		return err
	}
	if !slices.ContainsFunc(parts, func(part []byte) bool { return len(part) > 0 }) {
		return nil // avoids iterating over any number of empty rows
	}
	for row := range j.Outer {
		for _, part := range parts {
			n := len(part) / j.Outer
			if _, err := w.Write(part[row*n:][:n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare returns an error if the bytes of a shard differ from those of the first one.
func (p *Plan) compare(ctx context.Context, j *joint.Joint, name string, parts [][]byte) error {
	first := p.shards[j.From[0]].Name
	for k, part := range parts[1:] {
		for at := 0; at < len(part); at += block {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			end := min(at+block, len(part))
			if !bytes.Equal(part[at:end], parts[0][at:end]) {
				return fmt.Errorf("tensor %q: %s has other bytes than %s, and no axis to join them along is given", name, p.shards[j.From[k+1]].Name, first)
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
