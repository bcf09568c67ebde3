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

// unnamed is the name of an item to which the caller gave none: the tensor of Tensors and Concat, and
// the config of Configs, none of whose tensors has it.
const unnamed = ""

// contribution is this rank's tensors and its optional config.
type contribution struct {
	absent  bool
	axis    int
	config  []byte // JSON; nil: none
	tensors map[string]*tensor.Tensor
	fault   error // why there is nothing to send
	lazy    bool  // the first rank reads it piece by piece, so nothing is copied for it
}

// sender sends a contribution.
type sender struct {
	*verb
	contribution contribution
	offer        offer
	data         []*tensor.Tensor // by item

	conn   *outboundMemory // the connection that shares offer.refs
	shared []shm.Ref       // shared over conn
	unseen bool            // the verb has failed before the first rank could use the offer
	copied [][]byte        // in ga.arena: copies of other items, and a long list
	export uint64          // 0: none
	held   *resources      // set on the first rank, which sends nothing
}

// send runs a verb on a rank that sends, from the offer to the result.
func (v *verb) send(ctx context.Context, p contribution, agree check) (*resources, error) {
	g := &sender{verb: v, contribution: p}
	cause := g.pack(ctx)
	if cause != nil {
		g.offer = offer{Fault: v.faultOf(ctx, cause)}
	}
	err := v.run(ctx, g, agree, nil)
	g.end(err)
	if err != nil {
		return nil, withCause(err, cause)
	}
	return &resources{wait: g.returned}, nil
}

// pack makes the offer, and makes the items available to the first rank.
func (g *sender) pack(ctx context.Context) error {
	if err := g.list(); err != nil || g.offer.Absent {
		return err
	}
	if g.ga.files != nil {
		version, err := g.ga.files.Write(ctx, g.contribution.config, g.contribution.tensors)
		g.offer.Version = &version
		if list := encodeList(nil, g.offer.items); len(list) <= shortList {
			g.offer.List = list
		}
		return err
	}
	if err := g.share(ctx); err != nil {
		return err
	}
	if err := g.addList(ctx); err != nil {
		return err
	}
	if err := g.stream(ctx); err != nil {
		return err
	}
	g.offer.Ready = g.offer.Export == 0 && g.offer.List != nil && !g.offer.Config && !g.contribution.lazy && (g.conn == nil || g.conn.knows(g.offer.refs))
	return nil
}

// addList puts the list into the offer, or, if it is long, beside the items.
func (g *sender) addList(ctx context.Context) error {
	list := encodeList(g.offer.refs, g.offer.items)
	switch {
	case len(list) <= shortList:
		g.offer.List = list
		return nil
	case g.conn == nil:
		g.offer.Long = &listLocation{Len: len(list)}
		g.data = append(g.data, tensor.From(list))
		return nil
	}
	block, ref, err := g.shareBlock(ctx, len(list))
	copy(block, list)
	g.offer.Long = &listLocation{Ref: &ref, Len: len(list)}
	return err
}

// list makes the items of the offer.
func (g *sender) list() error {
	g.offer.Absent, g.offer.Axis = g.contribution.absent, g.contribution.axis
	if g.contribution.absent || g.contribution.fault != nil {
		g.offer.Ready = g.contribution.absent
		return g.contribution.fault
	}
	tensors := g.contribution.tensors
	if g.contribution.config != nil {
		tensors = maps.Clone(tensors)
		if tensors == nil {
			tensors = map[string]*tensor.Tensor{}
		}
		g.offer.Config = true
		tensors[unnamed] = &tensor.Tensor{DType: tensor.U8, Shape: []int{len(g.contribution.config)}, Data: g.contribution.config}
	}
	for name, t := range tensors {
		if err := t.Check(); err != nil {
			return named(name, err)
		}
		if len(t.Shape) > maxAxes {
			return named(name, fmt.Errorf("it has %d axes, and %d is the most: %w", len(t.Shape), maxAxes, pgroup.ErrInvalid))
		}
		g.offer.items = append(g.offer.items, item{Name: name, DType: t.DType, Shape: t.Shape, Ref: streamed})
	}
	slices.SortFunc(g.offer.items, func(a, b item) int { return cmp.Compare(a.Name, b.Name) })
	for i := range g.offer.items {
		g.data = append(g.data, tensors[g.offer.items[i].Name])
	}
	return nil
}

