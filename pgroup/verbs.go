package pgroup

import (
	"context"

	"github.com/muster-pg/muster/wire"
)

// Broadcast returns root's v on every rank; what the others pass counts only for its type. The root does not wait for its
// readers, up to 128 verbs or 16 MiB ahead of the slowest, and gets back v itself.
func Broadcast[T any](ctx context.Context, g *Group, root int, v T) (T, error) {
	var none T
	cl := call{Group: g, c: wire.Contribution{Verb: "broadcast", Root: root, Type: typeName[T](), RootOnly: true, Want: int32(root)}}
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
	got, err := cl.cast(ctx, payload)
	switch {
	case err != nil:
		return none, err
	case g.rank == root:
		return v, nil
	}
	return decodeOne[T](&cl, got)
}

// AllGather returns the v of every rank, in rank order, on every rank: Size objects. All of them together may
// have 256 MiB.
func AllGather[T any](ctx context.Context, g *Group, v T) ([]T, error) {
	cl := call{Group: g, c: wire.Contribution{Verb: "allgather", Root: -1, Type: typeName[T](), Want: wire.WantAll}}
	if err := cl.begin(); err != nil {
		return nil, err
	}
	defer cl.end()
	got, err := cl.cast(ctx, encodeIn(&cl, &v))
	if err != nil {
		return nil, err
	}
	return decodeAll[T](&cl, got)
}

// Gather returns the v of every rank, in rank order, on root, and nil on the others, who wait for it
// too: its success means that every rank has called it.
func Gather[T any](ctx context.Context, g *Group, root int, v T) ([]T, error) {
	cl := call{Group: g, c: wire.Contribution{Verb: "gather", Root: root, Type: typeName[T](), Want: wire.WantNothing}}
	if err := cl.begin(); err != nil {
		return nil, err
	}
	defer cl.end()
	cl.checkRoot()
	if g.rank == root {
		cl.c.Want = wire.WantAll
	}
	got, err := cl.cast(ctx, encodeIn(&cl, &v))
	if err != nil || g.rank != root {
		return nil, err
	}
	return decodeAll[T](&cl, got)
}

// Scatter returns root's vs[i] on rank i. vs has Size objects on root, 16 MiB together; it does not count on the others.
// The root does not wait for the others, as in Broadcast.
func Scatter[T any](ctx context.Context, g *Group, root int, vs []T) (T, error) {
	var none T
	cl := call{Group: g, c: wire.Contribution{Verb: "scatter", Root: root, Type: typeName[T](), RootOnly: true, Want: wire.WantPart}}
	if err := cl.begin(); err != nil {
		return none, err
	}
	defer cl.end()
	cl.checkRoot()
	var payload []byte
	if g.rank == root {
		payload = encodeParts(&cl, vs)
	}
	got, err := cl.cast(ctx, payload)
	if err != nil {
		return none, err
	}
	return decodeOne[T](&cl, got)
}

// AllToAll returns on rank i the vs[i] of every rank, in rank order. vs has Size objects on every rank, 16 MiB together.
func AllToAll[T any](ctx context.Context, g *Group, vs []T) ([]T, error) {
	cl := call{Group: g, c: wire.Contribution{Verb: "alltoall", Root: -1, Type: typeName[T](), Want: wire.WantPart}}
	if err := cl.begin(); err != nil {
		return nil, err
	}
	defer cl.end()
	got, err := cl.cast(ctx, encodeParts(&cl, vs))
	if err != nil {
		return nil, err
	}
	return decodeAll[T](&cl, got)
}
