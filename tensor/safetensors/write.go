package safetensors

import (
	"bufio"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/muster-pg/muster/tensor"
)

// Write writes tensors as one file, with the bytes of the reference writer. Nil metadata is left
// out. It writes nothing if a tensor or a name is invalid.
func Write(w io.Writer, ts map[string]*tensor.Tensor, metadata map[string]string) error {
	infos, err := infosOf(ts)
	if err != nil {
		return err
	}
	const small = 64 << 10 // larger writes bypass the buffer
	b := bufio.NewWriterSize(w, small)
	sw, err := NewWriter(b, infos, metadata)
	if err != nil {
		return err
	}
	for _, name := range sw.Names() {
		if _, err := sw.Write(ts[name].Data); err != nil {
			return err
		}
	}
	if err := b.Flush(); err != nil {
		return &WriteError{Err: err}
	}
	return sw.Close()
}

// WriteFile writes tensors to the file called name, atomically and durably: it writes a file
// .safetensors-*.tmp in the same directory, syncs it, and renames it. It replaces an existing file.
// If it fails, it leaves no file behind. Processes that have the old file open keep it.
func WriteFile(name string, ts map[string]*tensor.Tensor, metadata map[string]string) error {
	dir := filepath.Dir(name)
	temp := filepath.Join(dir, ".safetensors-"+rand.Text()+".tmp")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return &WriteError{File: name, Err: err}
	}
	if err = fill(f, ts, metadata); err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		_ = os.Remove(temp) // the first error is returned
	} else if err = syncDir(dir); err == nil {
		return nil
	}
	if _, ok := errors.AsType[*WriteError](err); ok {
		return inFile(name, err)
	}
	return &WriteError{File: name, Err: err}
}

// fill writes f, and makes it durable. NFS may report a failed write only at Close.
func fill(f *os.File, ts map[string]*tensor.Tensor, metadata map[string]string) error {
	err := Write(f, ts, metadata)
	if err == nil {
		err = f.Sync()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}
