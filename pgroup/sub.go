package pgroup

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// Sub makes a group of some ranks of g: rank i of the new group is ranks[i]. Exactly those ranks
// must call it, all with the same list; it is not part of the sequence of g's operations. name is
// used in errors and for Group.Store. The same name and ranks make another group each time, except
// that after a timeout or a cancel a rank may try again and meet those that still wait, or come
// later.
//
// The new group outlives Close of g, but not the store that g's host hosts. The caller must Close
// it.
func (g *Group) Sub(ctx context.Context, name string, ranks ...int) (*Group, error) {
	rank, err := g.checkSub(name, ranks)
	if err != nil {
		return nil, err
	}
	g.lock.Lock()
	use := subKey(name, ranks)
	g.uses[use]++
	nth := g.uses[use]
	g.lock.Unlock()
	sub, err := g.derive(ctx, joinRequest{
		op: fmt.Sprintf("sub %q", name), name: g.name + "/" + name, rank: rank, size: len(ranks),
		run: fmt.Sprintf("sub %d of generation %d, ranks %s", nth, g.generation, use[len(name)+1:]),
	})
	if (errors.Is(err, ErrTimeout) || errors.Is(err, ErrCancelled)) && !errors.Is(err, ErrUnknown) {
		g.lock.Lock()
		defer g.lock.Unlock()
		if g.uses[use] == nth { // a retry must meet the ranks that still wait
			g.uses[use]--
		}
	}
	return sub, err
}

func (g *Group) checkSub(name string, ranks []int) (rank int, err error) {
	bad := func(format string, args ...any) (int, error) {
		return 0, invalid("sub %q of group %q on rank %d: %s", name, g.name, g.rank, fmt.Sprintf(format, args...))
	}
	seen := make(map[int]bool, len(ranks))
	for _, r := range ranks {
		if r < 0 || r >= g.size {
			return bad("rank %d of a group of %d: ranks are 0 to %d", r, g.size, g.size-1)
		}
		if seen[r] {
			return bad("rank %d is in it twice", r)
		}
		seen[r] = true
	}
	switch rank = slices.Index(ranks, g.rank); {
	case rank < 0:
		return bad("this rank is not in it: only its members call Sub")
	case len(g.name)+1+len(name) > wire.MaxKey/4:
		return bad("a name of %d bytes, the limit is %d", len(g.name)+1+len(name), wire.MaxKey/4)
	}
	return rank, nil
}

// subKey names a list of ranks. It uses the hash of a long one, since names are bounded.
func subKey(name string, ranks []int) string {
	list := strings.Trim(fmt.Sprint(ranks), "[]")
	if len(list) > 256 {
		h := fnv.New128a()
		h.Write([]byte(list))
		list = fmt.Sprintf("%x", h.Sum(nil))
	}
	return name + "\x00" + list
}

// Split makes a group of the ranks that pass the same color, in the order of their keys, then of
// their ranks in g. All ranks of g must call it; one with a negative color gets nil. It takes one
// operation of g and one more round trip. The caller must Close the new group.
func (g *Group) Split(ctx context.Context, color, key int) (*Group, error) {
	ctx, cancel := g.withTimeout(ctx, time.Now())
	defer cancel()
	var seq uint64
	c := wire.Contribution{Verb: "split", Root: -1, Want: wire.WantAll}
	ranks, err := collective(ctx, g, c, func(cl *call) []byte {
		seq = cl.c.Seq
		return appendSplit(nil, color, key)
	}, func(cl *call, got [][]byte) ([]int, error) {
		if err := cl.checkCount(g.size, got); err != nil {
			return nil, err
		}
		ranks, err := sameColor(got, color)
		if err != nil {
			return nil, cl.undecodable(-1, err)
		}
		return ranks, nil
	})
	if err != nil || color < 0 {
		return nil, err
	}
	return g.derive(ctx, joinRequest{
		op: fmt.Sprintf("split(color %d)", color), name: fmt.Sprintf("%s/%d", g.name, color), rank: slices.Index(ranks, g.rank), size: len(ranks),
		run: fmt.Sprintf("split %d of generation %d, channel %q", seq, g.generation, g.channel),
	})
}

// appendSplit encodes a rank's part of Split: color i64 | key i64.
func appendSplit(b []byte, color, key int) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(color))
	return binary.LittleEndian.AppendUint64(b, uint64(key))
}

// sameColor returns the ranks of a color, in their new order.
func sameColor(parts [][]byte, color int) ([]int, error) {
	var ranks []int
	keys := make([]int64, len(parts))
	for rank, b := range parts {
		if len(b) != 16 {
			return nil, fmt.Errorf("rank %d: %d bytes, not 16: %w", rank, len(b), store.ErrProtocol)
		}
		if int64(binary.LittleEndian.Uint64(b)) == int64(color) {
			ranks = append(ranks, rank)
		}
		keys[rank] = int64(binary.LittleEndian.Uint64(b[8:]))
	}
	slices.SortStableFunc(ranks, func(a, b int) int { return cmp.Compare(keys[a], keys[b]) })
	return ranks, nil
}

// Shrink makes the next generation of a group in which ranks have failed: the ranks that call it,
// renumbered without gaps in their old order. It returns when every rank of g has called it, has
// left or has failed. g must still be closed. It fails if the rank that hosted the store has
// failed.
func (g *Group) Shrink(ctx context.Context) (*Group, error) {
	ctx, cancel := g.withTimeout(ctx, time.Now())
	defer cancel()
	return g.joinOnSameStore(ctx, joinRequest{op: "shrink", name: g.name, run: g.run, rank: g.rank, size: g.size, from: g.generation})
}

// derive makes a group of ranks of g. It gives up when g is revoked: a rank that has failed never
// joins.
func (g *Group) derive(ctx context.Context, a joinRequest) (*Group, error) {
	if over := g.revokedBy(); over != nil {
		return nil, over.of(a.op)
	}
	ctx, cancel := g.withTimeout(ctx, time.Now())
	defer cancel()
	ctx, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	over := g.Context()
	defer context.AfterFunc(over, func() { abandon(context.Cause(over)) })()
	sub, err := g.joinOnSameStore(ctx, a)
	if errors.Is(err, ErrCancelled) && ctx.Err() == nil {
		// Another rank cancelled it, perhaps since g is revoked, which this rank learns soon.
		select {
		case <-over.Done():
		case <-time.After(revocationDelay):
		case <-ctx.Done():
		}
	}
	if err != nil && over.Err() != nil {
		if why := g.revokedBy(); why != nil {
			return nil, why.of(a.op)
		}
	}
	return sub, err
}

// revocationDelay is longer than the delay between ranks in learning of a revocation.
const revocationDelay = time.Second

// joinOnSameStore joins on the store of g, with its own reference.
func (g *Group) joinOnSameStore(ctx context.Context, a joinRequest) (*Group, error) {
	if g.isClosed() || !g.shared.acquire() {
		return nil, g.closedError(a.op)
	}
	start := trace.Now(g.cfg.sink)
	a.reports = g.reports
	sub, err := g.cfg.join(ctx, g.shared, a)
	g.cfg.traceJoin(ctx, a, sub, start, err)
	if err != nil {
		g.shared.releaseUnused(&g.cfg)
		return nil, err
	}
	return sub, nil
}
