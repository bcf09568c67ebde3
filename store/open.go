package store

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// Opener opens the engine that a URL names.
type Opener func(ctx context.Context, u *url.URL) (Engine, error)

// Schemes is what a program can open by URL. It is a value: there is no registry.
type Schemes map[string]Opener

// Builtin opens mem: (a Memory of its own) and muster://host:port/prefix (a Server).
func Builtin() Schemes {
	return Schemes{"mem": openMemory, "muster": openServer}
}

// Open opens rawurl; a scheme that is not there is an error that lists those that are.
func (m Schemes) Open(ctx context.Context, rawurl string) (*Store, error) {
	bad := func(format string, args ...any) error {
		return &Error{Op: "open", Key: rawurl, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: fmt.Sprintf(format, args...)}
	}
	u, err := url.Parse(rawurl)
	if err != nil {
		return nil, bad("not a URL: use %s", m.examples())
	}
	open, ok := m[u.Scheme]
	if !ok {
		return nil, bad("unknown scheme %q: use %s", u.Scheme, m.examples())
	}
	e, err := open(ctx, u)
	if err != nil {
		return nil, err
	}
	s := New(e)
	if prefix := strings.TrimPrefix(u.Path, "/"); prefix != "" {
		return New(&owner{newPrefixed(e, prefix+"/")}), nil
	}
	return s, nil
}

func (m Schemes) examples() string {
	return strings.Join(slices.Sorted(maps.Keys(m)), "://… or ") + "://…"
}

// owner is a prefix of an engine that nobody else holds.
type owner struct{ *prefixed }

// Close closes the engine below.
func (o *owner) Close() error {
	o.close()
	return o.engine.Close()
}

// Open is Builtin().Open.
func Open(ctx context.Context, rawurl string) (*Store, error) { return Builtin().Open(ctx, rawurl) }

func openMemory(context.Context, *url.URL) (Engine, error) { return new(Memory), nil }

func openServer(ctx context.Context, u *url.URL) (Engine, error) {
	s, err := Dial(ctx, u.Host, nil)
	if err != nil {
		return nil, err
	}
	return s.engine, nil
}
