package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Read reads a block of a tensor: shape[i] elements along axis i, from start[i] on, row-major, into
// dst, which has as many bytes. It reads the bytes of the block and, where rows of it are short, those
// between them.
func (s *Set) Read(ctx context.Context, name string, start, shape []int, dst []byte) error {
	e, ok := s.tensors[name]
	if !ok {
		return &Error{Tensor: name, Err: safetensors.ErrNoTensor}
	}
	b := blocks.Box{Start: start, Shape: shape}
	if len(start) != len(e.Shape) || len(shape) != len(e.Shape) || !b.Within(e.Shape) {
		return &Error{Tensor: name, Err: fmt.Errorf("a block %v of a tensor of shape [%s]", b, blocks.Numbers(e.Shape))}
	}
	b, err := b.ToBytes(e.Bits)
	if err == nil && len(dst) != b.Size() {
		err = fmt.Errorf("a block of %d bytes for %d", b.Size(), len(dst))
	}
	if err != nil {
		return &Error{Tensor: name, Err: err}
	}
	return wrap(e.Read(ctx, b, dst))
}

// ReadTensor reads a whole tensor.
func (s *Set) ReadTensor(ctx context.Context, name string) (*tensor.Tensor, error) {
	e, ok := s.tensors[name]
	if !ok {
		return nil, &Error{Tensor: name, Err: safetensors.ErrNoTensor}
	}
	t := tensor.New(e.dtype, e.Shape...)
	return t, s.Read(ctx, name, make([]int, len(e.Shape)), e.Shape, t.Data)
}

// Stream writes the bytes of tensors, row-major and one after the other, but for the first skip of them.
// It reads while w writes, and holds at most 32 MiB however large a tensor is. Copies of a tensor must have
// the same bytes.
func (s *Set) Stream(ctx context.Context, w io.Writer, names []string, skip int64) error {
	var ts []*blocks.Tensor
	for _, name := range names {
		e, ok := s.tensors[name]
		if !ok {
			return &Error{Tensor: name, Err: safetensors.ErrNoTensor}
		}
		ts = append(ts, &e.Tensor)
	}
	return wrap(blocks.Stream(ctx, w, ts, skip))
}

// wrap makes an Error of that of a part.
func wrap(err error) error {
	e, ok := errors.AsType[*blocks.PartError](err)
	if !ok {
		return err
	}
	if errors.Is(err, io.EOF) {
		e.Err = errors.New("the file has been cut off since it was opened")
	}
	return &Error{File: e.Who, Tensor: e.Tensor, Err: e.Err}
}
