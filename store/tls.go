package store

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/muster-pg/muster/wire"
)

// TLSFiles names PEM files for TLS 1.3. Changed files are taken up by the handshakes that begin a second later, without a
// restart; while they cannot be read, the last good ones stay, and Logger is told. It may be used by many goroutines at once.
type TLSFiles struct {
	Cert, Key     string       // of this side; a client may have none
	CA            string       // who may have signed the other side's; "": a server asks for none, a client trusts the system's
	RequireClient bool         // a server turns away who has no certificate
	ServerName    string       // a client wants the server to be this; "" leaves that to who dials
	Logger        *slog.Logger // nil is silent

	server, client reloaded
}

// lookEvery is how often files are looked at: not for each of ten thousand handshakes.
const lookEvery = time.Second

// Server reads the files, and returns what tls.NewListener and tls.Server need. It looks at the files again by itself.
func (f *TLSFiles) Server() (*tls.Config, error) {
	switch {
	case f.Cert == "" || f.Key == "":
		return nil, tlsError("", errors.New("a server needs a certificate and its key"))
	case f.RequireClient && f.CA == "":
		return nil, tlsError("", errors.New("to require certificates of clients, it needs the CA that signs them"))
	}
	if _, err := f.server.get(f.Logger, f.files(), f.loadServer); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true, // a ticket would outlive the CA that its certificate was checked with
		ClientAuth:             f.clientAuth(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return f.server.get(f.Logger, f.files(), f.loadServer)
		},
	}, nil
}

// Client reads the files, or what has changed since, and returns what one dial needs: call it for each, since a
// client's configuration, unlike a server's, cannot change its CA by itself. Without f.ServerName the caller sets the
// result's, which is its own. Only the first call can fail.
func (f *TLSFiles) Client() (*tls.Config, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, tlsError("", errors.New("a certificate and a key go together"))
	}
	c, err := f.client.get(f.Logger, f.files(), f.loadClient)
	if err != nil {
		return nil, err
	}
	return c.Clone(), nil
}

func (f *TLSFiles) files() (names []string) {
	for _, name := range [...]string{f.Cert, f.Key, f.CA} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

func (f *TLSFiles) loadServer() (*tls.Config, error) {
	pair, err := f.loadPair()
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, Certificates: []tls.Certificate{pair}}
	if f.CA == "" {
		return c, nil
	}
	c.ClientAuth = f.clientAuth()
	c.ClientCAs, err = loadCA(f.CA)
	return c, err
}

// clientAuth is what a server asks of clients.
func (f *TLSFiles) clientAuth() tls.ClientAuthType {
	switch {
	case f.CA == "":
		return tls.NoClientCert
	case f.RequireClient:
		return tls.RequireAndVerifyClientCert
	}
	return tls.VerifyClientCertIfGiven
}

func (f *TLSFiles) loadClient() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: f.ServerName}
	if f.Cert != "" {
		pair, err := f.loadPair()
		if err != nil {
			return nil, err
		}
		// Given like this it is sent whoever signed it: the server says what is wrong with it. One in Certificates that the
		// server cannot check would be left out silently.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	if f.CA == "" {
		return c, nil
	}
	var err error
	c.RootCAs, err = loadCA(f.CA)
	return c, err
}

func (f *TLSFiles) loadPair() (tls.Certificate, error) {
	cert, err := os.ReadFile(f.Cert)
	if err != nil {
		return tls.Certificate{}, tlsError(f.Cert, err)
	}
	key, err := f.readKey()
	if err != nil {
		return tls.Certificate{}, tlsError(f.Key, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, tlsError(f.Cert+" "+f.Key, err)
	}
	return pair, nil
}

func (f *TLSFiles) readKey() ([]byte, error) {
	file, err := os.Open(f.Key)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if open, err := readByOthers(file); err == nil && open {
		logger(f.Logger).Warn("others than its owner may read this key", "file", f.Key, "do", "chmod 600 "+f.Key)
	}
	return io.ReadAll(file)
}

func loadCA(file string) (*x509.CertPool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, tlsError(file, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, tlsError(file, errors.New("there is no certificate in it"))
	}
	return pool, nil
}

func tlsError(file string, err error) error {
	return &Error{Op: "tls", Key: file, Code: wire.CodeInvalid, Err: err}
}

// reloaded is a configuration that is loaded from files, and again when they have changed.
type reloaded struct {
	mu      sync.Mutex // protects the fields below; not held while files are read
	good    *tls.Config
	of      []os.FileInfo // what the files were before they were last read
	failure string        // of the last reading; "" if it went well
	looked  time.Time
	looking bool // somebody is; the others take what there is
}

// get returns the last configuration that load could make. Only while there is none, it returns an error.
func (r *reloaded) get(log *slog.Logger, files []string, load func() (*tls.Config, error)) (*tls.Config, error) {
	r.mu.Lock()
	first, now := r.good == nil, time.Now()
	if !first && (r.looking || now.Sub(r.looked) < lookEvery) {
		defer r.mu.Unlock()
		return r.good, nil
	}
	of, failure := r.of, r.failure
	r.looked, r.looking = now, true
	r.mu.Unlock()

	is := stamps(files) // before they are read: what changes meanwhile is seen next time
	var c *tls.Config
	var err error
	if first || failure != "" || !unchanged(of, is) {
		c, err = load()
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.looking, r.of, r.failure = false, is, ""
	switch {
	case err != nil && r.good == nil:
		return nil, err
	case err != nil:
		r.failure = err.Error()
		if r.failure != failure {
			logger(log).Error("changed TLS files cannot be used, the old ones stay", "err", err)
		}
	case c != nil:
		r.good = c
		if !first {
			logger(log).Info("changed TLS files taken up", "files", files)
		}
	}
	return r.good, nil
}

// stamps has nil for a file that is not there.
func stamps(files []string) []os.FileInfo {
	is := make([]os.FileInfo, len(files))
	for i, name := range files {
		if s, err := os.Stat(name); err == nil {
			is[i] = s
		}
	}
	return is
}

func unchanged(a, b []os.FileInfo) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] == nil || b[i] == nil || !os.SameFile(a[i], b[i]) || a[i].Size() != b[i].Size() || !a[i].ModTime().Equal(b[i].ModTime()) {
			return false
		}
	}
	return true
}
