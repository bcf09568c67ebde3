package store_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestErrorTexts checks the texts that no scenario shows.
func TestErrorTexts(t *testing.T) {
	s := store.New(new(store.Memory))
	ctx := bounded(t)
	over, cancel := context.WithCancel(ctx)
	cancel()
	nowhere := &store.DialOptions{Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "nowhere"}
	}}
	for want, do := range map[string]func() error{
		`store: delete "a b", "c": context canceled`:                                       func() error { _, err := s.Delete(over, "a b", "c"); return err },
		`store: get "a\nb": not found`:                                                     func() error { _, err := s.Get(ctx, "a\nb"); return err },
		`store: set "k": invalid request: a negative TTL`:                                  func() error { return s.Set(ctx, "k", nil, &store.SetOptions{TTL: -1}) },
		`store: dial "nowhere": invalid request: address nowhere: missing port in address`: func() error { _, err := store.Dial(ctx, "nowhere", nil); return err },
		`store: dial "nowhere:1": store unavailable: lookup nowhere: no such host`:         func() error { _, err := store.Dial(ctx, "nowhere:1", nowhere); return err },
	} {
		require.EqualError(t, do(), want)
	}
}

func TestErrorsAreWhatTheirCodesSay(t *testing.T) {
	for code := wire.CodeNotFound; code <= wire.CodeStale; code++ {
		err := &store.Error{Op: "get", Code: code, Err: store.CodeError(code)}
		for other := wire.CodeNotFound; other <= wire.CodeStale; other++ {
			require.Equal(t, other == code, errors.Is(err, store.CodeError(other)), "%v is %v", code, other)
		}
		require.Equal(t, code == wire.CodeTimeout, errors.Is(err, context.DeadlineExceeded), code)
		require.Equal(t, code == wire.CodeTimeout, err.Timeout(), code)
		require.Equal(t, code == wire.CodeCancelled, errors.Is(err, context.Canceled), code)
	}
	require.NoError(t, store.CodeError(wire.CodeOK))
	require.EqualError(t, store.CodeError(999), "code(999)")
}

func TestPrefixesNest(t *testing.T) {
	all := store.New(new(store.Memory))
	ctx := bounded(t)
	outer := store.Prefix(all, "a/")
	inner := store.Prefix(outer, "b/")
	works(t, inner)
	for s, key := range map[*store.Store]string{inner: "works", outer: "b/works", all: "a/b/works"} {
		for e, err := range s.List(ctx, "") {
			require.NoError(t, err)
			require.Equal(t, key, e.Key)
		}
	}
	// A backup has the whole store, whose copy is no part.
	var b bytes.Buffer
	_, err := inner.Backup(ctx, &b)
	require.ErrorIs(t, err, store.ErrUnsupported)
	require.ErrorContains(t, err, `backup "b/": `)
	require.ErrorContains(t, err, "make it of the store without the prefix")
	require.Zero(t, b.Len())
	membership := wire.Contribution{Group: "g", Size: 1}
	one, err := outer.Join(ctx, membership, nil)
	require.NoError(t, err)
	two, err := inner.Join(ctx, membership, nil)
	require.NoError(t, err)
	require.NotEqual(t, one.Generation, two.Generation, "groups are apart")
	_, err = all.Join(ctx, wire.Contribution{Group: "a/g", Size: 1}, nil)
	require.ErrorIs(t, err, store.ErrConflict)
	require.NoError(t, outer.Close())
	_, err = inner.Get(ctx, "works")
	require.ErrorIs(t, err, store.ErrClosed)
	viewer := store.ReadOnly(all)
	holds(t, viewer, "a/b/works", "yes")
	require.NoError(t, viewer.Close())
	works(t, all)
}

func TestSchemesOfOnesOwn(t *testing.T) {
	all := store.Builtin()
	refused := errors.New("refused")
	all["mine"] = func(context.Context, *url.URL) (store.Engine, error) { return nil, refused }
	_, err := all.Open(bounded(t), "mine://x")
	require.Equal(t, refused, err)
	_, err = all.Open(bounded(t), "x:")
	require.ErrorContains(t, err, "use mem://… or mine://… or muster://…")
}
