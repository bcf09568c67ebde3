package gather

import (
	"context"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
)

// source is one rank's tensors, read piece by piece.
type source interface {
	// at returns n bytes of a tensor from off on, which must exist. They may be in buf.
	at(ctx context.Context, name string, off int64, n int, buf []byte) ([]byte, error)
}

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

func (l local) at(_ context.Context, name string, off int64, n int, _ []byte) ([]byte, error) {
	return l[name].Data[off:][:n], nil
}

// remote is another rank's tensors, in shared memory or fetched over a stream.
type remote struct {
	*receiver
	stream *fetcher
}

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

func (p *published) at(ctx context.Context, name string, off int64, n int, buf []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	_, err := p.view.ReadAt(ctx, name, buf[:n], off)
	return buf[:n], err
}
