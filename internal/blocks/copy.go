package blocks

import "context"

// Part is what one of several, a file or a rank, has of a tensor.
type Part struct {
	Array
	Who string // has it, for errors
	// Read reads len(b) elements, which are bytes then, from the one at on.
	Read func(b []byte, at int64) error
}

// maxBuffer bounds the bytes that a Copier holds besides its result: those that it does not read in place.
const maxBuffer = 8 << 20

// Copier reads blocks of tensors. It keeps a buffer between them, and is not safe for concurrent use.
type Copier struct {
	spare []byte // for bytes that are not contiguous in a block
}

// Copy reads what parts have of a block of bytes into dst, row-major. It reads the bytes of the block and,
// where rows of it are short, those between them. If a part is returned, the error is that of reading it.
func (c *Copier) Copy(ctx context.Context, parts []Part, b Box, dst []byte) (*Part, error) {
	r := reader{c, RowMajor(b), dst}
	for i := range parts {
		p := &parts[i]
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if x := p.And(b); x.Size() > 0 {
			if err := r.copy(p, x); err != nil {
				return p, err
			}
		}
	}
	return nil, nil
}

// reader reads parts into a block.
type reader struct {
	*Copier
	block Array
	dst   []byte
}

// copy reads x, which is in the part and in the block. It reads where x is contiguous in the part, or
// almost so, and divides x otherwise.
func (r *reader) copy(p *Part, x Box) error {
	size, span := x.Size(), p.span(x)
	switch {
	case span == size && r.block.span(x) == size && r.alike(p, x):
		return p.Read(r.dst[r.block.at(x):][:size], int64(p.at(x)))
	case span <= maxBuffer && span/4 <= size:
		if len(r.spare) < span {
			r.spare = make([]byte, max(span, min(maxBuffer, p.Size())))
		}
		if err := p.Read(r.spare[:span], int64(p.at(x))); err != nil {
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
func (r *reader) alike(p *Part, x Box) bool {
	for i, n := range x.Shape {
		if n > 1 && p.Strides[i] != r.block.Strides[i] {
			return false
		}
	}
	return true
}

// scatter copies x, whose bytes of the part are src, to the block.
func (r *reader) scatter(p *Part, x Box, src []byte) {
	k, run := len(x.Shape), 1 // x is contiguous in both from axis k on
	for ; k > 0 && (x.Shape[k-1] == 1 || p.Strides[k-1] == run && r.block.Strides[k-1] == run); k-- {
		run *= x.Shape[k-1]
	}
	index := make([]int, k) // of the run, along the axes before k
	from, to := 0, r.block.at(x)
	for {
		copy(r.dst[to:][:run], src[from:])
		axis := k - 1
		for ; axis >= 0 && index[axis] == x.Shape[axis]-1; axis-- {
			from -= index[axis] * p.Strides[axis]
			to -= index[axis] * r.block.Strides[axis]
			index[axis] = 0
		}
		if axis < 0 {
			return
		}
		index[axis]++
		from += p.Strides[axis]
		to += r.block.Strides[axis]
	}
}
