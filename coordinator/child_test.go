package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/coordinator"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/store"
)

// childVar makes the test binary a worker: it is its id, how many a view has, and the address of the store.
const childVar = "MUSTER_COORDINATOR_CHILD"

func runChild() bool {
	id, rest, ok := strings.Cut(os.Getenv(childVar), "|")
	if !ok {
		return false
	}
	launch.ExitWithParent()
	if err := childWorker(id, rest); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// childWorker tells the store what it hears: the generation and the rank of each view, and that it was evicted, and is back.
func childWorker(id, rest string) error {
	ctx := context.Background()
	var least, most int
	var addr string
	if _, err := fmt.Sscanf(rest, "%d|%d|%s", &least, &most, &addr); err != nil {
		return err
	}
	s, err := store.Dial(ctx, addr, nil)
	if err != nil {
		return err
	}
	for life := 1; ; life++ {
		c := worker(id, least, most)
		c.TTL = 3 * time.Second
		m, err := coordinator.Join(ctx, s, c)
		if err != nil {
			return err
		}
		for {
			v, err := m.Next(ctx)
			if errors.Is(err, coordinator.ErrEvicted) {
				break
			}
			if err != nil {
				return err
			}
			if err := s.Set(ctx, fmt.Sprintf("seen/%s/%d", id, v.Generation), fmt.Appendf(nil, "rank %d of %d in life %d", v.Rank, v.Size(), life), nil); err != nil {
				return err
			}
		}
		_ = m.Close()
	}
}

// process starts a worker that is a process, and ends with the test.
func process(t *testing.T, addr, id string, least, most int) *launch.Process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	job, err := launch.Start(t.Context(), launch.Spec{
		N: 1, Path: exe, Tether: true, Output: t.Output(), Grace: -1,
		Env: func(int) []string {
			return []string{fmt.Sprintf("%s=%s|%d|%d|%s", childVar, id, least, most, addr), "GORACE=atexit_sleep_ms=0"}
		},
		MayFail: func(int) bool { return true },
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = job.Wait() }) // the test's context has ended by then
	return job.Process(0)
}
