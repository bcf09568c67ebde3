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

// allReceived is what the first rank has received, by index in the list, without its own
// contribution.
type allReceived []received

type received struct {
	absent  bool
	config  []byte
	tensors map[string]*tensor.Tensor
}

// check compares offers before any of their bytes are read; all ranks get its error.
type check func(v *verb, offers []offer) error

// receive runs a verb on the first rank, from the offers to the result. use converts the received
// data for the caller; the data is valid until the resources are released.
func (v *verb) receive(ctx context.Context, own contribution, agree check, use func(allReceived) error) (*resources, error) {
	l := &resources{}
	err := v.receiveOffers(ctx, own, l, agree, func(ctx context.Context, offers []offer) error {
		got, err := v.collect(ctx, offers, l)
		if err != nil {
			return err
		}
		return use(got)
	})
	if err != nil {
		l.release()
		return nil, err
	}
	return v.ga.track(l)
}

// receiveOffers runs a verb on the first rank; collect receives what the others offer.
func (v *verb) receiveOffers(ctx context.Context, own contribution, l *resources, agree check, collect func(ctx context.Context, offers []offer) error) error {
	g := &sender{verb: v, contribution: own, held: l}
	cause := g.list()
	switch list := encodeList(nil, g.offer.items); {
	case cause != nil:
		g.offer = offer{Fault: v.faultOf(ctx, cause)}
	case g.offer.Absent:
	case len(list) <= shortList:
		g.offer.List, g.offer.Ready = list, !own.lazy
	}
	return withCause(v.run(ctx, g, agree, collect), cause)
}

// readLists reads the lists that are too long for the offers.
func (v *verb) readLists(ctx context.Context, offers []offer, l *resources) error {
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

// maxList bounds the memory for a list that has not been checked yet.
const maxList = 256 << 20

func (v *verb) readList(ctx context.Context, i int, o *offer, l *resources) error {
	r := &receiver{verb: v, from: i, offer: o, resources: l}
	switch {
	case o.Version != nil:
		return r.readHeader(ctx)
	case o.Long == nil || o.Long.Len < 0 || o.Long.Len > maxList:
		return errMalformed
	case o.Long.Ref != nil:
		blocks, err := r.mapRefs(ctx, *o.Long.Ref)
		if err != nil {
			return err
		}
		return o.read(blocks[0].Data)
	}
	stream, err := v.ga.in.streamOf(r.senderID(), r.offer.Stream)
	if err != nil {
		return err
	}
	list := make([]byte, o.Long.Len)
	if _, err := stream.fetch(ctx, o.Export, []want{{lastItem, 0, list}}); err != nil {
		return err
	}
	return o.read(list)
}

// collect receives the items of all other ranks concurrently.
func (v *verb) collect(ctx context.Context, offers []offer, l *resources) (allReceived, error) {
	got := make(allReceived, len(offers))
	errs := make([]error, len(offers))
	var wg sync.WaitGroup
	for i := range offers {
		got[i].absent = offers[i].Absent
		if i == 0 || offers[i].Absent {
			continue
		}
		r := &receiver{verb: v, from: i, offer: &offers[i], resources: l}
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

// waits reports whether receiving the offer takes more than a read of memory.
func (o *offer) waits() bool { return o.Version != nil || o.Export != 0 }

// receiver receives one rank's offer, on the first rank.
type receiver struct {
	*verb
	from      int // index in the list
	offer     *offer
	resources *resources
}

func (r *receiver) rank() int          { return r.ranks[r.from] }
func (r *receiver) senderID() senderID { return senderID{r.group.Generation(), r.rank()} }

// all receives all items completely.
func (r *receiver) all(ctx context.Context) (received, error) {
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
		}
		if it.Name == unnamed && r.offer.Config {
			out.config = data
			continue
		}
		t, err := it.wrap(data)
		if err != nil {
			return received{}, named(it.Name, err)
		}
		out.tensors[it.Name] = t
		r.resources.keep(func() { t.Data = nil })
	}
	return out, nil
}

// reach maps the shared memory of the offer.
func (r *receiver) reach(ctx context.Context) error {
	if len(r.offer.refs) == 0 {
		return nil
	}
	blocks, err := r.mapRefs(ctx, r.offer.refs...)
	r.offer.blocks = blocks
	return err
}

// mapRefs maps shared memory of the sender, until the resources are released.
func (r *receiver) mapRefs(ctx context.Context, refs ...shm.Ref) ([]*shm.Block, error) {
	conn, err := r.ga.in.memoryOf(r.senderID(), r.offer.Memory)
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
	r.resources.keep(func() {
		for _, b := range blocks {
			b.Release()
		}
	})
	return blocks, nil
}

// readHeader makes the list from the header of a published version.
func (r *receiver) readHeader(ctx context.Context) error {
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

// fetch reads the streamed items, into memory that is reused after Release. The result is indexed
// by item.
func (r *receiver) fetch(ctx context.Context) ([][]byte, error) {
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
	stream, err := r.ga.in.streamOf(r.senderID(), r.offer.Stream)
	if err != nil {
		return nil, err
	}
	buffer, err := r.ga.buffer(total, r.resources)
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
		data[i] = buffer[:n:n]
		buffer = buffer[(n+align-1)/align*align:]
		wants = append(wants, want{item: i, dst: data[i]})
	}
	if i, err := stream.fetch(ctx, r.offer.Export, wants); err != nil {
		return nil, named(r.offer.items[i].Name, err)
	}
	return data, nil
}

// buffer returns memory for fetched data.
func (ga *Gatherer) buffer(n int, l *resources) ([]byte, error) {
	if ga.arena == nil {
		return make([]byte, n), nil
	}
	b, err := ga.arena.Alloc(n)
	if err == nil {
		l.keep(func() { ga.arena.Free(b) })
	}
	return b, err
}

// fromFiles reads the published files, and compares them with the offer.
func (r *receiver) fromFiles(ctx context.Context) (received, error) {
	state, err := r.ga.files.Read(ctx, r.rank(), *r.offer.Version)
	if err != nil {
		return received{}, err
	}
	out := received{config: state.Config, tensors: make(map[string]*tensor.Tensor, len(r.offer.items))}
	if r.offer.Config && out.config == nil {
		out.config = []byte("null") // a workspace stores the config null as none
	}
	for i := range r.offer.items {
		it := &r.offer.items[i]
		if it.Name == unnamed && r.offer.Config {
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
		r.resources.keep(func() { t.Data = nil })
	}
	return out, nil
}

func tensorLen(it *item) int { return (&tensor.Tensor{Shape: it.Shape}).Len() }

// track makes Close release the resources of a Result that has not been released.
func (ga *Gatherer) track(l *resources) (*resources, error) {
	l.keep(func() {
		ga.mu.Lock()
		defer ga.mu.Unlock()
		delete(ga.unreleased, l)
	})
	ga.mu.Lock()
	closed := ga.closed
	if !closed {
		ga.unreleased[l] = struct{}{}
	}
	ga.mu.Unlock()
	if closed {
		l.release()
		return nil, fmt.Errorf("gather on rank %d: %w", ga.group.Rank(), pgroup.ErrClosed)
	}
	return l, nil
}
