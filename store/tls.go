package store

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
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

	mu      sync.Mutex // protects the fields below; not held while files are read
	good    *tlsPapers // the last that could be read; nil: none
	failure string     // error of the last attempt to read them; "" if it succeeded
	read    time.Time  // when they were last read
	reading bool       // a goroutine reads them; others use good
}

// tlsPapers is what the files contain.
type tlsPapers struct {
	pair *tls.Certificate // nil: there is none
	ca   *x509.CertPool   // nil: the system's
	pem  []byte           // all files
}

// reloadInterval is the least time after which the files are read again.
const reloadInterval = time.Second

// Server reads the files, and returns a configuration for tls.NewListener and tls.Server, which
// checks the files again by itself.
func (f *TLSFiles) Server() (*tls.Config, error) {
	switch {
	case f.Cert == "" || f.Key == "":
		return nil, fileError("tls", "", errors.New("a server needs a certificate and its key"))
	case f.RequireClient && f.CA == "":
		return nil, fileError("tls", "", errors.New("to require certificates of clients, it needs the CA that signs them"))
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
		return nil, fileError("tls", "", errors.New("a certificate and a key go together"))
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
func (f *TLSFiles) load() (*tlsPapers, error) {
	p := new(tlsPapers)
	if f.Cert != "" {
		cert, err := os.ReadFile(f.Cert)
		if err != nil {
			return nil, fileError("tls", f.Cert, err)
		}
		key, err := os.ReadFile(f.Key)
		if err != nil {
			return nil, fileError("tls", f.Key, err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fileError("tls", f.Cert+" "+f.Key, err)
		}
		p.pair, p.pem = &pair, slices.Concat(cert, key)
	}
	if f.CA != "" {
		ca, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fileError("tls", f.CA, err)
		}
		p.ca = x509.NewCertPool()
		if !p.ca.AppendCertsFromPEM(ca) {
			return nil, fileError("tls", f.CA, errors.New("there is no certificate in it"))
		}
		p.pem = append(p.pem, ca...)
	}
	return p, nil
}

// papers returns what the files have contained when they could last be read, and reads them again
// from time to time. It returns an error only if they could never be read.
func (f *TLSFiles) papers() (*tlsPapers, error) {
	f.mu.Lock()
	now := time.Now()
	if f.good != nil && (f.reading || now.Sub(f.read) < reloadInterval) {
		defer f.mu.Unlock()
		return f.good, nil
	}
	f.read, f.reading = now, true
	f.mu.Unlock()
	papers, err := f.load()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reading = false
	before, failure := f.good, f.failure
	switch {
	case err != nil && before == nil:
		return nil, err
	case err != nil:
		if f.failure = err.Error(); f.failure != failure {
			logger(f.Logger).Error("changed TLS files cannot be used: the old ones stay in use", "err", err)
		}
		return before, nil
	}
	f.good, f.failure = papers, ""
	if before != nil && bytes.Equal(before.pem, papers.pem) {
		return papers, nil
	}
	if before != nil {
		logger(f.Logger).Info("changed TLS files loaded", "cert", f.Cert, "ca", f.CA)
	}
	if key, err := os.Stat(f.Key); err == nil && readByOthers(key) {
		logger(f.Logger).Warn("other users may read this key", "file", f.Key, "do", "chmod 600 "+f.Key)
	}
	return papers, nil
}
