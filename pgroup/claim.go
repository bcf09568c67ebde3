package pgroup

import (
	"crypto/rand"
	"sync"

	"github.com/muster-pg/muster/store"
)

// A rank that does not learn the outcome of its Join may hold membership at the store. When this process tries again, the
// store must tell it from another process that wants the same rank: so the next try has the same claim.

// unsettled are the claims of this process whose outcome is not known.
var unsettled struct {
	mu sync.Mutex // protects by
	by map[claimKey]store.Claim
}

// mostUnsettled bounds unsettled. Beyond it all are dropped: the retries of those ranks get ErrConflict until their old
// sessions have ended.
const mostUnsettled = 4096

// claimKey is the rank of a group that a claim is for.
type claimKey struct {
	name, run string
	rank      int
	from      uint64
}

func (a *admission) key() claimKey { return claimKey{a.name, a.run, a.rank, a.from} }

// claimOf is the claim of the next Join: that of the last one, if its outcome is not known, or a new one.
func claimOf(a *admission) store.Claim {
	unsettled.mu.Lock()
	c, ok := unsettled.by[a.key()]
	delete(unsettled.by, a.key())
	unsettled.mu.Unlock()
	if !ok {
		c.Token = make([]byte, 16)
		_, _ = rand.Read(c.Token) // never fails
	}
	c.Try++
	return c
}

// keep keeps the claim of a Join whose outcome is not known, for the next try.
func (a *admission) keep(c store.Claim) {
	unsettled.mu.Lock()
	defer unsettled.mu.Unlock()
	if unsettled.by == nil || len(unsettled.by) >= mostUnsettled {
		unsettled.by = map[claimKey]store.Claim{}
	}
	unsettled.by[a.key()] = c
}
