package blocks

import (
	"bytes"
	"context"
	"fmt"
	"io"
)

// Tensor is a tensor that parts make up.
type Tensor struct {
	Name   string
	Shape  []int
	Bits   int    // of an element
	Parts  []Part // of bytes; each byte is in one
	Copies []Part // that have the same bytes as the first part
}

// PartError is an error of reading a part.
type PartError struct {
	Tensor, Who string
	Err         error
}

func (e *PartError) Error() string {
	return fmt.Sprintf("%s: tensor %.200q: %v", e.Who, e.Tensor, e.Err)
}

// Unwrap returns Err.
func (e *PartError) Unwrap() error { return e.Err }

// streamBlock is how many bytes Stream reads at once, and a third of what it holds.
const streamBlock = 8 << 20

// Stream writes the bytes of tensors, row-major and one after the other, but for the first skip of them.
// It reads while w writes, and holds at most 32 MiB however large a tensor is. Copies must have the same
// bytes. An error of reading is a PartError, or that of ctx.
func Stream(ctx context.Context, w io.Writer, ts []*Tensor, skip int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	filled, free := make(chan []byte), make(chan []byte, 2)
	free <- nil
	free <- nil
	failed := make(chan error, 1)
	go func() {
		failed <- assemble(ctx, ts, skip, filled, free)
		close(filled)
	}()
	var err error
	for b := range filled {
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
func assemble(ctx context.Context, ts []*Tensor, skip int64, filled chan<- []byte, free <-chan []byte) error {
	var c Copier
	for _, t := range ts {
		whole, err := Whole(t.Shape).ToBytes(t.Bits)
		if err != nil {
			return err
		}
		if n := int64(whole.Size()); n <= skip {
			skip -= n
			continue
		}
		err = InRuns(whole.Shape, streamBlock, func(b Box) error {
			n := b.Size()
			if int64(n) <= skip {
				skip -= int64(n)
				return nil
			}
			to := <-free
			if cap(to) < n {
				to = make([]byte, n)
			}
			if err := t.read(ctx, &c, b, to[:n]); err != nil {
				return err
			}
			filled <- to[skip:n]
			skip = 0
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// read reads a block, and compares it with that of the copies.
func (t *Tensor) read(ctx context.Context, c *Copier, b Box, dst []byte) error {
	if err := t.readFrom(ctx, c, t.Parts, b, dst); err != nil || len(t.Copies) == 0 {
		return err
	}
	other := make([]byte, len(dst))
	for i := range t.Copies {
		if err := t.readFrom(ctx, c, t.Copies[i:i+1], b, other); err != nil {
			return err
		}
		if !bytes.Equal(dst, other) {
			return &PartError{t.Name, t.Copies[i].Who, fmt.Errorf("it has other bytes than %s, and no axis to join them along is given", t.Parts[0].Who)}
		}
	}
	return nil
}

// Read reads a block of bytes.
func (t *Tensor) Read(ctx context.Context, b Box, dst []byte) error {
	return t.readFrom(ctx, new(Copier), t.Parts, b, dst)
}

func (t *Tensor) readFrom(ctx context.Context, c *Copier, parts []Part, b Box, dst []byte) error {
	p, err := c.Copy(ctx, parts, b, dst)
	if p == nil {
		return err
	}
	return &PartError{t.Name, p.Who, err}
}
