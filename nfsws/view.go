package nfsws

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/muster-pg/muster/internal/blocking"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// View is an open state that is read part by part, for states that are larger than memory. All data
// is verified. It is not safe for concurrent use.
type View struct {
	Rank       int
	Generation uint64
	Version    Version
	Config     []byte              // JSON; nil if there was none
	Header     *safetensors.Header // what the weights are: names, dtypes, shapes

	w      *Workspace
	src    *source
	closed bool
	part   int    // whose bytes are in spare; -1: none
	spare  []byte // a part that was read only in part
}

// View opens the state v of rank, or the newest, as Read does. The caller closes it.
func (w *Workspace) View(ctx context.Context, rank int, v Version) (*View, error) {
	return get(ctx, w, "view", rank, v, w.view)
}

// view opens a state, once.
func (w *Workspace) view(_ context.Context, rank int, v Version) (*View, error) {
	src, err := w.open(rank, v)
	if err != nil {
		return nil, err
	}
	view := &View{
		Rank: rank, Generation: w.generation, Version: src.version, Config: src.manifest.config(),
		w: w, src: src, part: -1,
	}
	view.Header, err = safetensors.ReadHeader(headerReader{view}, src.size())
	if errors.Is(err, safetensors.ErrFormat) {
		err = corrupt(src.name, "%w", err)
	}
	if err != nil {
		src.file.Close()
		return nil, err
	}
	return view, nil
}

// headerReader reads a file once; the caller opens it again where that is needed.
type headerReader struct{ v *View }

func (r headerReader) ReadAt(p []byte, off int64) (int, error) {
	return r.v.readAt(p, off, r.v.src.size(), r.v.src.read)
}

// ReadAt fills p with the bytes of the tensor called name from off on, as io.ReaderAt does; the
// tensor's end is io.EOF. Whole mebibytes of the file are read into p without a copy, so that large
// blocks are faster than small ones. If the files are gone since a newer state replaced this one,
// it is ErrNotPublished; what was read before is right. When ctx has ended, neither p nor the View may
// be used again: the file system may still answer.
func (v *View) ReadAt(ctx context.Context, name string, p []byte, off int64) (n int, err error) {
	info, ok := v.Header.Info(name)
	switch {
	case v.closed:
		err = ErrClosed
	case !ok:
		err = fmt.Errorf("%w: %q", safetensors.ErrNoTensor, name)
	case off < 0:
		err = fmt.Errorf("tensor %q has no byte %d", name, off)
	case off >= info.End-info.Begin:
		return 0, io.EOF
	default:
		n, err = blocking.Do(ctx, func() (int, error) {
			return v.readAt(p, info.Begin+off, info.End, func(p []byte, part int) error { return v.read(ctx, p, part) })
		})
	}
	if err == nil || err == io.EOF { //nolint:errorlint // io.EOF is a value of readAt's own
		return n, err
	}
	return n, v.w.wrap("view", v.Rank, err)
}

// readAt reads the file from off up to end.
func (v *View) readAt(p []byte, off, end int64, read func(p []byte, part int) error) (n int, err error) {
	for n < len(p) {
		if off >= end {
			return n, io.EOF
		}
		part := int(off / partBytes)
		from, to := v.src.extent(part)
		rest := p[n:min(int64(len(p)), int64(n)+end-off)]
		var got int
		if off == from && int64(len(rest)) >= to-from && part != v.part {
			got = int(to - from)
			err = read(rest[:got], part)
		} else if err = v.fetch(part, read); err == nil {
			got = copy(rest, v.spare[off-from:to-from])
		}
		if err != nil {
			return n, err
		}
		n, off = n+got, off+int64(got)
	}
	return n, nil
}

// fetch has part in spare.
func (v *View) fetch(part int, read func(p []byte, part int) error) error {
	if v.part == part {
		return nil
	}
	if v.spare == nil {
		v.spare = make([]byte, partBytes)
	}
	from, to := v.src.extent(part)
	v.part = -1
	if err := read(v.spare[:to-from], part); err != nil {
		return err
	}
	v.part = part
	return nil
}

// read reads a part. If the file handle is stale, or the bytes are wrong, it opens the file again
// by name: a name never gets other contents.
func (v *View) read(ctx context.Context, p []byte, part int) error {
	err := v.src.read(p, part)
	if !passing(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, staleTime)
	defer cancel()
	_, err = getExactly(ctx, v.w, v.Rank, v.Version, func(_ context.Context, rank int, version Version) (*source, error) {
		src, err := v.w.open(rank, version)
		if err != nil {
			return nil, err
		}
		v.src.file.Close()
		v.src = src
		return src, src.read(p, part)
	})
	return err
}

// Close closes the files. It may be called twice. What was read stays valid.
func (v *View) Close() error {
	if v.closed {
		return nil
	}
	v.closed = true
	return v.w.wrap("close", v.Rank, at(v.src.name, v.src.file.Close()))
}
