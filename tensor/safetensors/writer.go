package safetensors

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/muster-pg/muster/tensor"
)

// Writer writes a file piece by piece, so that it may be larger than memory. After an error all its
// methods return that error. It is not safe for concurrent use.
type Writer struct {
	w    io.Writer
	h    *Header
	pos  int64  // offset of the next byte in the file
	next int    // tensors before this index cannot be begun again
	end  int64  // offset that a Write must not exceed
	name string // the tensor that ends there
	err  error  // the first error
}

// NewWriter writes the header for tensors with the dtypes and shapes of infos, whose Begin and End
// are ignored. The data must follow in the order of Names.
func NewWriter(w io.Writer, infos map[string]Info, metadata map[string]string) (*Writer, error) {
	h, head, err := plan(infos, metadata)
	if err != nil {
		return nil, err
	}
	if _, err := writeAll(w, head); err != nil {
		return nil, &WriteError{Err: err}
	}
	sw := &Writer{w: w, h: h, pos: h.start, end: h.Size()}
	if n := len(h.names); n > 0 {
		sw.name = h.names[n-1]
	}
	return sw, nil
}

func writeAll(w io.Writer, p []byte) (n int, err error) {
	n, err = w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// Names returns the tensors' names in the order in which their data must be written.
func (w *Writer) Names() []string { return w.h.Names() }

// Header returns the header that has been written, with the range of each tensor.
func (w *Writer) Header() *Header { return w.h }

// Begin declares that only the bytes of the tensor called name follow until the next Begin. It
// returns an error if that tensor is not next, or if bytes of a tensor before it are missing. Begin
// is optional: without it, the data is one stream.
func (w *Writer) Begin(name string) error {
	if w.err != nil {
		return w.err
	}
	i, ok := w.h.index[name]
	switch {
	case !ok:
		return w.fail(name, ErrNoTensor)
	case i < w.next || w.h.infos[i].Begin < w.pos:
		return w.fail(name, errors.New("it is written already"))
	case w.h.infos[i].Begin > w.pos:
		return w.missing()
	}
	w.next, w.end, w.name = i+1, w.h.infos[i].End, name
	return nil
}

// WriteTensor writes the tensor called name, which must be next. It returns an error if t does not
// match the header.
func (w *Writer) WriteTensor(name string, t *tensor.Tensor) error {
	if err := w.Begin(name); err != nil {
		return err
	}
	if err := t.Check(); err != nil {
		return w.fail(name, err)
	}
	if info, _ := w.h.Info(name); t.DType != info.DType || !slices.Equal(t.Shape, info.Shape) {
		return w.fail(name, fmt.Errorf("it is %v, but the header says %v", t, info))
	}
	_, err := w.Write(t.Data)
	return err
}

// Write writes the next bytes of the data. If p has more bytes than are left, of the tensor that
// was begun or of all, it returns an error and writes nothing.
func (w *Writer) Write(p []byte) (int, error) {
	switch over := int64(len(p)) - (w.end - w.pos); {
	case w.err != nil:
		return 0, w.err
	case over > 0:
		return 0, w.fail(w.name, fmt.Errorf("%d bytes too many", over))
	case len(p) == 0:
		return 0, nil
	}
	n, err := writeAll(w.w, p)
	w.pos += int64(n)
	if err != nil {
		return n, w.fail(w.current(), err)
	}
	return n, nil
}

// Close returns an error if bytes are missing. It does not close the underlying writer.
func (w *Writer) Close() error {
	if w.err == nil && w.pos < w.h.Size() {
		return w.missing()
	}
	return w.err
}

// current returns the tensor that the next byte belongs to.
func (w *Writer) current() string {
	for i, info := range w.h.infos {
		if info.End > w.pos {
			return w.h.names[i]
		}
	}
	return w.name
}

// missing returns the error for a tensor whose bytes have not all been written.
func (w *Writer) missing() error {
	name := w.current()
	info, _ := w.h.Info(name)
	return w.fail(name, fmt.Errorf("%d of its %d bytes are missing", info.End-w.pos, info.End-info.Begin))
}

func (w *Writer) fail(name string, err error) error {
	w.err = &WriteError{Tensor: name, Err: err}
	return w.err
}
