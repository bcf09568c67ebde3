package pgroup

import (
	"context"

	"github.com/muster-pg/muster/wire"
)

// Broadcast returns root's v on all ranks. On other ranks only the type of v matters. The root gets
// back v itself, and does not wait for its readers, unless the slowest is 128 operations or 16 MiB
// behind.
func Broadcast[T any](ctx context.Context, g *Group, root int, v T) (T, error) {
	var none T
	cl := call{Group: g, c: wire.Contribution{Verb: "broadcast", Root: root, Type: recordType[T](), RootOnly: true, Want: int32(root)}}
	if err := cl.begin(); err != nil {
		return none, err
	}
	defer cl.end()
	var payload []byte
	if g.rank == root {
		cl.c.Want = wire.WantNothing
		payload = encodeIn(&cl, &v)
	}
	cl.checkRoot()
	got, err := cl.vote(ctx, payload)
	switch {
	case err != nil:
		return none, err
	case g.rank == root:
		return v, nil
	}
	return decodeOne[T](&cl, got)
}

// AllGather returns, on all ranks, the v of each rank in the order of ranks: Size objects, at most
// 256 MiB together.
func AllGather[T any](ctx context.Context, g *Group, v T) ([]T, error) {
	cl := call{Group: g, c: wire.Contribution{Verb: "allgather", Root: -1, Type: recordType[T](), Want: wire.WantAll}}
	if err := cl.begin(); err != nil {
		return nil, err
	}
	defer cl.end()
	got, err := cl.vote(ctx, encodeIn(&cl, &v))
	if err != nil {
		return nil, err
	}
	return decodeAll[T](&cl, got)
}

// Gather returns the v of each rank, in the order of ranks, on root, and nil on the other ranks.
// These wait for it too: its success means that all ranks have called it.
func Gather[T any](ctx context.Context, g *Group, root int, v T) ([]T, error) {
	cl := call{Group: g, c: wire.Contribution{Verb: "gather", Root: root, Type: recordType[T](), Want: wire.WantNothing}}
	if err := cl.begin(); err != nil {
		return nil, err
	}
	defer cl.end()
	cl.checkRoot()
	if g.rank == root {
		cl.c.Want = wire.WantAll
	}
	got, err := cl.vote(ctx, encodeIn(&cl, &v))
	if err != nil || g.rank != root {
		return nil, err
	}
	return decodeAll[T](&cl, got)
}

// Scatter returns root's vs[i] on rank i. vs has Size objects on root, at most 16 MiB together;
// other ranks may pass nil. The root does not wait for the others, as in Broadcast.
func Scatter[T any](ctx context.Context, g *Group, root int, vs []T) (T, error) {
	var none T
	cl := call{Group: g, c: wire.Contribution{Verb: "scatter", Root: root, Type: recordType[T](), RootOnly: true, Want: wire.WantPart}}
	if err := cl.begin(); err != nil {
		return none, err
	}
	defer cl.end()
	cl.checkRoot()
	var payload []byte
	if g.rank == root {
		payload = encodeParts(&cl, vs)
	}
	got, err := cl.vote(ctx, payload)
	if err != nil {
		return none, err
	}
	return decodeOne[T](&cl, got)
}

// AllToAll returns, on rank i, the vs[i] of each rank in the order of ranks. vs has Size objects on
// all ranks, at most 16 MiB together.
func AllToAll[T any](ctx context.Context, g *Group, vs []T) ([]T, error) {
	cl := call{Group: g, c: wire.Contribution{Verb: "alltoall", Root: -1, Type: recordType[T](), Want: wire.WantPart}}
	if err := cl.begin(); err != nil {
		return nil, err
	}
	defer cl.end()
	got, err := cl.vote(ctx, encodeParts(&cl, vs))
	if err != nil {
		return nil, err
	}
	return decodeAll[T](&cl, got)
}
