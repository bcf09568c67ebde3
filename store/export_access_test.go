package store

import "github.com/muster-pg/muster/wire"

// Functions of access.go.
var (
	CheckAccess = checkAccess
	RightsOf    = rightsOf
)

// Rights are the rights of a peer.
type Rights = rights

// Known reports whether the table of operations has a right for op other than the right to
// everything.
func Known(op uint8) bool { return wire.Op(op).Right() != wire.NeedAll }

// Refuse returns why a request is refused, or "" if it is allowed.
var Refuse = rights.refuse
