package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// maxBuffer bounds the bytes that one Read holds besides its result: those of parts that are not read
// in place.
const maxBuffer = 8 << 20

// Read reads a block of a tensor: shape[i] elements along axis i, from start[i] on, row-major, into
// dst, which has as many bytes. It reads the bytes of the block and, where rows of it are short, those
// between them.
func (s *Set) Read(ctx context.Context, name string, start, shape []int, dst []byte) error {
	e, ok := s.tensors[name]
	if !ok {
		return &Error{Tensor: name, Err: safetensors.ErrNoTensor}
	}
	b := box{start, shape}
	if len(start) != len(e.shape) || len(shape) != len(e.shape) || !b.within(e.shape) {
		return &Error{Tensor: name, Err: fmt.Errorf("a block %v of a tensor of shape [%s]", b, numbers(e.shape))}
	}
	b, err := b.toBytes(e.dtype.Bits())
	if err == nil && len(dst) != b.size() {
		err = fmt.Errorf("a block of %d bytes for %d", b.size(), len(dst))
	}
	if err != nil {
		return &Error{Tensor: name, Err: err}
	}
	return e.read(ctx, new(reader), e.parts, b, dst)
}

// ReadTensor reads a whole tensor.
func (s *Set) ReadTensor(ctx context.Context, name string) (*tensor.Tensor, error) {
	e, ok := s.tensors[name]
	if !ok {
		return nil, &Error{Tensor: name, Err: safetensors.ErrNoTensor}
	}
	t := tensor.New(e.dtype, e.shape...)
	return t, s.Read(ctx, name, make([]int, len(e.shape)), e.shape, t.Data)
}

// read reads what parts have of a block of bytes.
func (e *entry) read(ctx context.Context, r *reader, parts []part, b box, dst []byte) error {
	r.block, r.dst = rowMajor(b), dst
	for i := range parts {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := &parts[i]
		x := p.and(b)
		if x.size() == 0 {
			continue
		}
		if err := r.copy(p, x); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the file has been cut off since it was opened")
			}
			return &Error{File: p.file.name, Tensor: e.name, Err: err}
		}
	}
	return nil
}

// reader reads parts into one block after the other.
type reader struct {
	block array
	dst   []byte
	spare []byte // for bytes that are not contiguous in dst; kept for the next block
}

// copy reads x, which is in the part and in the block. It reads where x is contiguous in the part, or
// almost so, and divides x otherwise.
func (r *reader) copy(p *part, x box) error {
	size, span := x.size(), p.span(x)
	switch {
	case span == size && r.block.span(x) == size && r.alike(p, x):
		return p.readAt(r.dst[r.block.at(x):][:size], p.at(x))
	case span <= maxBuffer && span/4 <= size:
		if len(r.spare) < span {
			r.spare = make([]byte, max(span, min(maxBuffer, p.size())))
		}
		if err := p.readAt(r.spare[:span], p.at(x)); err != nil {
			return err
		}
		r.scatter(p, x, r.spare[:span])
		return nil
	}
	first, second := p.halves(x)
	if err := r.copy(p, first); err != nil {
		return err
	}
	return r.copy(p, second)
}

// alike reports whether the elements of x are as far apart in the part as in the block.
func (r *reader) alike(p *part, x box) bool {
	for i, n := range x.shape {
		if n > 1 && p.strides[i] != r.block.strides[i] {
			return false
		}
	}
	return true
}

// scatter copies x, whose bytes of the part are src, to the block.
func (r *reader) scatter(p *part, x box, src []byte) {
	k, run := len(x.shape), 1 // x is contiguous in both from axis k on
	for ; k > 0 && (x.shape[k-1] == 1 || p.strides[k-1] == run && r.block.strides[k-1] == run); k-- {
		run *= x.shape[k-1]
	}
	index := make([]int, k) // of the run, along the axes before k
	from, to := 0, r.block.at(x)
	for {
		copy(r.dst[to:][:run], src[from:])
		axis := k - 1
		for ; axis >= 0 && index[axis] == x.shape[axis]-1; axis-- {
			from -= index[axis] * p.strides[axis]
			to -= index[axis] * r.block.strides[axis]
			index[axis] = 0
		}
		if axis < 0 {
			return
		}
		index[axis]++
		from += p.strides[axis]
		to += r.block.strides[axis]
	}
}

func (p *part) readAt(b []byte, at int) error {
	_, err := p.file.ReadAt(b, p.from+int64(at))
	return err
}
