package store

import (
	"crypto/x509"

	"github.com/muster-pg/muster/wire"
)

// What the handshake uses.
var (
	NewNonce            = newNonce
	Proof               = proof
	Proves              = proves
	MatchSecret         = matchSecret
	Binding             = binding
	CheckSecret         = checkSecret
	CheckAccess         = checkAccess
	RightsOf            = rightsOf
	VerifiedCertificate = verifiedCertificate
)

// RightsOfCertificate is what the holder of cert may do; ok if that is anything.
func RightsOfCertificate(accesses []Access, cert *x509.Certificate) (r Rights, ok bool) {
	matched := matchCertificate(accesses, cert)
	return rightsOf(accesses, matched), len(matched) > 0
}

// The labels of proofs.
const (
	ProofClient = proofClient
	ProofServer = proofServer
)

// Rights are what a peer may do.
type Rights = rights

// Known reports whether the table of operations has a right for op other than the right to everything.
func Known(op uint8) bool { return wire.Op(op).Right() != wire.NeedAll }

// Refuse is what its request is refused with.
var Refuse = rights.refuse
