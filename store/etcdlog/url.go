package etcdlog

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// ErrNoLeader is the error of Open and Leader while no process serves the store.
var ErrNoLeader = errors.New("the store has no leader")

// Cluster is an etcd cluster, and the root of a store in it.
type Cluster struct {
	Endpoints      []string // host:port
	Root           string   // prefix of the store's keys; empty: the default of Options
	User, Password string
	TLS            *tls.Config // nil: no TLS
	Dial           store.DialOptions
}

// parameters are the parameters of a URL: first those for etcd, then those for the store.
var parameters = []string{
	"password-file", "ca", "cert", "key", "server-name",
	"secret-file", "store-ca", "store-cert", "store-key", "store-server-name",
}

// ParseURL parses etcd://host:port,host:port/root, or etcds:// for TLS: the members of an etcd
// cluster, and the root of a store's keys. A user's name may precede the hosts, with a password.
// All parameters are optional:
//
//	password-file           file with the user's password; default: the password in the URL, else
//	                        MUSTER_ETCD_PASSWORD
//	ca, cert, key           PEM files: the CA bundle that verifies etcd's members, and this
//	                        process's certificate for them
//	server-name             name in the members' certificates, if it is not the host
//	secret-file             the secret of the store, see store.ReadSecret
//	store-ca, -cert, -key   PEM files: the CA bundle that verifies the store, and this process's
//	                        certificate for it
//	store-server-name       name in the store's certificate, if it is not the host
func ParseURL(u *url.URL) (*Cluster, error) {
	c := &Cluster{}
	if err := c.parse(u); err != nil {
		return nil, &store.Error{Op: "open", Key: u.Redacted(), Code: wire.CodeInvalid, Err: store.ErrInvalid, Detail: err.Error()}
	}
	return c, nil
}

func (c *Cluster) parse(u *url.URL) error {
	values, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return err
	case u.Host == "":
		return errors.New("no host: use etcd://host:2379,host2:2379/root")
	case u.Fragment != "":
		return errors.New("a #fragment is not supported")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name]; {
		case !slices.Contains(parameters, name):
			return fmt.Errorf("unknown parameter %q: use one of %s", name, strings.Join(parameters, ", "))
		case len(v) > 1 || v[0] == "":
			return fmt.Errorf("the parameter %s is empty or repeated", name)
		}
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			return fmt.Errorf("%s is not host:port; the default port of etcd is 2379", host)
		}
		c.Endpoints = append(c.Endpoints, host)
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		c.Root = path + "/"
	}
	return errors.Join(c.userOf(u, values), c.tlsOf(u, values), c.storeOf(values))
}

func (c *Cluster) userOf(u *url.URL, values url.Values) error {
	file := values.Get("password-file")
	if u.User == nil {
		if file != "" {
			return errors.New("password-file without a user: use etcd://user@host:port")
		}
		return nil
	}
	c.User = u.User.Username()
	password, given := u.User.Password()
	switch {
	case given && file != "":
		return errors.New("both a password and a password-file")
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("password-file: %w", err)
		}
		password = strings.TrimRight(string(b), "\r\n")
	case !given:
		password = os.Getenv("MUSTER_ETCD_PASSWORD")
	}
	if c.Password = password; c.User == "" || password == "" {
		return errors.New("user name or password missing: put the password into a file and use ?password-file=FILE")
	}
	return nil
}

func (c *Cluster) tlsOf(u *url.URL, values url.Values) (err error) {
	files := store.TLSFiles{CA: values.Get("ca"), Cert: values.Get("cert"), Key: values.Get("key"), ServerName: values.Get("server-name")}
	named := files.CA != "" || files.Cert != "" || files.Key != "" || files.ServerName != ""
	if u.Scheme != "etcds" {
		if named {
			return errors.New("ca, cert, key and server-name need TLS: use etcds://")
		}
		return nil
	}
	c.TLS, err = files.Client()
	return err
}

func (c *Cluster) storeOf(values url.Values) (err error) {
	files := &store.TLSFiles{
		CA: values.Get("store-ca"), Cert: values.Get("store-cert"), Key: values.Get("store-key"), ServerName: values.Get("store-server-name"),
	}
	if files.CA != "" || files.Cert != "" || files.Key != "" || files.ServerName != "" {
		if _, err := files.Client(); err != nil {
			return err
		}
		c.Dial.TLS = files.Client
	}
	if file := values.Get("secret-file"); file != "" {
		c.Dial.Secret, err = store.ReadSecret(file)
	}
	return err
}

// maxMessage bounds a request of the client. It is far above the server's limit, so that callers
// get etcd's own error.
const maxMessage = 512 << 20

// Client returns a client of the cluster, which the caller closes. Without a user it connects when
// it is first used; with a user it connects at once, within five seconds: etcd takes some time to
// compare passwords.
func (c *Cluster) Client() (*clientv3.Client, error) {
	return c.connect(context.Background(), 5*attemptTimeout, new(lastError))
}

