package store

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
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

	mu       sync.Mutex    // protects the fields below; not held while files are read
	good     *tlsPapers    // the last that could be read; nil: none
	stats    []os.FileInfo // stats of the files before they were last read
	failure  string        // error of the last attempt to read them; "" if it succeeded
	checked  time.Time
	checking bool // a goroutine checks; others use good
}

// tlsPapers is what the files contain.
type tlsPapers struct {
	pair *tls.Certificate // nil: there is none
	ca   *x509.CertPool   // nil: the system's
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
	c, err := f.serverConfig()
	if err != nil {
		return nil, err
	}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.serverConfig() }
	return c, nil
}

func (f *TLSFiles) serverConfig() (*tls.Config, error) {
	papers, err := f.papers()
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true, // a ticket would outlive the CA that verified its certificate
		Certificates:           []tls.Certificate{*papers.pair},
		ClientCAs:              papers.ca,
	}
	switch {
	case f.RequireClient:
		c.ClientAuth = tls.RequireAndVerifyClientCert
	case f.CA != "":
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c, nil
}

// Client reads the files, again if they have changed, and returns the configuration of one dial:
// call it for each one, because a client's configuration cannot replace its CAs. The result belongs
// to the caller, who sets its ServerName if f has none. Only the first call can fail.
func (f *TLSFiles) Client() (*tls.Config, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, tlsError("", errors.New("a certificate and a key go together"))
	}
	papers, err := f.papers()
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: f.ServerName, RootCAs: papers.ca}
	if papers.pair != nil {
		// The certificate is sent whichever CA signed it, so that the server can say what is wrong
		// with it. One in Certificates would be left out silently if the server does not name its
		// CA.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return papers.pair, nil }
	}
	return c, nil
}

// load reads the files.
func (f *TLSFiles) load() (p *tlsPapers, err error) {
	p = new(tlsPapers)
	if f.Cert != "" {
		if p.pair, err = f.loadPair(); err != nil {
			return nil, err
		}
	}
	if f.CA != "" {
		if p.ca, err = loadCA(f.CA); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (f *TLSFiles) loadPair() (*tls.Certificate, error) {
	cert, err := os.ReadFile(f.Cert)
	if err != nil {
		return nil, tlsError(f.Cert, err)
	}
	key, err := f.readKey()
	if err != nil {
		return nil, tlsError(f.Key, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, tlsError(f.Cert+" "+f.Key, err)
	}
	return &pair, nil
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

// papers returns what the files have contained when they could last be read, and reads them again if
// they have changed. It returns an error only if they could never be read.
func (f *TLSFiles) papers() (*tlsPapers, error) {
	f.mu.Lock()
	first, now := f.good == nil, time.Now()
	if !first && (f.checking || now.Sub(f.checked) < reloadInterval) {
		defer f.mu.Unlock()
		return f.good, nil
	}
	of, failure := f.stats, f.failure
	f.checked, f.checking = now, true
	f.mu.Unlock()

	is := f.statFiles() // before reading, so that a change during it is detected next time
	var papers *tlsPapers
	var err error
	if first || failure != "" || !unchanged(of, is) {
		papers, err = f.load()
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	f.checking, f.stats, f.failure = false, is, ""
	switch {
	case err != nil && f.good == nil:
		return nil, err
	case err != nil:
		f.failure = err.Error()
		if f.failure != failure {
			logger(f.Logger).Error("changed TLS files cannot be used: the old ones stay in use", "err", err)
		}
	case papers != nil:
		f.good = papers
		if !first {
			logger(f.Logger).Info("changed TLS files loaded", "cert", f.Cert, "ca", f.CA)
		}
	}
	return f.good, nil
}

// statFiles returns the FileInfo of each file, nil for one that does not exist.
func (f *TLSFiles) statFiles() (is []os.FileInfo) {
	for _, name := range [...]string{f.Cert, f.Key, f.CA} {
		i, err := os.Stat(name)
		if err != nil {
			i = nil
		}
		is = append(is, i)
	}
	return is
}

// unchanged reports whether two results of statFiles are of the same contents.
func unchanged(a, b []os.FileInfo) bool {
	return slices.EqualFunc(a, b, func(a, b os.FileInfo) bool {
		if a == nil || b == nil {
			return a == nil && b == nil
		}
		return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
	})
}
