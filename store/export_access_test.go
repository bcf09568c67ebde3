package store

import (
	"crypto/x509"

	"github.com/muster-pg/muster/wire"
)

// Functions of the handshake.
var (
	NewNonce            = newNonce
	Proof               = proof
	Proves              = proves
	CheckAccess         = checkAccess
	RightsOf            = rightsOf
	VerifiedCertificate = verifiedCertificate
)

// RightsOfCertificate returns the rights of the holder of cert; ok reports whether there are any.
func RightsOfCertificate(accesses []Access, cert *x509.Certificate) (r Rights, ok bool) {
	matched := matchCertificate(accesses, cert)
	return rightsOf(accesses, matched), len(matched) > 0
}

// The labels of proofs.
const (
	ProofClient = proofClient
	ProofServer = proofServer
)

// Rights are the rights of a peer.
type Rights = rights

// Known reports whether the table of operations has a right for op other than the right to
// everything.
func Known(op uint8) bool { return wire.Op(op).Right() != wire.NeedAll }

// Refuse returns why a request is refused, or "" if it is allowed.
var Refuse = rights.refuse
