package membership_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
)

// children are the roles of the test binary when it does not run tests: a worker.
var children = testcluster.Children{"worker": childWorker}

// childWorker gets its id, the number of workers of a view, and the address of the store. It
// reports in the store the generation and the rank of each view, and that it was evicted, and has
// rejoined.
func childWorker(ctx context.Context, arg string) error {
	var id, addr string
	var least, most int
	if _, err := fmt.Sscan(arg, &id, &least, &most, &addr); err != nil {
		return err
	}
	s, err := store.Dial(ctx, addr, nil)
	if err != nil {
		return err
	}
	for life := 1; ; life++ {
		c := worker(id, least, most)
		c.TTL = 3 * time.Second
		m, err := membership.Join(ctx, s, c)
		if err != nil {
			return err
		}
		for {
			v, err := m.Next(ctx)
			if errors.Is(err, membership.ErrEvicted) {
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

// process starts a worker in a separate process.
func process(t *testing.T, addr, id string, least, most int) *launch.Process {
	t.Helper()
	return testcluster.Start(t, "worker", fmt.Sprintln(id, least, most, addr))
}
