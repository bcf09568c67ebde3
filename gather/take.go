package gather

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
)

// parcels is what the first rank has received, by index in the list. What it gave itself is not in it.
type parcels []received

type received struct {
	absent  bool
	config  []byte
	tensors map[string]*tensor.Tensor
}

// check compares offers before any of their bytes are looked at; an error is everybody's.
type check func(v *verb, offers []offer) error

// takes does the part of the first rank, from the offers to the verdict; use makes of what came what the caller wants. That lives until the
// loan is released.
func (v *verb) takes(ctx context.Context, own parcel, agree check, use func(parcels) error) (*loan, error) {
	l := &loan{}
	err := v.takeOffers(ctx, own, l, agree, func(ctx context.Context, offers []offer) error {
		got, err := v.receive(ctx, offers, l)
		if err != nil {
			return err
		}
		return use(got)
	})
	if err != nil {
		l.release()
		return nil, err
	}
	return v.ga.lend(l)
}

// takeOffers is run on the first rank.
func (v *verb) takeOffers(ctx context.Context, own parcel, l *loan, agree check, receive func(ctx context.Context, offers []offer) error) error {
	g := &giving{verb: v, parcel: own, taken: l}
	cause := g.list()
	switch list := encodeList(nil, g.offer.items); {
	case cause != nil:
		g.offer = offer{Fault: v.why(ctx, cause)}
	case g.offer.Absent:
	case len(list) <= shortList:
		g.offer.List, g.offer.Ready = list, !own.lazy
	}
	return because(v.run(ctx, g, agree, receive), cause)
}

// readLists gets the lists that are too long for the offers.
func (v *verb) readLists(ctx context.Context, offers []offer, l *loan) error {
	for i := range offers {
		o := &offers[i]
		if i == 0 || o.Absent || o.List != nil {
			continue
		}
		if err := v.readList(ctx, i, o, l); err != nil {
			return failed(i, err)
		}
	}
	return nil
}

// maxList bounds the memory for what has not been looked at yet.
const maxList = 256 << 20

func (v *verb) readList(ctx context.Context, i int, o *offer, l *loan) error {
	r := &receiving{verb: v, from: i, offer: o, loan: l}
	switch {
	case o.Version != nil:
		return r.readHeader(ctx)
	case o.Far == nil || o.Far.Len < 0 || o.Far.Len > maxList:
		return errMalformed
	case o.Far.Ref != nil:
		blocks, err := r.lent(ctx, *o.Far.Ref)
		if err != nil {
			return err
		}
		return o.read(blocks[0].Data)
	}
	stream, err := v.ga.in.streamOf(r.giver(), r.offer.Stream)
	if err != nil {
		return err
	}
	list := make([]byte, o.Far.Len)
	if _, err := stream.fetch(ctx, o.Export, []want{{lastItem, 0, list}}, func(int) {}); err != nil {
		return err
	}
	return o.read(list)
}

// receive gets what the others offer, from all of them at a time.
func (v *verb) receive(ctx context.Context, offers []offer, l *loan) (parcels, error) {
	got := make(parcels, len(offers))
	errs := make([]error, len(offers))
	meter := v.ga.meter(v.ranks, offers)
	var wg sync.WaitGroup
	for i := range offers {
		got[i].absent = offers[i].Absent
		if i == 0 || offers[i].Absent {
			continue
		}
		r := &receiving{verb: v, from: i, offer: &offers[i], loan: l, got: meter.of(i)}
		if r.offer.waits() {
			wg.Go(func() { got[i], errs[i] = r.all(ctx) })
		} else {
			got[i], errs[i] = r.all(ctx)
		}
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			errs[i] = failed(i, err)
		}
	}
	return got, errors.Join(errs...)
}

// waits reports whether it takes more than a look into memory to have what is offered.
func (o *offer) waits() bool { return o.Summed || o.Version != nil || o.Export != 0 }

// receiving is one rank's offer on its way into the first rank.
type receiving struct {
	*verb
	from  int // index in the list
	offer *offer
	loan  *loan
	got   func(n int)
}

func (r *receiving) rank() int    { return r.ranks[r.from] }
func (r *receiving) giver() giver { return giver{r.group.Generation(), r.rank()} }

// all receives every item whole.
func (r *receiving) all(ctx context.Context) (received, error) {
	if err := r.reach(ctx); err != nil {
		return received{}, err
	}
	if r.offer.Version != nil {
		return r.fromFiles(ctx)
	}
	out := received{tensors: make(map[string]*tensor.Tensor, len(r.offer.items))}
	fetched, err := r.fetch(ctx)
	if err != nil {
		return received{}, err
	}
	for i := range r.offer.items {
		it := &r.offer.items[i]
		data := fetched[i]
		if it.Ref >= 0 {
			data = r.offer.blocks[it.Ref].Data[it.Off:][:it.size():it.size()]
			r.got(len(data))
		}
		if r.offer.Summed && checksum(data) != it.Sum {
			return received{}, named(it.Name, fmt.Errorf("what has arrived of rank %d differs from what it gave: %w", r.rank(), errCorrupt))
		}
		if it.Name == configName && r.offer.Config {
			out.config = data
			continue
		}
		t, err := it.wrap(data)
		if err != nil {
			return received{}, named(it.Name, err)
		}
		out.tensors[it.Name] = t
		r.loan.keep(func() { t.Data = nil })
	}
	return out, nil
}

