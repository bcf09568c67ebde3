package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/muster-pg/muster/tensor/safetensors"
)

// streamBlock is how many bytes Stream reads at once. It holds two such blocks, and maxBuffer.
const streamBlock = 8 << 20

// Stream writes the bytes of tensors, row-major and one after the other, but for the first skip of them.
// It reads while w writes, and holds at most 32 MiB however large a tensor is. Copies of a tensor must have
// the same bytes.
func (s *Set) Stream(ctx context.Context, w io.Writer, names []string, skip int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	blocks, free := make(chan []byte), make(chan []byte, 2)
	free <- nil
	free <- nil
	failed := make(chan error, 1)
	go func() {
		failed <- s.assemble(ctx, names, skip, blocks, free)
		close(blocks)
	}()
	var err error
	for b := range blocks {
		if err == nil {
			if _, err = w.Write(b); err != nil {
				cancel(err)
			}
		}
		free <- b
	}
	cancel(nil)
	if reading := <-failed; err == nil {
		err = reading
	}
	return err
}

// assemble sends the bytes of tensors in blocks, each in a slice from free.
func (s *Set) assemble(ctx context.Context, names []string, skip int64, blocks chan<- []byte, free <-chan []byte) error {
	var r reader
	for _, name := range names {
		e, ok := s.tensors[name]
		if !ok {
			return &Error{Tensor: name, Err: safetensors.ErrNoTensor}
		}
		shape, err := whole(e.shape).toBytes(e.dtype.Bits())
		if err != nil {
			return &Error{Tensor: name, Err: err}
		}
		if n := int64(shape.size()); n <= skip {
			skip -= n
			continue
		}
		err = inRuns(shape.shape, streamBlock, func(b box) error {
			n := b.size()
			if int64(n) <= skip {
				skip -= int64(n)
				return nil
			}
			to := <-free
			if cap(to) < n {
				to = make([]byte, n)
			}
			if err := e.readAll(ctx, &r, b, to[:n]); err != nil {
				return err
			}
			blocks <- to[skip:n]
			skip = 0
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// readAll reads a block, and compares it with that of the copies.
func (e *entry) readAll(ctx context.Context, r *reader, b box, dst []byte) error {
	if err := e.read(ctx, r, e.parts, b, dst); err != nil || len(e.copies) == 0 {
		return err
	}
	other := make([]byte, len(dst))
	for i := range e.copies {
		if err := e.read(ctx, r, e.copies[i:i+1], b, other); err != nil {
			return err
		}
		if !bytes.Equal(dst, other) {
			return &Error{File: e.copies[i].file.name, Tensor: e.name, Err: fmt.Errorf("it has other bytes than %s, and no axis to join them along is given", e.parts[0].file.name)}
		}
	}
	return nil
}