// share puts items into shared memory, if the first rank can share memory. Items that were
// allocated in shared memory are not copied.
func (g *sender) share(ctx context.Context) error {
	if g.ga.arena == nil || !g.ga.group.SameNode(g.ranks[0]) || len(g.data) == 0 {
		return nil
	}
	var err error
	if g.conn, err = g.memoryOut(ctx); err != nil || g.conn == nil {
		return err
	}
	g.offer.Memory = g.conn.number
	if err := g.shareAllocated(ctx); err != nil || g.contribution.lazy {
		return err
	}
	return g.shareCopies(ctx)
}

// shareAllocated shares the items that were allocated in Options.Arena.
func (g *sender) shareAllocated(ctx context.Context) error {
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
	return g.shareRefs(ctx, arena, g.offer.refs...)
}

func (g *sender) shareRefs(ctx context.Context, arena *shm.Arena, refs ...shm.Ref) error {
	err := g.conn.Share(ctx, arena, refs...)
	switch {
	case err == nil:
		g.shared = append(g.shared, refs...)
		return nil
	case g.conn.Err() != nil:
		return linkError{err}
	}
	return err
}

// align is the alignment of copies: a cache line.
const align = 64

// shareCopies copies the other items into one block.
func (g *sender) shareCopies(ctx context.Context) error {
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
	block, ref, err := g.shareBlock(ctx, total)
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

// shareBlock shares n bytes for the duration of the verb. The arena does not reuse them before the
// first rank has released them.
func (g *sender) shareBlock(ctx context.Context, n int) (block []byte, ref shm.Ref, err error) {
	block, err = g.ga.arena.Alloc(n)
	if err != nil {
		return nil, ref, err
	}
	g.copied = append(g.copied, block)
	ref, _ = g.ga.arena.Find(block)
	return block, ref, g.shareRefs(ctx, g.ga.arena, ref)
}

// stream makes the remaining items fetchable.
func (g *sender) stream(ctx context.Context) error {
	far := g.offer.Long != nil && g.offer.Long.Ref == nil
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

// end frees what is not needed after the result. Copies are reused once the first rank has released
// them.
func (g *sender) end(result error) {
	if result != nil && (!g.unseen || !g.takeBack()) {
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

// takeBack withdraws the offer, and reports whether no rank has used any of it.
func (g *sender) takeBack() bool {
	return g.conn == nil || g.conn.Unshare(g.shared...) == nil
}

// mapped notes that the first rank has mapped the shared segments: from then on, mapping other
// parts of the same segments cannot fail.
func (g *sender) mapped() {
	if g.conn != nil {
		g.conn.learn(g.offer.refs)
	}
}

// returned waits until the first rank has released what was shared. Its error is like that of a
// verb: it names the first rank.
func (g *sender) returned(ctx context.Context) error {
	if g.conn == nil {
		return nil
	}
	ctx, done := g.ga.bound(ctx)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := g.group.Context()
	defer context.AfterFunc(over, func() { cancel(context.Cause(over)) })()
	err := g.conn.WaitReleased(ctx, g.offer.refs...)
	if err == nil {
		return nil
	}
	f := &fault{By: -1, Missing: []int{0}, Reason: "it has not released what it got", err: err}
	switch cause := context.Cause(ctx); {
	case over.Err() != nil:
		return g.rankError(context.Cause(over))
	case errors.Is(cause, context.DeadlineExceeded):
		f.Code = wire.CodeTimeout
	case cause != nil:
		f.Code, f.By = wire.CodeCancelled, g.group.Rank()
	default: // the connection has ended
		g.awaitFailure(ctx, linkError{err})
		if over.Err() != nil {
			return g.rankError(context.Cause(over))
		}
		f.Code, f.By, f.Missing = wire.CodeFailed, 0, nil
		f.Reason = "its connection ended before it released what it got, which it may read still: a gather after this one has failed, or it has closed"
	}
	return g.rankError(f)
}
