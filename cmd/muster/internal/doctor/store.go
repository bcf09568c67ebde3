package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/store"
)

// lagging is the number of log entries from which on a standby is reported as behind.
const lagging = 10_000

// store checks the store at d.Store as a client with these settings: its certificates, whether it
// grants access, and which process leads. In a job, joining the group tests the other ranks' access.
func (d *Doctor) store(ctx context.Context, p *process) []Finding {
	u, err := url.Parse(d.Store)
	if err != nil || !slices.Contains([]string{"muster", "etcd", "etcds"}, u.Scheme) || p.config != nil && p.config.Rank != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.answerTimeout())
	defer cancel()
	fs := append(d.certificates(ctx, u), d.protection(u)...)
	began := time.Now()
	s, err := d.System.Open(ctx, d.Store)
	if err != nil {
		return append(fs, d.noAccess(err))
	}
	defer s.Close()
	if _, err := s.Revision(ctx); err != nil && !errors.Is(err, store.ErrDenied) {
		return append(fs, d.noAccess(err))
	}
	fs = append(fs, ok("the store grants access, and answered in %s", round(time.Since(began))))
	now, err := s.Status(ctx, "")
	switch {
	case errors.Is(err, store.ErrDenied):
		return append(fs, ok("its status is not checked: this client may not read the whole store"))
	case err != nil:
		return append(fs, d.noAccess(err))
	case now.Replication != nil:
		return append(fs, replication(now.Replication)...)
	case now.Server != nil && now.Server.Durable:
		return append(fs, ok("one process keeps the store on its disk"))
	}
	return append(fs, ok("one process keeps the store in memory: groups and keys end with it"))
}

// noAccess returns the finding for an error of the store.
func (d *Doctor) noAccess(err error) Finding {
	text := strings.TrimPrefix(err.Error(), "store: ")
	e, isStore := errors.AsType[*store.Error](err)
	switch {
	case errors.Is(err, store.ErrDenied) && isStore && e.Detail != "":
		do := "check the secret and the TLS files of this client"
		if d.Advice != nil {
			do = d.Advice(e.Reason)
		}
		return problem("the store denies access: "+e.Detail, do)
	case errors.Is(err, store.ErrInvalid):
		return problem(text, "correct the URL, or the file that it names")
	case errors.Is(err, store.ErrProtocol):
		return problem("no store answers there: "+text, "another program listens there: is the port right?")
	}
	return problem("the store cannot be reached: "+text, "is \"muster serve\" running there? \"muster help environment\" lists the settings of clients")
}

// usesTLS reports whether a client of the URL uses TLS.
func usesTLS(q url.Values) bool {
	return q.Get("tls") != "false" && (q.Get("tls") == "true" || q.Has("ca") || q.Has("cert"))
}

// protection warns of a store on another host without TLS.
func (d *Doctor) protection(u *url.URL) []Finding {
	q := u.Query()
	remote := slices.ContainsFunc(hostsOf(d.Store), func(host string) bool { return !link.IsLoopback(host) })
	if u.Scheme != "muster" || !remote || usesTLS(q) {
		return nil
	}
	what := "traffic to the store is not encrypted"
	if !q.Has("secret-file") {
		what += ", and neither side authenticates"
	}
	return []Finding{warning(what, "\"muster certs\" makes certificates: muster serve --tls-cert, and --tls-ca or MUSTER_TLS_CA here; or trust the network")}
}

// certificates checks the certificate that each address in u shows. A file that cannot be read, and
// an address without an answer, are findings of the caller and of the check of ports.
func (d *Doctor) certificates(ctx context.Context, u *url.URL) (fs []Finding) {
	q := u.Query()
	if u.Scheme != "muster" || !usesTLS(q) {
		return nil
	}
	files := store.TLSFiles{CA: q.Get("ca"), Cert: q.Get("cert"), Key: q.Get("key"), ServerName: q.Get("server-name")}
	for _, addr := range waysOf(d.Store) {
		c, err := files.Client()
		if err != nil {
			return nil
		}
		leaf, err := d.shown(ctx, addr, c)
		untrusted, wrong := errors.AsType[*tls.CertificateVerificationError](err)
		switch {
		case wrong:
			fs = append(fs, problem(fmt.Sprintf("the certificate of %s is not trusted: %v", addr, untrusted.Err), "is --tls-ca (MUSTER_TLS_CA) the CA that signed it, is it for this name (\"muster certs --host\"), and is it valid now?"))
		case err == nil:
			fs = append(fs, d.period(leaf, "the certificate of "+addr, "certificate of %s, valid until %s", addr, leaf.NotAfter.Format(time.DateOnly)))
		}
	}
	return fs
}

// shown returns the certificate of the server at addr, which c verifies by this host's clock.
func (d *Doctor) shown(ctx context.Context, addr string, c *tls.Config) (*x509.Certificate, error) {
	conn, err := d.System.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	c.Time = d.System.Now
	t := tls.Client(conn, c)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return t.ConnectionState().PeerCertificates[0], nil
}

// replication reports the processes of a replicated store.
func replication(r *store.ReplicationStatus) []Finding {
	if r.Leader == "" {
		return []Finding{problem("no process leads the store", "start \"muster serve --etcd\" on two or three hosts; their logs say why none leads")}
	}
	lead := fmt.Sprintf("%s leads, in term %d, for %s", r.Leader, r.Term, round(r.LeadingFor))
	if len(r.Standbys) == 0 {
		return []Finding{warning(lead+"; there is no standby", "start \"muster serve --etcd\" on another host: it takes over when the leader fails")}
	}
	var addrs, behind []string
	for _, s := range r.Standbys {
		addrs = append(addrs, s.Addr)
		if s.Lag >= lagging {
			behind = append(behind, fmt.Sprintf("%s by %d entries", s.Addr, s.Lag))
		}
	}
	fs := []Finding{ok("%s; standbys: %s", lead, strings.Join(addrs, ", "))}
	if len(behind) > 0 {
		fs = append(fs, warning("standbys are behind the leader: "+strings.Join(behind, ", "), "a takeover has to apply these first: are their host and etcd slow?"))
	}
	return fs
}
