package gather

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// configName is the item that a config travels as, beside its tensors, none of which has it.
const configName = ""

// parcel is what one rank gives: tensors by name, and the config that they are of, if they are of one.
type parcel struct {
	absent  bool
	axis    int
	config  []byte // JSON; nil: none
	tensors map[string]*tensor.Tensor
	fault   error // why there is nothing to give
	lazy    bool  // the first rank reads it piece by piece: copies are not worth their memory
}

// giving is a parcel on its way.
type giving struct {
	*verb
	parcel parcel
	offer  offer
	data   []*tensor.Tensor // by item

	lender *line     // that offer.Refs are lent over
	lent   []shm.Ref // over lender
	unseen bool      // the verb has failed before the first rank could touch what is offered
	copied [][]byte  // in ga.arena: items that were not born in shared memory, and a long list
	export uint64    // 0: none
	taken  *loan     // of the first rank, which gives nothing
}

// gives does the part of a rank that gives, from the offer to the verdict.
func (v *verb) gives(ctx context.Context, p parcel, agree check) (*loan, error) {
	g := &giving{verb: v, parcel: p}
	cause := g.pack(ctx)
	if cause != nil {
		g.offer = offer{Fault: v.why(ctx, cause)}
	}
	err := v.run(ctx, g, agree, nil)
	g.end(err)
	if err != nil {
		return nil, because(err, cause)
	}
	return &loan{lent: g.returned}, nil
}

// pack makes the offer, and everything in it ready to be had.
func (g *giving) pack(ctx context.Context) error {
	if err := g.list(); err != nil || g.offer.Absent {
		return err
	}
	if g.ga.files != nil {
		version, err := g.ga.files.Write(ctx, g.parcel.config, g.parcel.tensors)
		g.offer.Version = &version
		if list := encodeList(nil, g.offer.items); len(list) <= shortList {
			g.offer.List = list
		}
		return err
	}
	if err := g.share(ctx); err != nil {
		return err
	}
	if err := g.tell(ctx); err != nil {
		return err
	}
	if err := g.stream(ctx); err != nil {
		return err
	}
	g.offer.Ready = g.offer.Export == 0 && g.offer.List != nil && !g.offer.Summed && !g.offer.Config && !g.parcel.lazy && (g.lender == nil || g.lender.knows(g.offer.refs))
	return nil
}

// tell puts the list into the offer, or, if it is long, where the items are.
func (g *giving) tell(ctx context.Context) error {
	list := encodeList(g.offer.refs, g.offer.items)
	switch {
	case len(list) <= shortList:
		g.offer.List = list
		return nil
	case g.lender == nil:
		g.offer.Far = &spot{Len: len(list)}
		g.data = append(g.data, tensor.From(list))
		return nil
	}
	block, ref, err := g.lendBlock(ctx, len(list))
	copy(block, list)
	g.offer.Far = &spot{Ref: &ref, Len: len(list)}
	return err
}

// list makes the items.
func (g *giving) list() error {
	g.offer.Absent, g.offer.Axis = g.parcel.absent, g.parcel.axis
	if g.parcel.absent || g.parcel.fault != nil {
		g.offer.Ready = g.parcel.absent
		return g.parcel.fault
	}
	tensors := g.parcel.tensors
	if g.parcel.config != nil {
		tensors = maps.Clone(tensors)
		if tensors == nil {
			tensors = map[string]*tensor.Tensor{}
		}
		g.offer.Config = true
		tensors[configName] = &tensor.Tensor{DType: tensor.U8, Shape: []int{len(g.parcel.config)}, Data: g.parcel.config}
	}
	g.offer.Summed = g.ga.opts.Verify && g.ga.files == nil && g.taken == nil
	for name, t := range tensors {
		if err := t.Check(); err != nil {
			return named(name, err)
		}
		if len(t.Shape) > maxAxes {
			return named(name, fmt.Errorf("it has %d axes, and %d is the most: %w", len(t.Shape), maxAxes, pgroup.ErrInvalid))
		}
		it := item{Name: name, DType: t.DType, Shape: t.Shape, Ref: streamed}
		if g.offer.Summed {
			it.Sum = checksum(t.Data)
		}
		g.offer.items = append(g.offer.items, it)
	}
	slices.SortFunc(g.offer.items, func(a, b item) int { return cmp.Compare(a.Name, b.Name) })
	for i := range g.offer.items {
		g.data = append(g.data, tensors[g.offer.items[i].Name])
	}
	return nil
}

// share puts items into shared memory, if the first rank can share any: those that were born there as they are.
func (g *giving) share(ctx context.Context) error {
	if g.ga.arena == nil || !g.ga.group.SameNode(g.ranks[0]) || len(g.data) == 0 {
		return nil
	}
	var err error
	if g.lender, err = g.memoryOut(ctx); err != nil || g.lender == nil {
		return err
	}
	g.offer.Line = g.lender.number
	if err := g.lendBorn(ctx); err != nil || g.parcel.lazy {
		return err
	}
	return g.lendCopies(ctx)
}

