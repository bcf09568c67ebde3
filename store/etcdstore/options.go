package etcdstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Options has defaults for nil.
type Options struct {
	// Root is what all keys of this store begin with; default "muster/". What is below another root is another store.
	Root string
	// TLS is nil for connections in the clear.
	TLS *tls.Config
	// User and Password are for an etcd with authentication. The user needs to read and write below Root.
	User, Password string
	// Session is how long a process may be away until its ranks are lost and its leases have ended; default 5 s. It is rounded up to
	// seconds, and etcd takes its own minimum if that is longer: 2 s, unless its election timeout is another than 1 s.
	Session time.Duration
	// Mend is how long a call tries to reach etcd, and no longer than its context; default 10 s.
	Mend time.Duration
	// Attempt is how long one member has to answer before another one is asked; default 1 s.
	Attempt time.Duration
	// Dial makes a connection; nil is a net.Dialer.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Logger *slog.Logger // nil is silent
}

func (o *Options) withDefaults() Options {
	own := Options{}
	if o != nil {
		own = *o
	}
	own.Root = cmp.Or(own.Root, "muster/")
	own.Session = seconds(cmp.Or(own.Session, 5*time.Second))
	own.Mend = cmp.Or(own.Mend, 10*time.Second)
	own.Attempt = cmp.Or(own.Attempt, time.Second)
	if own.Logger == nil {
		own.Logger = slog.New(slog.DiscardHandler)
	}
	return own
}

// seconds is d in whole seconds, rounded up: the time of etcd's leases.
func seconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// maxMessage bounds a request of the client, far above what a server takes: etcd's own limit is to be heard.
const maxMessage = 512 << 20

func (o *Options) config(endpoints []string) clientv3.Config {
	c := clientv3.Config{
		Endpoints: endpoints, TLS: o.TLS, Username: o.User, Password: o.Password, DialTimeout: o.Attempt,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: o.Attempt, PermitWithoutStream: true,
		MaxCallSendMsgSize: maxMessage, MaxUnaryRetries: 1, Logger: zap.NewNop(),
	}
	soon := backoff.Config{BaseDelay: o.Attempt / 10, Multiplier: 1.6, Jitter: 0.2, MaxDelay: o.Attempt} // gRPC's own goes up to two minutes
	c.DialOptions = []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: o.Attempt})}
	if o.Dial != nil {
		c.DialOptions = append(c.DialOptions, grpc.WithContextDialer(o.Dial))
	}
	return c
}

// Open opens etcd://host:port,host:port/prefix, or etcds:// with TLS. What a path names is a store of its own, below a root of that name.
// A user's name may be in front of the hosts, with a password; all of these parameters may be left out:
//
//	password-file  the file with the user's password; without it, and without one in the URL, that is MUSTER_ETCD_PASSWORD
//	ca             PEM file of who signs the members' certificates; the system's with etcds and without it
//	cert, key      PEM files of the client's own certificate
//	server-name    who a member is to be, if not the host
//	session        how long this process may be away until it is lost, as 5s: see Options.Session
//	mend           how long a call tries to reach etcd, as 10s
//
// It is a store.Opener.
func Open(ctx context.Context, u *url.URL) (store.Engine, error) {
	endpoints, o, err := fromURL(u)
	if err != nil {
		return nil, &store.Error{Op: "open", Key: u.Redacted(), Code: wire.CodeInvalid, Err: store.ErrInvalid, Detail: err.Error()}
	}
	u.Path, u.RawPath = "", "" // it is the root: there is no prefix within that
	return Dial(ctx, endpoints, &o)
}

var parameters = []string{"password-file", "ca", "cert", "key", "server-name", "session", "mend"}

func fromURL(u *url.URL) (endpoints []string, o Options, err error) {
	values, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return nil, o, err
	case u.Host == "":
		return nil, o, errors.New("it has no host: use etcd://host:2379,host2:2379/prefix")
	case u.Fragment != "":
		return nil, o, errors.New("it has a #fragment, which means nothing here")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name]; {
		case !slices.Contains(parameters, name):
			return nil, o, fmt.Errorf("unknown parameter %q: there are %s", name, strings.Join(parameters, ", "))
		case len(v) > 1 || v[0] == "":
			return nil, o, fmt.Errorf("the parameter %s is empty, or there twice", name)
		}
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			return nil, o, fmt.Errorf("%s is no host:port; etcd's port is 2379", host)
		}
		endpoints = append(endpoints, host)
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		o.Root = path + "/"
	}
	if o.Session, err = lifetime(values, "session"); err != nil {
		return nil, o, err
	}
	if o.Mend, err = lifetime(values, "mend"); err != nil {
		return nil, o, err
	}
	if err := o.userOf(u, values); err != nil {
		return nil, o, err
	}
	return endpoints, o, o.tlsOf(u, values)
}

func lifetime(values url.Values, name string) (time.Duration, error) {
	v := values.Get(name)
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s=%s is no time, as 5s is", name, v)
	}
	return d, nil
}

func (o *Options) userOf(u *url.URL, values url.Values) error {
	file := values.Get("password-file")
	if u.User == nil {
		if file != "" {
			return errors.New("a password-file is for a user: etcd://user@host:port")
		}
		return nil
	}
	o.User = u.User.Username()
	password, given := u.User.Password()
	switch {
	case given && file != "":
		return errors.New("there are a password and a password-file")
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("the password-file: %w", err)
		}
		password = strings.TrimRight(string(b), "\r\n")
	case !given:
		password = os.Getenv("MUSTER_ETCD_PASSWORD")
	}
	if o.Password = password; o.User == "" || password == "" {
		return errors.New("a user needs a name and a password: put that into a file, and say ?password-file=FILE")
	}
	return nil
}

func (o *Options) tlsOf(u *url.URL, values url.Values) (err error) {
	files := store.TLSFiles{CA: values.Get("ca"), Cert: values.Get("cert"), Key: values.Get("key"), ServerName: values.Get("server-name")}
	named := files.CA != "" || files.Cert != "" || files.Key != "" || files.ServerName != ""
	if u.Scheme != "etcds" {
		if named {
			return errors.New("ca, cert, key and server-name are of TLS: say etcds://")
		}
		return nil
	}
	o.TLS, err = files.Client()
	return err
}

var _ store.Opener = Open
