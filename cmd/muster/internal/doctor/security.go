package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
	"time"
)

const soonOver = 7 * 24 * time.Hour

// security checks the certificates of the group.
func (d *Doctor) security(_ context.Context, p *process) []Finding {
	if p.config == nil || p.config.TLS == nil {
		return nil
	}
	t := p.config.TLS
	_, err := t.Client()
	if err == nil && p.hosting() {
		_, err = t.Server()
	}
	if err != nil {
		return []Finding{problem(strings.TrimPrefix(err.Error(), "store: "), "\"muster certs tls\" makes certificates that fit; rank 0 needs one with its key")}
	}
	if t.Cert == "" {
		return []Finding{ok("TLS, without a certificate of this rank's own")}
	}
	return []Finding{d.validity(t.Cert)}
}

// validity checks the validity period of a certificate against this host's clock.
func (d *Doctor) validity(file string) Finding {
	b, err := os.ReadFile(file)
	block, _ := pem.Decode(b)
	if err != nil || block == nil {
		return problem(file+" has no certificate", "let MUSTER_TLS_CERT be a PEM file with one")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return problem(fmt.Sprintf("%s has no certificate: %v", file, err), "let MUSTER_TLS_CERT be a PEM file with one")
	}
	return d.period(c, "the certificate in "+file, "TLS, with the certificate in %s", file)
}

// period checks the validity period of a certificate, which is called what, against this host's
// clock. If it is valid, the finding is the formatted text.
func (d *Doctor) period(c *x509.Certificate, what, valid string, args ...any) Finding {
	switch now := d.System.Now(); {
	case now.Before(c.NotBefore):
		return problem(fmt.Sprintf("%s begins only at %s, by this host's clock", what, c.NotBefore.Format(time.RFC3339)), "is the clock right?")
	case now.After(c.NotAfter):
		return problem(fmt.Sprintf("%s ended at %s", what, c.NotAfter.Format(time.RFC3339)), "make a new one: it is read again without a restart")
	case now.Add(soonOver).After(c.NotAfter):
		return warning(fmt.Sprintf("%s ends at %s", what, c.NotAfter.Format(time.RFC3339)), "make a new one in time: it is read again without a restart")
	}
	return ok(valid, args...)
}
