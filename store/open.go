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

// Opener opens the engine that a URL names. The path of the URL is a prefix within that engine; an
// opener that uses the path otherwise removes it from u.
type Opener func(ctx context.Context, u *url.URL) (Engine, error)

// Schemes are the URL schemes that a program can open. It is a plain value: there is no registry.
type Schemes map[string]Opener

// Builtin returns the openers of mem: (a new Memory) and muster://host:port/prefix (a Server, see
// DialURL).
func Builtin() Schemes {
	return Schemes{"mem": openMemory, "muster": openServer}
}

// Open opens rawurl. The error for an unknown scheme lists those that are known.
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
	return prefixStore(e, u), nil
}

// redacted returns rawurl for errors, without a password, which a user may have put there although
// no scheme takes one from a URL.
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

// prefixStore returns the part of e that the path of u names.
func prefixStore(e Engine, u *url.URL) *Store {
	if prefix := strings.TrimPrefix(u.Path, "/"); prefix != "" {
		p := newPrefixed(e, prefix+"/")
		p.owns = true
		return New(p)
	}
	return New(e)
}

func (m Schemes) examples() string {
	return strings.Join(slices.Sorted(maps.Keys(m)), "://… or ") + "://…"
}

// Open is Builtin().Open: it opens a store by URL.
func Open(ctx context.Context, rawurl string) (*Store, error) { return Builtin().Open(ctx, rawurl) }

func openMemory(context.Context, *url.URL) (Engine, error) { return new(Memory), nil }

func openServer(ctx context.Context, u *url.URL) (Engine, error) { return dialServer(ctx, u, nil) }

// dialServer connects to the Server that u names, with the other options from o.
func dialServer(ctx context.Context, u *url.URL, o *DialOptions) (Engine, error) {
	addr, options, err := fromURL(u, o)
	if err != nil {
		return nil, err
	}
	s, err := Dial(ctx, addr, &options)
	if err != nil {
		return nil, err
	}
	return s.engine, nil
}

// DialURL is Dial for a URL, muster://host:port/prefix?name=value&…, with these optional
// parameters:
//
//	secret-file   file with the secret, see ReadSecret
//	ca            CA bundle (PEM) that verifies the server's certificate; default: the system's, if TLS is on
//	cert, key     PEM files: the client's certificate and key
//	server-name   name in the server's certificate, if it is not the host; needs tls, ca or cert
//	tls           true turns TLS on, as ca and cert do; false turns it off, even if o has it
//
// The parameters of the URL override o.
func DialURL(ctx context.Context, rawurl string, o *DialOptions) (*Store, error) {
	u, err := parseServerURL("dial", rawurl)
	if err != nil {
		return nil, err
	}
	e, err := dialServer(ctx, u, o)
	if err != nil {
		return nil, err
	}
	return prefixStore(e, u), nil
}

// parseServerURL parses the URL of a Server, for the operation op.
func parseServerURL(op, rawurl string) (*url.URL, error) {
	u, err := url.Parse(rawurl)
	if err != nil || u.Scheme != "muster" {
		return nil, &Error{Op: op, Key: redacted(rawurl), Code: wire.CodeInvalid, Err: ErrInvalid, Detail: "not a URL of the form muster://host:port"}
	}
	return u, nil
}

// parameters are the parameters of a muster:// URL.
var parameters = []string{"secret-file", "ca", "cert", "key", "server-name", "tls"}

// fromURL returns the addresses and options that u names, with the other options from o.
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
		return bad("no users are supported: use ?secret-file=FILE")
	case u.Fragment != "":
		return bad("a #fragment is not supported")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name]; {
		case !slices.Contains(parameters, name):
			return bad("unknown parameter %q: use one of %s", name, strings.Join(parameters, ", "))
		case len(v) > 1:
			return bad("the parameter %s is repeated", name)
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
		return bad("tls=false with parameters of TLS")
	case v == "false":
		options.TLS = nil
	case turnsOn || v == "true":
		options.TLS = files.Client
	case files.ServerName != "":
		return bad("server-name needs TLS: set tls=true or ca")
	}
	if file := values.Get("secret-file"); file != "" {
		if options.Secret, err = ReadSecret(file); err != nil {
			return "", options, err
		}
	}
	return u.Host, options, nil
}
