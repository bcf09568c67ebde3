package safetensors

import (
	"fmt"
	"io"
)

// Writer writes a file piece by piece, so that it may be larger than memory. After an error all its
// methods return that error. It is not safe for concurrent use.
type Writer struct {
	w   io.Writer
	h   *Header
	pos int64 // offset of the next byte in the file
	err error // the first error
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
	return &Writer{w: w, h: h, pos: h.start}, nil
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

// Write writes the next bytes of the data, which is one stream of all tensors. If p has more bytes
// than are left, it returns an error and writes nothing.
func (w *Writer) Write(p []byte) (int, error) {
	switch over := int64(len(p)) - (w.h.Size() - w.pos); {
	case w.err != nil:
		return 0, w.err
	case over > 0:
		return 0, w.fail("", fmt.Errorf("%d bytes more than the tensors have", over))
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
		name := w.current()
		info, _ := w.h.Info(name)
		return w.fail(name, fmt.Errorf("%d of its %d bytes are missing", info.End-w.pos, info.End-info.Begin))
	}
	return w.err
}

// current returns the tensor that the next byte belongs to.
func (w *Writer) current() (name string) {
	for i, info := range w.h.infos {
		if name = w.h.names[i]; info.End > w.pos {
			break
		}
	}
	return name
}

func (w *Writer) fail(name string, err error) error {
	w.err = &WriteError{Tensor: name, Err: err}
	return w.err
}