// lastError is the error of the last connection attempt. The error of a request that timed out does
// not contain it.
type lastError struct{ atomic.Pointer[error] }

func (l *lastError) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil && ctx.Err() == nil {
		l.Store(&err)
	}
	return conn, err
}

// connect returns a client that works until ctx ends. limit bounds the authentication of a user.
func (c *Cluster) connect(ctx context.Context, limit time.Duration, why *lastError) (*clientv3.Client, error) {
	config := clientv3.Config{
		Context:   ctx,
		Endpoints: c.Endpoints, TLS: c.TLS, Username: c.User, Password: c.Password, DialTimeout: limit,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: attemptTimeout, PermitWithoutStream: true,
		MaxCallSendMsgSize: maxMessage, MaxUnaryRetries: 1, Logger: zap.NewNop(),
	}
	soon := backoff.Config{BaseDelay: attemptTimeout / 10, Multiplier: 1.6, Jitter: 0.2, MaxDelay: attemptTimeout} // gRPC's own goes up to two minutes
	config.DialOptions = []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: attemptTimeout}), grpc.WithContextDialer(why.dial),
	}
	if c.TLS != nil && c.TLS.ServerName != "" { // gRPC replaces the ServerName of TLS with the authority
		config.DialOptions = append(config.DialOptions, grpc.WithAuthority(c.TLS.ServerName))
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, c.unavailable(err, why)
	}
	return client, nil
}

func (c *Cluster) unavailable(err error, why *lastError) error {
	e := &store.Error{Op: "dial", Key: "etcd at " + strings.Join(c.Endpoints, ","), Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", store.ErrUnavailable, err)}
	dial := why.Load()
	switch {
	case denied(err):
		e.Code, e.Err, e.Detail = wire.CodeDenied, store.ErrDenied, text(err)
	case !errors.Is(err, context.DeadlineExceeded):
	case dial != nil:
		e.Detail = (*dial).Error()
	default:
		e.Detail = "no member answers: check that etcd listens there, and wants TLS (etcds://) or not (etcd://)"
	}
	return e
}

// Open connects to the leader of the store that u names, see ParseURL, and to each later leader
// when the connection breaks. It is a store.Opener.
func Open(ctx context.Context, u *url.URL) (store.Engine, error) {
	c, err := ParseURL(u)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath = "", "" // the path is the root, not a prefix within the store
	o := c.Dial
	o.Wait, o.Resolve, o.WaitReplaced = true, c.Leader, c.WaitReplaced
	s, err := store.Dial(ctx, c.Endpoints[0], &o)
	if err != nil {
		return nil, err
	}
	return s.Engine(), nil
}

// Leader asks etcd where the leader serves, host:port. It connects only for this request.
func (c *Cluster) Leader(ctx context.Context) (addr string, err error) {
	var why lastError
	client, err := c.connect(ctx, attemptTimeout, &why)
	if err != nil {
		return "", err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout)
	defer cancel()
	l, err := FindLeader(ctx, client, &Options{Root: c.Root})
	switch {
	case err != nil:
		return "", c.unavailable(err, &why)
	case l.Addr == "":
		return "", &store.Error{
			Op: "dial", Key: "etcd at " + strings.Join(c.Endpoints, ","), Code: wire.CodeUnavailable,
			Err: fmt.Errorf("%w: %w", store.ErrUnavailable, ErrNoLeader),
		}
	}
	return l.Addr, nil
}

// WaitReplaced returns nil when another process leads than the one at addr, for store.DialOptions.
// It watches root/leader until ctx ends, over a separate connection. It ignores the deletion of
// the key: a leader that deletes it closes its connections.
func (c *Cluster) WaitReplaced(ctx context.Context, addr string) error {
	client, err := c.connect(ctx, attemptTimeout, new(lastError))
	if err != nil {
		return err
	}
	defer client.Close()
	s := &standby{keyspace: newKeyspace(client, &Options{Root: c.Root})}
	for ctx.Err() == nil {
		err := s.reload(ctx)
		for err == nil && s.leader.rev > 0 {
			if s.leader.Addr != addr {
				return nil
			}
			err = s.nextLeader(ctx)
		}
		if err != nil && denied(err) {
			return err
		}
		select {
		case <-time.After(attemptTimeout):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// nextLeader waits for the next change of root/leader.
func (s *standby) nextLeader(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range s.watcher.Watch(clientv3.WithRequireLeader(ctx), s.leaderKey(), clientv3.WithRev(s.leader.rev+1)) {
		if err := resp.Err(); err != nil {
			return err
		}
		if len(resp.Events) > 0 {
			return s.handleEvents(resp.Events)
		}
	}
	return cmp.Or(ctx.Err(), errBehind)
}

var _ store.Opener = Open
