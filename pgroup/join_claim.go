package pgroup

import (
	"crypto/rand"
	"sync"

	"github.com/muster-pg/muster/store"
)

// A rank that does not learn the result of its join may be a member at the store. When this process
// tries again, the store must not confuse it with another process that wants the same rank: so the
// next try has the same claim (a secret token), with a higher count.

// unknownClaims are the claims of this process whose results are unknown.
var unknownClaims struct {
	mu sync.Mutex // protects by
	by map[claimKey]store.Claim
}

// maxUnknownClaims bounds unknownClaims. Beyond it all are dropped: retries of those ranks get
// ErrConflict until their old sessions have ended.
const maxUnknownClaims = 4096

// claimKey is the rank of a group that a claim is for.
type claimKey struct {
	name, run string
	rank      int
	from      uint64
}

func (a *joinRequest) key() claimKey { return claimKey{a.name, a.run, a.rank, a.from} }

// claimOf returns the claim for the next join: that of the last one if its result is unknown, or a
// new one.
func claimOf(a *joinRequest) store.Claim {
	unknownClaims.mu.Lock()
	c, ok := unknownClaims.by[a.key()]
	delete(unknownClaims.by, a.key())
	unknownClaims.mu.Unlock()
	if !ok {
		c.Token = make([]byte, 16)
		_, _ = rand.Read(c.Token) // never fails
	}
	c.Try++
	return c
}

// keepClaim keeps the claim of a join whose result is unknown, for the next try.
func (a *joinRequest) keepClaim(c store.Claim) {
	unknownClaims.mu.Lock()
	defer unknownClaims.mu.Unlock()
	if unknownClaims.by == nil || len(unknownClaims.by) >= maxUnknownClaims {
		unknownClaims.by = map[claimKey]store.Claim{}
	}
	unknownClaims.by[a.key()] = c
}
