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

// TLSFiles names PEM files for TLS 1.3. Changes of the files are used for handshakes from a second
// later on, without a restart; while the new files cannot be read, the old ones stay in use, and
// Logger gets an error. It may be used by many goroutines at once.
type TLSFiles struct {
	Cert, Key     string       // of this side; optional for a client
	CA            string       // CA bundle that verifies the peer; "": a server asks for no certificate, a client uses the system's CAs
	RequireClient bool         // a server refuses clients without a certificate
	ServerName    string       // name in the server's certificate, for a client; "": the dialer sets it
	Logger        *slog.Logger // nil discards

	server, client reloadedConfig
}

// reloadInterval is the least time between two checks of the files.
const reloadInterval = time.Second

// Server reads the files, and returns a configuration for tls.NewListener and tls.Server, which
// checks the files again by itself.
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
		SessionTicketsDisabled: true, // a ticket would outlive the CA that verified its certificate
		ClientAuth:             f.clientAuth(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return f.server.get(f.Logger, f.files(), f.loadServer)
		},
	}, nil
}

// Client reads the files, again if they have changed, and returns the configuration of one dial:
// call it for each one, because a client's configuration cannot replace its CAs. The result belongs
// to the caller, who sets its ServerName if f has none. Only the first call can fail.
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

// clientAuth returns which certificate a server asks of clients.
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
		// The certificate is sent whichever CA signed it, so that the server can say what is wrong
		// with it. One in Certificates would be left out silently if the server does not name its
		// CA.
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
		logger(f.Logger).Warn("other users may read this key", "file", f.Key, "do", "chmod 600 "+f.Key)
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

// reloadedConfig is a configuration that is loaded again when its files have changed.
type reloadedConfig struct {
	mu       sync.Mutex // protects the fields below; not held while files are read
	good     *tls.Config
	stats    []os.FileInfo // stats of the files before they were last read
	failure  string        // error of the last attempt to read them; "" if it succeeded
	checked  time.Time
	checking bool // a goroutine checks; others use the current configuration
}

// get returns the last configuration that load has returned. It returns an error only while there
// is none.
func (r *reloadedConfig) get(log *slog.Logger, files []string, load func() (*tls.Config, error)) (*tls.Config, error) {
	r.mu.Lock()
	first, now := r.good == nil, time.Now()
	if !first && (r.checking || now.Sub(r.checked) < reloadInterval) {
		defer r.mu.Unlock()
		return r.good, nil
	}
	of, failure := r.stats, r.failure
	r.checked, r.checking = now, true
	r.mu.Unlock()

	is := statFiles(files) // before reading, so that a change during it is detected next time
	var c *tls.Config
	var err error
	if first || failure != "" || !unchanged(of, is) {
		c, err = load()
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.checking, r.stats, r.failure = false, is, ""
	switch {
	case err != nil && r.good == nil:
		return nil, err
	case err != nil:
		r.failure = err.Error()
		if r.failure != failure {
			logger(log).Error("changed TLS files cannot be used: the old ones stay in use", "err", err)
		}
	case c != nil:
		r.good = c
		if !first {
			logger(log).Info("changed TLS files loaded", "files", files)
		}
	}
	return r.good, nil
}

// statFiles returns the FileInfo of each file, nil for one that does not exist.
func statFiles(files []string) []os.FileInfo {
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
