// Package certs creates the certificates for TLS between the machines of one owner, as PEM files: a
// certificate authority, a certificate for the server, and one for each kind of client.
//
//	made, err := certs.Make("tls", certs.Options{
//		Hosts: []string{"node7", "10.0.0.7"},
//		Names: []string{"trainer"},
//	})
//
// made.Files are ca.pem, ca-key.pem, server.pem, server-key.pem, trainer.pem and trainer-key.pem.
// Another call with the same directory signs more certificates with the same authority. No file is
// ever overwritten.
package certs

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Options are the options of Make. For a new authority, zero fields have defaults. For an existing
// one, only the certificates that the fields name are made.
type Options struct {
	// of the server: DNS names and IP addresses; default localhost, 127.0.0.1, ::1 and this host's
	// name
	Hosts []string
	Names []string // of clients, each with its own certificate; default client
	Days  int      // validity of the certificates; default 365
}

const (
	defaultDays = 365
	maxDays     = 36500
	caYears     = 10        // minimum validity of an authority
	skew        = time.Hour // how much the clock of a peer may be slow
)

// Check returns an error that says which option is invalid, or nil.
func (o Options) Check() error {
	if o.Days < 0 || o.Days > maxDays {
		return fmt.Errorf("%d days: it is a number from 1 to %d", o.Days, maxDays)
	}
	for _, h := range o.Hosts {
		if err := checkHost(h); err != nil {
			return err
		}
	}
	for i, n := range o.Names {
		if err := checkName(n); err != nil {
			return err
		}
		if slices.Contains(o.Names[:i], n) {
			return fmt.Errorf("the name %q is there twice", n)
		}
	}
	return nil
}

