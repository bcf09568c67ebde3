package main_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
)

// recoveries is the variable with the number of kills of TestRecovery.
const recoveries = "MUSTER_RECOVERIES"

// asWorker takes part in views until standard input ends, which is never. In each view it completes a
// barrier, and prints when, and then waits in another one that rank 0 does not enter.
func asWorker() int {
	ctx := context.Background()
	node, err := dataparallel.WorkerFromEnv()
	if err == nil {
		err = node.Start(ctx)
	}
	for err == nil {
		g := node.Group()
		if err = g.Barrier(ctx); err == nil {
			fmt.Println("view", node.View().Generation, node.Size(), node.Rank(), os.Getpid(), time.Now().UnixNano())
			if node.Rank() == 0 {
				<-g.Context().Done()
				err = context.Cause(g.Context())
			} else {
				err = g.Barrier(ctx)
			}
		}
		if node.Over(err) {
			_, err = node.Next(ctx)
		}
	}
	fmt.Fprintln(os.Stderr, "worker:", err)
	return 1
}

// reformed reads the output of workers up to the first line of a view after generation with 8 workers,
// and then those of all its workers.
func reformed(t *testing.T, lines *bufio.Reader, generation int) (now int, first time.Time, pids []int) {
	t.Helper()
	for len(pids) < 8 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		f := strings.Fields(line)
		var n [5]int
		for i := range n {
			n[i], err = strconv.Atoi(f[i+1])
			require.NoError(t, err, line)
		}
		switch {
		case n[0] <= generation || n[1] != 8:
			continue
		case n[0] > now:
			now, pids, first = n[0], nil, time.Time{}
		case n[0] < now:
			continue
		}
		if at := time.Unix(0, int64(n[4])); first.IsZero() || at.Before(first) {
			first = at
		}
		pids = append(pids, n[3])
	}
	return now, first, pids
}

// TestRecovery kills random workers of a job with 8 workers and 2 spares, and measures the time to
// the first barrier of the view that follows. MUSTER_RECOVERIES is the number of kills. In the long
// form p99 must be below a second.
func TestRecovery(t *testing.T) {
	kills := testcluster.Form(2, 200)
	if n, err := strconv.Atoi(os.Getenv(recoveries)); err == nil {
		kills = n
	}
	if !testcluster.Soak() {
		t.Parallel()
	}
	p := start(t, "run", "--elastic", "2:8", "--spares", "2", "--max-restarts", "1000000", "--no-prefix", "--env", role+"="+roleWorker, "--", self(t))
	stop := p.endsIn(2 * limit)
	generation, _, pids := reformed(t, p.stdout, 0)
	var times []time.Duration
	for range kills {
		stop()
		stop = p.endsIn(2 * limit)
		killed := time.Now()
		require.NoError(t, syscall.Kill(pids[rand.IntN(len(pids))], syscall.SIGKILL))
		var first time.Time
		generation, first, pids = reformed(t, p.stdout, generation)
		times = append(times, first.Sub(killed))
	}
	stop()
	slices.Sort(times)
	p99 := times[max(0, len(times)*99/100-1)]
	t.Logf("%d of %d recoveries: p50 %v, p99 %v, most %v", len(times), kills, times[len(times)/2].Round(time.Millisecond), p99.Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
	if testcluster.Soak() {
		require.Less(t, p99, time.Second)
	}
	p.signal(t, syscall.SIGTERM)
	require.Equal(t, 143, p.wait(t).code)
}
