package safetensors

import (
	"bytes"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"sync"

	"github.com/muster-pg/muster/tensor"
)

// File is a file's header and its tensors. It is safe for concurrent use.
type File struct {
	Header

	name string
	data []byte // of the tensors

	mu     sync.Mutex // protects the fields below
	mapped []byte     // what Close unmaps; nil if the data is in memory
	closed bool
}

// Parse checks a whole file in memory. The tensors alias b, and may be modified if b may.
func Parse(b []byte) (*File, error) {
	h, err := ReadHeader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, err
	}
	return &File{Header: *h, data: b[h.start:]}, nil
}

// openFile opens a regular file whose size fits in memory.
func openFile(name string) (r *os.File, size int64, err error) {
	// opening a pipe would block
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("safetensors: %s is no regular file", name)
	}
	if r, err = os.Open(name); err != nil {
		return nil, 0, fmt.Errorf("safetensors: %w", err)
	}
	st, err := r.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("safetensors: %w", err)
	case !st.Mode().IsRegular():
		err = fmt.Errorf("safetensors: %s is no regular file", name)
	case uint64(st.Size()) > maxInt:
		err = fmt.Errorf("safetensors: %s has %d bytes, more than memory can have", name, st.Size())
	}
	if err != nil {
		r.Close()
		return nil, 0, err
	}
	return r, st.Size(), nil
}

// Tensor returns the tensor called name. It returns ErrNoTensor if there is none, and fs.ErrClosed
// after Close. The tensor shares f's memory.
func (f *File) Tensor(name string) (*tensor.Tensor, error) {
	if f.isClosed() {
		return nil, fmt.Errorf("safetensors: %stensor %s: %w", f.where(), quote(name), fs.ErrClosed)
	}
	i, ok := f.index[name]
	if !ok {
		return nil, fmt.Errorf("safetensors: %stensor %s: %w", f.where(), quote(name), ErrNoTensor)
	}
	return f.at(i), nil
}

func (f *File) where() string {
	if f.name == "" {
		return ""
	}
	return f.name + ": "
}

// at returns the tensor i. The check of the header has ensured that its data is complete.
func (f *File) at(i int) *tensor.Tensor {
	info := f.infos[i]
	begin, end := info.Begin-f.start, info.End-f.start
	shape := append(make([]int, 0, len(info.Shape)), info.Shape...)
	return &tensor.Tensor{DType: info.DType, Shape: shape, Data: f.data[begin:end:end]}
}

// All yields all tensors, in the order of their data. They share f's memory. It panics after Close:
// yielding nothing could be mistaken for an empty file.
func (f *File) All() iter.Seq2[string, *tensor.Tensor] {
	return func(yield func(string, *tensor.Tensor) bool) {
		for i, name := range f.names {
			if f.isClosed() {
				panic("safetensors: " + f.where() + "All of a closed File")
			}
			if !yield(name, f.at(i)) {
				return
			}
		}
	}
}

func (f *File) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// Close closes f, and unmaps the mapping of Open: using one of its tensors later is a fault that no
// recover catches. Tensors in memory stay valid. A File that is not closed keeps its mapping until
// the process ends.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	mapped := f.mapped
	f.mapped = nil
	if mapped == nil {
		return nil
	}
	if err := unmap(mapped); err != nil {
		return fmt.Errorf("safetensors: unmap %s: %w", f.name, err)
	}
	return nil
}

// Open maps a file, read-only. It reads only the header; tensors are read when they are used. If
// the file is truncated later, such as a file on NFS that another host replaces, using the missing
// part is a fault that ends the process: Parse what os.ReadFile returns of such files. A replacement
// by a rename, as by WriteFile, does not affect the mapping. On systems that cannot map files, Open
// reads all of it into memory.
func Open(name string) (*File, error) {
	f, err := mapFile(name)
	if err != nil {
		return nil, inFile(name, err)
	}
	f.name = name
	return f, nil
}
