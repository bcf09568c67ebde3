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

// Opener opens the engine that a URL names. The path of the URL is a prefix within that engine; an opener that makes
// something else of it takes it out of u.
type Opener func(ctx context.Context, u *url.URL) (Engine, error)

// Schemes is what a program can open by URL. It is a value: there is no registry.
type Schemes map[string]Opener

// Builtin opens mem: (a Memory of its own) and muster://host:port/prefix (a Server; see DialURL).
func Builtin() Schemes {
	return Schemes{"mem": openMemory, "muster": openServer}
}

// Open opens rawurl; a scheme that is not there is an error that lists those that are.
func (m Schemes) Open(ctx context.Context, rawurl string) (*Store, error) {
	bad := func(format string, args ...any) error {
		return &Error{Op: "open", Key: redacted(rawurl), Code: wire.CodeInvalid, Err: ErrInvalid, Detail: fmt.Sprintf(format, args...)}
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
	return below(e, u), nil
}

// redacted is rawurl for errors, without a password, which somebody may have put there: no scheme takes one from a URL.
func redacted(rawurl string) string {
	if u, err := url.Parse(rawurl); err == nil {
		if u.User == nil {
			return rawurl
		}
		return u.Redacted()
	}
	if scheme, rest, ok := strings.Cut(rawurl, "://"); ok {
		return scheme + "://" + rest[strings.LastIndexByte(rest, '@')+1:]
	}
	return rawurl
}

// below is the part of e that the path of u names.
func below(e Engine, u *url.URL) *Store {
	if prefix := strings.TrimPrefix(u.Path, "/"); prefix != "" {
		return New(&owner{newPrefixed(e, prefix+"/")})
	}
	return New(e)
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
	addr, o, err := fromURL(u, nil)
	if err != nil {
		return nil, err
	}
	s, err := Dial(ctx, addr, &o)
	if err != nil {
		return nil, err
	}
	return s.engine, nil
}

// DialURL is Dial for a URL, muster://host:port/prefix?name=value&…, with these names, all of which may be left out:
//
//	secret-file   see ReadSecret
//	ca            PEM file of who signs the server's certificate; the system's if TLS is turned on by another name
//	cert, key     PEM files of the client's own certificate
//	server-name   who the server is to be, if not the host; together with another one of TLS
//	tls           true turns TLS on, as ca or cert do; false turns it off, whatever o says
//
// What the URL says takes the place of what o does.
func DialURL(ctx context.Context, rawurl string, o *DialOptions) (*Store, error) {
	u, err := url.Parse(rawurl)
	if err != nil || u.Scheme != "muster" {
		return nil, &Error{Op: "dial", Key: redacted(rawurl), Code: wire.CodeInvalid, Err: ErrInvalid, Detail: "it is no URL of the form muster://host:port"}
	}
	addr, options, err := fromURL(u, o)
	if err != nil {
		return nil, err
	}
	s, err := Dial(ctx, addr, &options)
	if err != nil {
		return nil, err
	}
	return below(s.engine, u), nil
}

// parameters are those of a muster:// URL.
var parameters = []string{"secret-file", "ca", "cert", "key", "server-name", "tls"}

// fromURL is what u says of a store, with the rest from o.
func fromURL(u *url.URL, o *DialOptions) (addr string, options DialOptions, err error) {
	if o != nil {
		options = *o
	}
	bad := func(format string, args ...any) (string, DialOptions, error) {
		return "", options, &Error{Op: "dial", Key: u.Redacted(), Code: wire.CodeInvalid, Err: ErrInvalid, Detail: fmt.Sprintf(format, args...)}
	}
	values, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return bad("%v", err)
	case u.User != nil:
		return bad("there are no users: a secret is in a file, ?secret-file=FILE")
	case u.Fragment != "":
		return bad("a #fragment is not supported")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name]; {
		case !slices.Contains(parameters, name):
			return bad("unknown parameter %q: there are %s", name, strings.Join(parameters, ", "))
		case len(v) > 1:
			return bad("the parameter %s is there twice", name)
		case v[0] == "":
			return bad("the parameter %s is empty", name)
		}
	}
	files := &TLSFiles{CA: values.Get("ca"), Cert: values.Get("cert"), Key: values.Get("key"), ServerName: values.Get("server-name"), Logger: options.Logger}
	turnsOn := files.CA != "" || files.Cert != "" || files.Key != ""
	switch v := values.Get("tls"); {
	case v != "" && v != "true" && v != "false":
		return bad("the parameter tls is %q, which is neither true nor false", v)
	case v == "false" && (turnsOn || files.ServerName != ""):
		return bad("tls=false, and parameters of TLS")
	case v == "false":
		options.TLS = nil
	case turnsOn || v == "true":
		options.TLS = files.Client
	case files.ServerName != "":
		return bad("server-name is of TLS: say tls=true, or ca")
	}
	if file := values.Get("secret-file"); file != "" {
		if options.Secret, err = ReadSecret(file); err != nil {
			return "", options, err
		}
	}
	return u.Host, options, nil
}
