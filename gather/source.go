package gather

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
)

// source is one rank's tensors, read piece by piece.
type source interface {
	// size returns the size of a tensor in bytes.
	size(name string) int64
	// inMemory reports whether at needs no buf, and accepts any n.
	inMemory(name string) bool
	// at returns n bytes of a tensor from off on, which must exist. They may be in buf.
	at(ctx context.Context, name string, off int64, n int, buf []byte) ([]byte, error)
}

// blockMemory is the total buffer size of the readers of a tensor that is not in memory.
const blockMemory = 8 << 20

// blockLen returns the share of blockMemory of each of n readers.
func (v *verb) blockLen(n int) int { return max(blockMemory/n, 64<<10) }

// sources returns the sources of all ranks of the list, by index; nil for absent ranks.
func (v *verb) sources(ctx context.Context, offers []offer, own contribution, l *resources) ([]source, error) {
	from := make([]source, len(offers))
	for i := range offers {
		if offers[i].Absent {
			continue
		}
		if i == 0 {
			from[i] = local(own.tensors)
			continue
		}
		r := &receiver{verb: v, from: i, offer: &offers[i], resources: l}
		s, err := r.source(ctx)
		if err != nil {
			return nil, failed(i, err)
		}
		from[i] = s
	}
	return from, nil
}

func (r *receiver) source(ctx context.Context) (source, error) {
	if r.offer.Version != nil {
		view, err := r.ga.files.View(ctx, r.rank(), *r.offer.Version)
		if err != nil {
			return nil, err
		}
		r.resources.keep(func() { _ = view.Close() })
		return &published{r, view}, nil
	}
	if err := r.reach(ctx); err != nil {
		return nil, err
	}
	if r.offer.Export == 0 {
		return &remote{receiver: r}, nil
	}
	stream, err := r.ga.in.streamOf(r.senderID(), r.offer.Stream)
	return &remote{receiver: r, stream: stream}, err
}

// local is the first rank's own tensors.
type local map[string]*tensor.Tensor

func (l local) size(name string) int64 { return int64(len(l[name].Data)) }

func (l local) inMemory(string) bool { return true }

func (l local) at(_ context.Context, name string, off int64, n int, _ []byte) ([]byte, error) {
	return l[name].Data[off:][:n], nil
}

// remote is another rank's tensors, in shared memory or fetched over a stream.
type remote struct {
	*receiver
	stream *fetcher
}

func (r *remote) size(name string) int64 { return int64(r.offer.find(name).size()) }

func (r *remote) inMemory(name string) bool { return r.offer.find(name).Ref >= 0 }

func (r *remote) at(ctx context.Context, name string, off int64, n int, buf []byte) ([]byte, error) {
	it := r.offer.find(name)
	if it.Ref >= 0 {
		return r.offer.blocks[it.Ref].Data[it.Off+off:][:n], ctx.Err()
	}
	i, _ := r.offer.index(name)
	_, err := r.stream.fetch(ctx, r.offer.Export, []want{{i, off, buf[:n]}})
	return buf[:n], err
}

// published is another rank's tensors, in files.
type published struct {
	*receiver
	view *nfsws.View
}

func (p *published) size(name string) int64 { return int64(p.offer.find(name).size()) }

func (p *published) inMemory(string) bool { return false }

func (p *published) at(ctx context.Context, name string, off int64, n int, buf []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	_, err := p.view.ReadAt(ctx, name, buf[:n], off)
	return buf[:n], err
}

// reader reads a tensor of a source sequentially.
type reader struct {
	from      source
	name      string
	size, off int64
	block     int
	buf       []byte // allocated on demand
	have      []byte // bytes that were read and not yet taken
}

func newReader(from source, name string, block int) *reader {
	return &reader{from: from, name: name, size: from.size(name), block: block}
}

// left returns the number of bytes that have not been taken.
func (r *reader) left() int64 { return r.size - r.off + int64(len(r.have)) }

// next takes up to n bytes, at least one. They are valid until the next call.
func (r *reader) next(ctx context.Context, n int64) ([]byte, error) {
	if len(r.have) == 0 {
		if err := r.fill(ctx); err != nil {
			return nil, err
		}
	}
	n = min(n, int64(len(r.have)))
	b := r.have[:n]
	r.have = r.have[n:]
	return b, nil
}

func (r *reader) fill(ctx context.Context) (err error) {
	n := int(r.size - r.off)
	if n == 0 {
		return io.ErrUnexpectedEOF
	}
	if !r.from.inMemory(r.name) {
		n = min(n, r.block)
		if r.buf == nil {
			r.buf = make([]byte, n)
		}
	}
	r.have, err = r.from.at(ctx, r.name, r.off, n, r.buf)
	r.off += int64(n)
	return err
}

// copyTo writes the next n bytes to w.
func (r *reader) copyTo(ctx context.Context, w io.Writer, n int64) error {
	for n > 0 {
		b, err := r.next(ctx, n)
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return writeError{err}
		}
		n -= int64(len(b))
	}
	return nil
}

var errDiffers = errors.New("other bytes")

// same takes as many bytes as b has, and compares them with b.
func (r *reader) same(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		c, err := r.next(ctx, int64(len(b)))
		if err != nil {
			return err
		}
		if !bytes.Equal(c, b[:len(c)]) {
			return errDiffers
		}
		b = b[len(c):]
	}
	return nil
}

// writeError is an error of the first rank's writer; no other rank is at fault.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

// blame returns the failure for an error of reading a tensor from the rank with index i, or of
// writing it: it names the rank at fault.
func blame(i int, name string, err error) error {
	if w, ok := errors.AsType[writeError](err); ok {
		return w.error
	}
	return failed(i, named(name, err))
}
