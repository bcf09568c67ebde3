package store

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
	RightsOfCertificate = rightsOfCertificate
	VerifiedCertificate = verifiedCertificate
)

// The labels of proofs.
const (
	ProofClient = proofClient
	ProofServer = proofServer
)

// Rights are what a peer may do.
type Rights = rights

// Known reports whether the table of needs has a line for an operation that is not one of those that need everything.
func Known(op uint8) bool { return needs[op] != needAll }

// Refuse is what its request is refused with.
var Refuse = rights.refuse
