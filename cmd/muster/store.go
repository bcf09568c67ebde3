package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/spf13/cobra"
)

const (
	// dialTime is the timeout to connect, or --timeout if that is shorter, but not below leastDialTime:
	// a short --timeout, which begins after that, is for what a command waits for.
	dialTime, leastDialTime = 5 * time.Second, time.Second
	quick                   = 10 * time.Second // timeout of a command that does not wait
)

// remote is the store that a command works on.
type remote struct {
	url     string
	timeout time.Duration
	secure  []parameter
	title   string // of a store that find has found; "": --store named it
}

// parameter is a parameter of a store's URL that a flag or a variable may set too.
type parameter struct{ name, flag, env, usage, value string }

func parameters() []parameter {
	return []parameter{
		{name: "secret-file", flag: "secret-file", env: "MUSTER_SECRET_FILE", usage: "`file` with the secret of the store"},
		{name: "ca", flag: "tls-ca", env: "MUSTER_TLS_CA", usage: "CA bundle `file` (PEM) that verifies the store's certificate; enables TLS"},
		{name: "cert", flag: "tls-cert", env: "MUSTER_TLS_CERT", usage: "`file` (PEM) with the client's certificate; enables TLS"},
		{name: "key", flag: "tls-key", env: "MUSTER_TLS_KEY", usage: "`file` (PEM) with the key of --tls-cert"},
	}
}

// flags registers --store and --timeout; a timeout of 0 means none.
func (r *remote) flags(cmd *cobra.Command, timeout time.Duration) {
	f := cmd.Flags()
	f.StringVar(&r.url, "store", "", "`URL` of the store, muster://host:port[/prefix][?secret-file=…], etcd://host:port,host:port[/prefix], or tcp://host:port that PyTorch hosts; or set MUSTER_STORE")
	r.secure = parameters()
	for i := range r.secure {
		p := &r.secure[i]
		f.StringVar(&p.value, p.flag, "", p.usage+"; or set "+p.env)
	}
	usage := "give up after this time"
	if timeout == 0 {
		usage += "; 0 is no timeout"
	}
	f.DurationVar(&r.timeout, "timeout", timeout, usage)
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
}

// do opens the store, and calls f with it.
func (r *remote) do(cmd *cobra.Command, f func(ctx context.Context, s *store.Store) error) error {
	if err := r.check(cmd); err != nil {
		return err
	}
	s, err := r.open(context.Background())
	if err != nil {
		return &storeError{redacted(r.url), err}
	}
	defer s.Close()
	ctx := cmd.Context()
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	err = f(ctx, s)
	if _, ok := errors.AsType[*store.Error](err); ok {
		return &storeError{redacted(r.url), err}
	}
	return err
}

func (r *remote) open(ctx context.Context) (*store.Store, error) {
	timeout := dialTime
	if r.timeout > 0 {
		timeout = min(max(r.timeout, leastDialTime), dialTime)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return schemes().Open(ctx, r.target())
}

// schemes returns the engines that a URL may name.
func schemes() store.Schemes {
	all := store.Builtin()
	all["tcp"], all["tcpstore"] = tcpstore.Open, tcpstore.Open
	all["etcd"], all["etcds"] = etcdlog.Open, etcdlog.Open
	return all
}

// byURL has a rank open its store with all engines. What a client needs is then in the URL alone.
func byURL(c *pgroup.Config) {
	c.Schemes = schemes()
	if strings.Contains(c.Address, "://") {
		c.Address, c.Secret, c.TLS = (&remote{url: c.Address, secure: parameters()}).target(), nil, nil
	}
}

// target returns the store's URL with the parameters that flags and variables set. Parameters in
// the URL have priority, then flags.
func (r *remote) target() string {
	u, err := url.Parse(r.url)
	// other schemes have neither secrets nor TLS
	if err != nil || u.Scheme != "muster" && u.Scheme != "etcd" && u.Scheme != "etcds" {
		return r.url
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return r.url
	}
	for _, p := range r.secure {
		value := cmp.Or(p.value, os.Getenv(p.env))
		if p.name != "secret-file" && u.Scheme == "etcd" {
			continue
		}
		if value != "" && !q.Has(p.name) && (p.name == "secret-file" || q.Get("tls") != "false") {
			q.Set(p.name, value)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// proves reports whether the client authenticates to the store: by a secret, a certificate, or a
// user of etcd.
func (r *remote) proves() bool {
	u, err := url.Parse(r.target())
	return err == nil && (u.User != nil || u.Query().Has("secret-file") || u.Query().Has("cert"))
}

func (r *remote) check(cmd *cobra.Command) error {
	from := "--store"
	if r.url == "" {
		r.url, from = os.Getenv("MUSTER_STORE"), "MUSTER_STORE"
	}
	if r.url == "" {
		return &exit{code: exitUsage, text: `which store? Give --store muster://host:port or set MUSTER_STORE; "muster serve" starts one`}
	}
	if err := checkURL(r.url); err != nil {
		return &exit{code: exitUsage, text: fmt.Sprintf("%s %s: %v", from, redacted(r.url), err)}
	}
	if u, err := url.Parse(r.target()); err == nil && (u.Query().Get("cert") != "") != (u.Query().Get("key") != "") {
		return usagef(cmd, "--tls-cert (MUSTER_TLS_CERT) and --tls-key (MUSTER_TLS_KEY) go together")
	}
	return nil
}

// redacted returns a URL without its password.
func redacted(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.User != nil {
		return u.Redacted()
	}
	return raw
}

// checkURL validates the URL of a store.
func checkURL(raw string) error {
	u, err := url.Parse(raw)
	etcd := err == nil && (u.Scheme == "etcd" || u.Scheme == "etcds")
	switch {
	case err == nil && u.Scheme == "mem" && u.Host == "":
		return nil
	case err == nil && u.User != nil && !etcd:
		return errors.New("there are no users: --secret-file names a file with a secret")
	case checkPort(raw) == nil:
		return fmt.Errorf("not a URL: did you mean muster://%s?", raw)
	case (err != nil || u.Host == "") && strings.HasPrefix(raw, "etcd"):
		return errors.New("not a URL of the form etcd://host:port,host:port[/prefix]; of hosts that are IPv6 addresses it takes one")
	case err != nil || u.Host == "":
		return errors.New("not a URL of the form muster://host:port")
	case schemes()[u.Scheme] == nil || u.Scheme == "mem":
		return fmt.Errorf("%s:// is not known here, only muster://host:port, etcd://host:port,host:port, and tcp://host:port that PyTorch hosts", u.Scheme)
	case etcd: // there may be several hosts; they are checked when the store is opened
		return nil
	}
	for way := range strings.SplitSeq(u.Host, ",") {
		if err := checkPort(way); err != nil {
			return err
		}
	}
	return nil
}

func checkPort(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 1 || n > 65535 {
		return errors.New("the port, 1 to 65535, is missing or wrong: muster://host:port")
	}
	return nil
}