// lendBorn lends what was born in Options.Arena.
func (g *giving) lendBorn(ctx context.Context) error {
	arena := g.ga.opts.Arena
	if arena == nil {
		return nil
	}
	for i, t := range g.data {
		if len(t.Data) == 0 {
			continue
		}
		if ref, ok := arena.Find(t.Data); ok {
			g.offer.items[i].Ref = len(g.offer.refs)
			g.offer.refs = append(g.offer.refs, ref)
		}
	}
	return g.lend(ctx, arena, g.offer.refs...)
}

func (g *giving) lend(ctx context.Context, arena *shm.Arena, refs ...shm.Ref) error {
	err := g.lender.Lend(ctx, arena, refs...)
	switch {
	case err == nil:
		g.lent = append(g.lent, refs...)
		return nil
	case g.lender.Err() != nil:
		return linkError{err}
	}
	return err
}

// align is where copies begin: on a cache line.
const align = 64

// lendCopies copies the rest, into one block.
func (g *giving) lendCopies(ctx context.Context) error {
	var total int
	for i, t := range g.data {
		if it := &g.offer.items[i]; it.Ref == streamed {
			it.Off = int64(total)
			total += (len(t.Data) + align - 1) / align * align
		}
	}
	if total == 0 {
		return nil
	}
	block, ref, err := g.lendBlock(ctx, total)
	if err != nil {
		return err
	}
	g.offer.refs = append(g.offer.refs, ref)
	for i, t := range g.data {
		if it := &g.offer.items[i]; it.Ref == streamed {
			it.Ref = len(g.offer.refs) - 1
			copy(block[it.Off:], t.Data)
		}
	}
	return nil
}

// lendBlock lends n bytes for the duration of the verb; what is not released by the first rank then is not used again before it is.
func (g *giving) lendBlock(ctx context.Context, n int) (block []byte, ref shm.Ref, err error) {
	block, err = g.ga.arena.Alloc(n)
	if err != nil {
		return nil, ref, err
	}
	g.copied = append(g.copied, block)
	ref, _ = g.ga.arena.Find(block)
	return block, ref, g.lend(ctx, g.ga.arena, ref)
}

// stream makes the rest fetchable.
func (g *giving) stream(ctx context.Context) error {
	far := g.offer.Far != nil && g.offer.Far.Ref == nil
	if !far && !slices.ContainsFunc(g.offer.items, func(it item) bool { return it.Ref == streamed && it.size() > 0 }) {
		return nil
	}
	var err error
	if g.offer.Stream, err = g.streamOut(ctx); err != nil {
		return err
	}
	g.export = g.ga.exports.add(g.group.Generation(), g.data)
	g.offer.Export = g.export
	return nil
}

// end takes back what the verdict leaves nobody to need. What was copied is used again once the first rank has returned it.
func (g *giving) end(verdict error) {
	if verdict != nil && (!g.unseen || !g.takeBack()) {
		g.out.reset()
	}
	g.ga.exports.remove(g.export)
	if g.offer.Version != nil {
		ctx, cancel := context.WithTimeout(context.Background(), removeTime)
		defer cancel()
		_ = g.ga.files.Discard(ctx, *g.offer.Version) // Close tries again
	}
	for _, b := range g.copied {
		g.ga.arena.Free(b)
	}
}

// takeBack reports whether all is as if nothing had been offered.
func (g *giving) takeBack() bool {
	return g.lender == nil || g.lender.TakeBack(g.lent...) == nil
}

// mapped notes that the first rank has mapped what was lent to it: it cannot fail to have it from the same segments.
func (g *giving) mapped() {
	if g.lender != nil {
		g.lender.learn(g.offer.refs)
	}
}

// returned waits until what was lent is returned. Its error is like that of a verb: it names the first rank.
func (g *giving) returned(ctx context.Context) error {
	if g.lender == nil {
		return nil
	}
	ctx, done := g.ga.bound(ctx)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := g.group.Context()
	defer context.AfterFunc(over, func() { cancel(context.Cause(over)) })()
	err := g.lender.Returned(ctx, g.offer.refs...)
	if err == nil {
		return nil
	}
	f := &fault{By: -1, Missing: []int{0}, Reason: "it has not released what it got", err: err}
	switch cause := context.Cause(ctx); {
	case over.Err() != nil:
		return g.verdict(context.Cause(over))
	case errors.Is(cause, context.DeadlineExceeded):
		f.Code = wire.CodeTimeout
	case cause != nil:
		f.Code, f.By = wire.CodeCancelled, g.group.Rank()
	default: // its connection has ended
		g.heed(ctx, linkError{err})
		if over.Err() != nil {
			return g.verdict(context.Cause(over))
		}
		f.Code, f.By, f.Missing = wire.CodeFailed, 0, nil
		f.Reason = "its connection ended before it released what it got, which it may read still: a gather after this one has failed, or it has closed"
	}
	return g.verdict(f)
}
