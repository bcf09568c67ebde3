package pgrouptest_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// TestBusyHostLosesNoRank runs 16 ranks that compute, with 48 threads that are always runnable, and
// that synchronize now and then. On a host of two cores each gets a core for a fraction of the
// time, and answers late; none has failed. It runs for the time in MUSTER_SOAK, or for 10 minutes
// if that is 1:
//
//	MUSTER_SOAK=1 go test ./pgroup/pgrouptest -run TestBusyHostLosesNoRank -timeout 15m -v
func TestBusyHostLosesNoRank(t *testing.T) {
	soak := os.Getenv("MUSTER_SOAK")
	if soak == "" {
		t.Skip("SKIPPED: MUSTER_SOAK is not set: to 15s, or to 1 for 10 minutes")
	}
	long, err := time.ParseDuration(soak)
	if err != nil {
		long = 10 * time.Minute
	}
	const threads = 3
	j := pgrouptest.Job{N: 16, Timeout: long + 5*time.Minute, Env: []string{"GOMAXPROCS=4"}}
	began := time.Now()
	j.Run(t, func(t *testing.T, g *pgroup.Group) {
		var sum atomic.Uint64
		stop := make(chan struct{})
		defer close(stop)
		for range threads {
			go spin(stop, &sum)
		}
		for rounds := 0; ; rounds++ {
			must(t, g.Barrier(t.Context()))
			over, err := pgroup.Broadcast(t.Context(), g, 0, time.Since(began) > long)
			must(t, err)
			if over {
				t.Logf("rank %d: %d rounds", g.Rank(), rounds)
				return
			}
			for until := sum.Load() + 200; sum.Load() < until; { // more than a second on a host this busy
				spinOnce(&sum)
			}
		}
	})
}

func spin(stop <-chan struct{}, sum *atomic.Uint64) {
	for {
		select {
		case <-stop:
			return
		default:
			spinOnce(sum)
		}
	}
}

// spinOnce computes for about a millisecond.
func spinOnce(sum *atomic.Uint64) {
	x := 1.0
	for range 500_000 {
		x = x*1.0000001 + 1e-9
	}
	if x > 0 {
		sum.Add(1)
	}
}
