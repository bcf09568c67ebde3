package etcdlog

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
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

// ErrNoLeader is why Open and Leader fail while no process serves the store.
var ErrNoLeader = errors.New("no process leads the store there")

// Cluster is an etcd, and a store's place in it.
type Cluster struct {
	Endpoints      []string // host:port
	Root           string   // of the store's keys; empty is the default of Options
	User, Password string
	TLS            *tls.Config // nil: without
	Dial           store.DialOptions
}

// The parameters of a URL. Those of the first line are etcd's, those of the second the store's.
var parameters = []string{
	"password-file", "ca", "cert", "key", "server-name",
	"secret-file", "store-ca", "store-cert", "store-key", "store-server-name",
}

// ParseURL parses etcd://host:port,host:port/root, or etcds:// with TLS: the members of an etcd, and the root of a store's keys. A
// user's name may be in front of the hosts, with a password. All of these parameters may be left out:
//
//	password-file           the file with the user's password; without it, and without one in the URL, that is MUSTER_ETCD_PASSWORD
//	ca, cert, key           PEM files: the CA bundle that verifies etcd's members, and this process's certificate for them
//	server-name             the name in the members' certificates, if it is not the host
//	secret-file             the secret of the store, see store.ReadSecret
//	store-ca, -cert, -key   PEM files: the CA bundle that verifies the store, and this process's certificate for it
//	store-server-name       the name in the store's certificate, if it is not the host
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
		return errors.New("it has no host: use etcd://host:2379,host2:2379/root")
	case u.Fragment != "":
		return errors.New("it has a #fragment, which means nothing here")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch v := values[name]; {
		case !slices.Contains(parameters, name):
			return fmt.Errorf("unknown parameter %q: there are %s", name, strings.Join(parameters, ", "))
		case len(v) > 1 || v[0] == "":
			return fmt.Errorf("the parameter %s is empty, or there twice", name)
		}
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			return fmt.Errorf("%s is no host:port; etcd's port is 2379", host)
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
			return errors.New("a password-file is for a user: etcd://user@host:port")
		}
		return nil
	}
	c.User = u.User.Username()
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
	if c.Password = password; c.User == "" || password == "" {
		return errors.New("a user needs a name and a password: put that into a file, and say ?password-file=FILE")
	}
	return nil
}

func (c *Cluster) tlsOf(u *url.URL, values url.Values) (err error) {
	files := store.TLSFiles{CA: values.Get("ca"), Cert: values.Get("cert"), Key: values.Get("key"), ServerName: values.Get("server-name")}
	named := files.CA != "" || files.Cert != "" || files.Key != "" || files.ServerName != ""
	if u.Scheme != "etcds" {
		if named {
			return errors.New("ca, cert, key and server-name are of TLS: say etcds://")
		}
		return nil
	}
	if c.TLS, err = files.Client(); err == nil && files.ServerName != "" {
		verifyAs(c.TLS, files.ServerName)
	}
	return err
}

// verifyAs has c verify that a server is name: gRPC puts the host that it dials in the place of c.ServerName.
func verifyAs(c *tls.Config, name string) {
	c.InsecureSkipVerify = true // VerifyConnection does it
	c.VerifyConnection = func(s tls.ConnectionState) error {
		o := x509.VerifyOptions{DNSName: name, Roots: c.RootCAs, Intermediates: x509.NewCertPool()}
		for _, cert := range s.PeerCertificates[1:] {
			o.Intermediates.AddCert(cert)
		}
		_, err := s.PeerCertificates[0].Verify(o)
		return err
	}
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

// maxMessage bounds a request of the client, far above what a server takes: etcd's own limit is to be heard.
const maxMessage = 512 << 20

// Client makes a client of the etcd, which the caller closes. It connects when it is first used; with a user it does so at once, and takes no
// longer than five seconds: etcd takes its time to compare passwords.
func (c *Cluster) Client() (*clientv3.Client, error) {
	return c.connect(context.Background(), 5*attempt, new(lastError))
}

// lastError is why the last connection could not be made: a request whose time has passed does not say so.
type lastError struct{ atomic.Pointer[error] }

func (l *lastError) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil && ctx.Err() == nil {
		l.Store(&err)
	}
	return conn, err
}

// connect makes a client until ctx ends. limit is for the answer whether a user is let in.
func (c *Cluster) connect(ctx context.Context, limit time.Duration, why *lastError) (*clientv3.Client, error) {
	config := clientv3.Config{
		Context:   ctx,
		Endpoints: c.Endpoints, TLS: c.TLS, Username: c.User, Password: c.Password, DialTimeout: limit,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: attempt, PermitWithoutStream: true,
		MaxCallSendMsgSize: maxMessage, MaxUnaryRetries: 1, Logger: zap.NewNop(),
	}
	soon := backoff.Config{BaseDelay: attempt / 10, Multiplier: 1.6, Jitter: 0.2, MaxDelay: attempt} // gRPC's own goes up to two minutes
	config.DialOptions = []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: attempt}), grpc.WithContextDialer(why.dial),
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

// Open connects to the leader of the store that u names, as ParseURL describes it, and to each later leader when the connection
// breaks. It is a store.Opener.
func Open(ctx context.Context, u *url.URL) (store.Engine, error) {
	c, err := ParseURL(u)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath = "", "" // it is the root: there is no prefix within that
	o := c.Dial
	o.Wait, o.Resolve, o.Moved = true, c.Leader, c.Moved
	s, err := store.Dial(ctx, c.Endpoints[0], &o)
	if err != nil {
		return nil, err
	}
	return s.Engine(), nil
}

// Leader asks etcd where the leader serves, host:port. It connects for that alone.
func (c *Cluster) Leader(ctx context.Context) (addr string, err error) {
	var why lastError
	client, err := c.connect(ctx, attempt, &why)
	if err != nil {
		return "", err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	l, err := Find(ctx, client, &Options{Root: c.Root})
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

// Moved returns nil when another process leads than the one at addr, for store.DialOptions. It watches root/leader until ctx ends, by a
// connection for that alone. A key that is gone says nothing: a leader that deletes it closes its connections.
func (c *Cluster) Moved(ctx context.Context, addr string) error {
	client, err := c.connect(ctx, attempt, new(lastError))
	if err != nil {
		return err
	}
	defer client.Close()
	s := &standby{place: newPlace(client, &Options{Root: c.Root})}
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
		case <-time.After(attempt):
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
			return s.take(resp.Events)
		}
	}
	return cmp.Or(ctx.Err(), errBehind)
}

var _ store.Opener = Open
