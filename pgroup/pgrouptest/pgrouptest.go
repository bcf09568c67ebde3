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
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// Run runs f on n ranks in this process, one goroutine each, as subtests "rank=0" and so on. A rank
// that fails or panics aborts the group with its message. A rank that does not return within 2 s of
// that, or 5 s before the test binary's timeout, fails with the stacks of the goroutines that run
// f. It is not waited for, as a goroutine cannot be ended.
func Run(t *testing.T, n int, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	meet := store.New(new(store.Memory))
	defer func() { _ = meet.Close() }()
	hung, ended := context.WithCancel(t.Context())
	defer ended()
	if at, ok := t.Deadline(); ok {
		defer time.AfterFunc(time.Until(at)-reportMargin, ended).Stop()
	}
	failed := sync.OnceFunc(func() { time.AfterFunc(returnTimeout, ended) })
	var ranks sync.WaitGroup
	for rank := range n {
		ranks.Go(func() {
			t.Run(fmt.Sprintf("rank=%d", rank), func(t *testing.T) {
				g, err := pgroup.Create(t.Context(), pgroup.Config{
					Name: t.Name()[:len(t.Name())-len(fmt.Sprintf("/rank=%d", rank))], Rank: rank, Size: n, Store: meet, Timeout: opTimeout(t),
				})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = g.Close() }()
				done := make(chan struct{})
				go func() {
					defer close(done)
					runRank(t, g, f, failed, func() bool { return hung.Err() != nil })
				}()
				select {
				case <-done:
				case <-hung.Done():
					t.Errorf("this rank has not returned; the goroutines of all ranks that have not:\n%s", rankStacks())
				}
			})
		})
	}
	ranks.Wait()
}

// returnTimeout is how long the other ranks have to return after one has failed.
const returnTimeout = 2 * time.Second

// rankStacks returns the stacks of the goroutines that run a rank.
func rankStacks() []byte {
	all := make([]byte, 1<<20)
	var of [][]byte
	for stack := range bytes.SplitSeq(all[:runtime.Stack(all, true)], []byte("\n\n")) {
		if bytes.Contains(stack, []byte("pgrouptest.runRank(")) {
			of = append(of, stack)
		}
	}
	return bytes.Join(of, []byte("\n\n"))
}

// Procs is Job{N: n}.Run.
func Procs(t *testing.T, n int, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	Job{N: n}.Run(t, f)
}

// runRank runs f as one rank. However f fails, failed is called and the group is aborted. given
// reports that the test no longer waits for the rank.
func runRank(t *testing.T, g *pgroup.Group, f func(t *testing.T, g *pgroup.Group), failed func(), given func() bool) {
	defer func() { // even when f ends its goroutine, as t.Fatal does
		p := recover()
		if given() { // t has ended without it: it must no longer be used
			return
		}
		if p != nil {
			t.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if t.Failed() {
			failed()
			g.Abort(errors.New("its test failed"))
		}
	}()
	f(t, g)
}

// reportMargin is how long before the timeout of the test binary a test ends by itself, to report
// why.
const reportMargin = 5 * time.Second

// opTimeout returns the timeout of an operation without a deadline: at most a minute, and less if
// the test binary ends before.
func opTimeout(t *testing.T) time.Duration {
	const most = time.Minute
	at, ok := t.Deadline()
	if !ok {
		return most
	}
	return max(min(most, time.Until(at)-reportMargin), time.Second)
}
