// Package pgrouptest runs groups under go test: n ranks in one process, or n real processes.
//
//	func TestAllGather(t *testing.T) {
//		pgrouptest.Procs(t, 4, func(t *testing.T, g *pgroup.Group) {
//			got, err := pgroup.AllGather(t.Context(), g, g.Rank())
//			...
//		})
//	}
//
// A rank that fails, panics or hangs ends the others: no test waits for a rank that will
// not come, and no process or goroutine of a rank is left when the test has ended. The store is held by the
// test, unless Job.Rank0Hosts, so that the death of any rank is one rank's death.
package pgrouptest

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// Run runs f on n ranks in this process, one goroutine each, as subtests "rank=0" and so on. A
// rank that fails or panics aborts the group, and so the others, with its message.
func Run(t *testing.T, n int, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	meet := store.New(new(store.Memory))
	defer func() { _ = meet.Close() }()
	var ranks sync.WaitGroup
	for rank := range n {
		ranks.Go(func() {
			t.Run(fmt.Sprintf("rank=%d", rank), func(t *testing.T) {
				g, err := pgroup.Create(t.Context(), pgroup.Config{
					Name: t.Name()[:len(t.Name())-len(fmt.Sprintf("/rank=%d", rank))], Rank: rank, Size: n, Store: meet, Timeout: patience(t),
				})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = g.Close() }()
				play(t, g, f, func() {})
			})
		})
	}
	ranks.Wait()
}

// Procs is Job{N: n}.Run.
func Procs(t *testing.T, n int, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	Job{N: n}.Run(t, f)
}

// play runs f as one rank. However it fails, the others hear of it, after failed has.
func play(t *testing.T, g *pgroup.Group, f func(t *testing.T, g *pgroup.Group), failed func()) {
	defer func() { // also when f ends its goroutine, as t.Fatal does
		if p := recover(); p != nil {
			t.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if t.Failed() {
			failed()
			g.Abort(errors.New("its test failed"))
		}
	}()
	f(t, g)
}

// margin is how long before the end of the test binary's time a test ends by itself, with a word on why.
const margin = 5 * time.Second

// patience is how long a verb without a deadline waits: no longer than the test binary lives, and no longer than
// somebody looks at a test that hangs.
func patience(t *testing.T) time.Duration {
	const most = time.Minute
	at, ok := t.Deadline()
	if !ok {
		return most
	}
	return max(min(most, time.Until(at)-margin), time.Second)
}
