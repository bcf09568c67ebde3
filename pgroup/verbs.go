package pgroup

import (
	"context"

	"github.com/muster-pg/muster/wire"
)

// Broadcast returns root's v on all ranks. On other ranks only the type of v matters. The root gets
// back v itself, and does not wait for its readers, unless the slowest is 128 operations or 16 MiB
// behind.
func Broadcast[T any](ctx context.Context, g *Group, root int, v T) (T, error) {
	c := wire.Contribution{Verb: "broadcast", Root: root, Type: recordType[T](), RootOnly: true, Want: int32(root)}
	return collective(ctx, g, c, func(cl *call) (payload []byte) {
		if g.rank == root {
			cl.c.Want = wire.WantNothing
			payload = encodeIn(cl, &v)
		}
		cl.checkRoot()
		return payload
	}, func(cl *call, got [][]byte) (T, error) {
		if g.rank == root {
			return v, nil
		}
		return decodeOne[T](cl, got)
	})
}

// AllGather returns, on all ranks, the v of each rank in the order of ranks: Size objects, at most
// 256 MiB together.
func AllGather[T any](ctx context.Context, g *Group, v T) ([]T, error) {
	c := wire.Contribution{Verb: "allgather", Root: -1, Type: recordType[T](), Want: wire.WantAll}
	return collective(ctx, g, c, func(cl *call) []byte { return encodeIn(cl, &v) }, decodeAll[T])
}

// Gather returns the v of each rank, in the order of ranks, on root, and nil on the other ranks.
// These wait for it too: its success means that all ranks have called it.
func Gather[T any](ctx context.Context, g *Group, root int, v T) ([]T, error) {
	c := wire.Contribution{Verb: "gather", Root: root, Type: recordType[T](), Want: wire.WantNothing}
	return collective(ctx, g, c, func(cl *call) []byte {
		cl.checkRoot()
		if g.rank == root {
			cl.c.Want = wire.WantAll
		}
		return encodeIn(cl, &v)
	}, func(cl *call, got [][]byte) ([]T, error) {
		if g.rank != root {
			return nil, nil
		}
		return decodeAll[T](cl, got)
	})
}

// Scatter returns root's vs[i] on rank i. vs has Size objects on root, at most 16 MiB together;
// other ranks may pass nil. The root does not wait for the others, as in Broadcast.
func Scatter[T any](ctx context.Context, g *Group, root int, vs []T) (T, error) {
	c := wire.Contribution{Verb: "scatter", Root: root, Type: recordType[T](), RootOnly: true, Want: wire.WantPart}
	return collective(ctx, g, c, func(cl *call) []byte {
		cl.checkRoot()
		if g.rank != root {
			return nil
		}
		return encodeParts(cl, vs)
	}, decodeOne[T])
}

// AllToAll returns, on rank i, the vs[i] of each rank in the order of ranks. vs has Size objects on
// all ranks, at most 16 MiB together.
func AllToAll[T any](ctx context.Context, g *Group, vs []T) ([]T, error) {
	c := wire.Contribution{Verb: "alltoall", Root: -1, Type: recordType[T](), Want: wire.WantPart}
	return collective(ctx, g, c, func(cl *call) []byte { return encodeParts(cl, vs) }, decodeAll[T])
}