var errCorrupt = errors.New("checksums differ")

// reach maps the shared memory that is offered.
func (r *receiving) reach(ctx context.Context) error {
	if len(r.offer.refs) == 0 {
		return nil
	}
	blocks, err := r.lent(ctx, r.offer.refs...)
	r.offer.blocks = blocks
	return err
}

// lent is what the giver has lent, until the loan is released.
func (r *receiving) lent(ctx context.Context, refs ...shm.Ref) ([]*shm.Block, error) {
	conn, err := r.ga.in.memoryOf(r.giver(), r.offer.Line)
	if err != nil {
		return nil, err
	}
	blocks, err := conn.Map(ctx, refs...)
	switch {
	case err != nil && conn.Err() != nil:
		return nil, linkError{err}
	case err != nil:
		return nil, err
	}
	r.loan.keep(func() {
		for _, b := range blocks {
			b.Release()
		}
	})
	return blocks, nil
}

// readHeader makes the list of what was published.
func (r *receiving) readHeader(ctx context.Context) error {
	view, err := r.ga.files.View(ctx, r.rank(), *r.offer.Version)
	if err != nil {
		return err
	}
	defer view.Close()
	for name, info := range view.Header.Infos() {
		r.offer.items = append(r.offer.items, item{Name: name, DType: info.DType, Shape: info.Shape, Ref: streamed})
	}
	slices.SortFunc(r.offer.items, func(a, b item) int { return cmp.Compare(a.Name, b.Name) })
	return r.offer.checkItems()
}

// fetch brings the items that are streamed, into memory that is used again after Release. The result is by item.
func (r *receiving) fetch(ctx context.Context) ([][]byte, error) {
	data := make([][]byte, len(r.offer.items))
	total := 0
	for i := range r.offer.items {
		if it := &r.offer.items[i]; it.Ref == streamed {
			total += (it.size() + align - 1) / align * align
		}
	}
	if total == 0 {
		return data, nil
	}
	stream, err := r.ga.in.streamOf(r.giver(), r.offer.Stream)
	if err != nil {
		return nil, err
	}
	room, err := r.ga.room(total, r.loan)
	if err != nil {
		return nil, failed(0, err)
	}
	var wants []want
	for i := range r.offer.items {
		it := &r.offer.items[i]
		if it.Ref != streamed {
			continue
		}
		n := it.size()
		data[i] = room[:n:n]
		room = room[(n+align-1)/align*align:]
		wants = append(wants, want{item: i, dst: data[i]})
	}
	if i, err := stream.fetch(ctx, r.offer.Export, wants, r.got); err != nil {
		return nil, named(r.offer.items[i].Name, err)
	}
	return data, nil
}

// room is memory for what is fetched.
func (ga *Gatherer) room(n int, l *loan) ([]byte, error) {
	if ga.arena == nil {
		return make([]byte, n), nil
	}
	b, err := ga.arena.Alloc(n)
	if err == nil {
		l.keep(func() { ga.arena.Free(b) })
	}
	return b, err
}

// fromFiles reads what was published, and compares it with what was offered.
func (r *receiving) fromFiles(ctx context.Context) (received, error) {
	state, err := r.ga.files.ReadVersion(ctx, r.rank(), *r.offer.Version)
	if err != nil {
		return received{}, err
	}
	out := received{config: state.Config, tensors: make(map[string]*tensor.Tensor, len(r.offer.items))}
	if r.offer.Config && out.config == nil {
		out.config = []byte("null") // which is no config, to a workspace
	}
	for i := range r.offer.items {
		it := &r.offer.items[i]
		if it.Name == configName && r.offer.Config {
			continue
		}
		t, err := state.Weights.Tensor(it.Name)
		if err == nil && (t.DType != it.DType || t.Len() != tensorLen(it)) {
			err = fmt.Errorf("%v was published, and %v offered", t, it)
		}
		if err != nil {
			return received{}, named(it.Name, err)
		}
		out.tensors[it.Name] = t
		r.got(len(t.Data))
		r.loan.keep(func() { t.Data = nil })
	}
	return out, nil
}

func tensorLen(it *item) int { return (&tensor.Tensor{Shape: it.Shape}).Len() }

// lend makes Close release what a Result has not.
func (ga *Gatherer) lend(l *loan) (*loan, error) {
	l.keep(func() {
		ga.mu.Lock()
		defer ga.mu.Unlock()
		delete(ga.loans, l)
	})
	ga.mu.Lock()
	closed := ga.closed
	if !closed {
		ga.loans[l] = struct{}{}
	}
	ga.mu.Unlock()
	if closed {
		l.release()
		return nil, fmt.Errorf("gather on rank %d: %w", ga.group.Rank(), pgroup.ErrClosed)
	}
	return l, nil
}