var (
	dnsName = regexp.MustCompile(`^(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.|$))+$`)
	// ends no DNS name, but an IP address with a mistake
	numbers = regexp.MustCompile(`(^|\.)[0-9]+$`)
	// the limit of X.509, and a valid file name
	clientName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$`)
)

func checkHost(h string) error {
	if ip, err := netip.ParseAddr(h); err == nil && ip.Zone() == "" {
		return nil
	}
	if len(h) > 253 || !dnsName.MatchString(h) || numbers.MatchString(h) || strings.HasSuffix(h, ".") {
		return fmt.Errorf("the host %q is neither a DNS name nor an IP address (without port, brackets or zone)", h)
	}
	return nil
}

func checkName(n string) error {
	switch {
	case !clientName.MatchString(n):
		return fmt.Errorf("the name %q is to be 1 to 64 letters, digits and _ . @ -, and not to begin with one of the last three", n)
	case slices.Contains([]string{"ca", "server"}, strings.ToLower(n)) || strings.HasSuffix(strings.ToLower(n), "-key"):
		return fmt.Errorf("the name %q is that of another file", n)
	}
	return nil
}

// Made is the result of Make.
type Made struct {
	Files []string  // names in the directory
	Until time.Time // end of the certificates' validity, which is not after that of the authority
}

// Make makes the files that o asks for in dir. If it cannot make all of them, it makes none.
func Make(dir string, o Options) (Made, error) {
	if err := o.Check(); err != nil {
		return Made{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Made{}, err
	}
	o.Days = cmp.Or(o.Days, defaultDays)
	b := batch{dir: dir, from: time.Now().Add(-skew).Truncate(time.Second)}
	ca, isNew, err := b.authority(o)
	if err != nil {
		return Made{}, err
	}
	if isNew {
		o = o.withDefaults()
	} else if len(o.Hosts)+len(o.Names) == 0 {
		return Made{}, fmt.Errorf("%s is there already: say which hosts or names it is to sign", filepath.Join(dir, "ca.pem"))
	}
	b.until = b.from.AddDate(0, 0, o.Days).Add(skew)
	if b.until.After(ca.cert.NotAfter) {
		b.until = ca.cert.NotAfter
	}
	if len(o.Hosts) > 0 {
		if _, err := b.add(&ca, "server", serverTemplate(o.Hosts)); err != nil {
			return Made{}, err
		}
	}
	for _, name := range o.Names {
		if _, err := b.add(&ca, name, clientTemplate(name)); err != nil {
			return Made{}, err
		}
	}
	files, err := b.write()
	return Made{files, b.until}, err
}

func (o Options) withDefaults() Options {
	if len(o.Hosts) == 0 {
		o.Hosts = []string{"localhost", "127.0.0.1", "::1"}
		if h, err := os.Hostname(); err == nil && checkHost(h) == nil && !slices.Contains(o.Hosts, h) {
			o.Hosts = append(o.Hosts, h)
		}
	}
	if len(o.Names) == 0 {
		o.Names = []string{"client"}
	}
	return o
}

// issuer is a certificate that can sign, and its key.
type issuer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// batch is files that are made together. Their certificates have the same validity.
type batch struct {
	dir         string
	from, until time.Time
	files       []file
}

type file struct {
	name string
	mode fs.FileMode
	data []byte
}

// authority returns the existing authority, or a new one.
func (b *batch) authority(o Options) (ca issuer, isNew bool, err error) {
	cert, certErr := os.ReadFile(filepath.Join(b.dir, "ca.pem"))
	key, keyErr := os.ReadFile(filepath.Join(b.dir, "ca-key.pem"))
	switch {
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		ca, err = b.newAuthority(o)
		return ca, true, err
	case certErr != nil || keyErr != nil:
		return issuer{}, false, fmt.Errorf("an authority is ca.pem and ca-key.pem: %w", cmp.Or(certErr, keyErr))
	}
	ca, err = readAuthority(cert, key)
	if err != nil {
		return issuer{}, false, fmt.Errorf("%s and ca-key.pem: %w", filepath.Join(b.dir, "ca.pem"), err)
	}
	return ca, false, nil
}

func readAuthority(cert, key []byte) (issuer, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return issuer{}, err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	switch {
	case !ok || !pair.Leaf.IsCA:
		return issuer{}, errors.New("this is no authority")
	case time.Now().After(pair.Leaf.NotAfter):
		return issuer{}, fmt.Errorf("it has expired, on %s", pair.Leaf.NotAfter.Format(time.DateOnly))
	}
	return issuer{pair.Leaf, signer}, nil
}

func (b *batch) newAuthority(o Options) (issuer, error) {
	b.until = b.from.AddDate(caYears, 0, 0)
	if t := b.from.AddDate(0, 0, o.Days).Add(skew); t.After(b.until) {
		b.until = t
	}
	return b.add(nil, "ca", &x509.Certificate{
		Subject:               pkix.Name{CommonName: "muster CA"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	})
}

func serverTemplate(hosts []string) *x509.Certificate {
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: "muster server"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip, err := netip.ParseAddr(h); err == nil {
			t.IPAddresses = append(t.IPAddresses, ip.Unmap().AsSlice())
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return t
}

func clientTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// add adds a key and its certificate, signed by ca, or self-signed if ca is nil.
func (b *batch) add(ca *issuer, name string, t *x509.Certificate) (issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return issuer{}, err
	}
	if ca == nil {
		ca = &issuer{t, key}
	}
	t.NotBefore, t.NotAfter = b.from, b.until
	// it chooses a random serial number
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, key.Public(), ca.key)
	if err != nil {
		return issuer{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return issuer{}, err
	}
	b.files = append(b.files,
		file{name + ".pem", 0o644, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})},
		file{name + "-key.pem", 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})})
	cert, err := x509.ParseCertificate(der)
	return issuer{cert, key}, err
}

// write writes all files, or none.
func (b *batch) write() (made []string, err error) {
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	defer func() {
		if err != nil {
			for _, name := range made {
				_ = root.Remove(name)
			}
			made = nil
		}
	}()
	// so that an error about an existing file comes before any is written
	for _, f := range b.files {
		if _, err := root.Lstat(f.name); err == nil {
			return nil, fmt.Errorf("%s is there already: move it away, or ask for another", filepath.Join(b.dir, f.name))
		}
	}
	for _, f := range b.files {
		to, err := root.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if err != nil {
			return made, fmt.Errorf("%s: %w", b.dir, err)
		}
		made = append(made, f.name)
		_, err = to.Write(f.data)
		if err := errors.Join(err, to.Sync(), to.Close()); err != nil {
			return made, fmt.Errorf("%s: %w", b.dir, err)
		}
	}
	return made, nil
}
