package python_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// TestRanksLearnThatTheDiskIsFull checks that ranks of Python and Go learn why the store has ended:
// those that wait at once, and those that call it later at their deadlines, since a durable store may
// come back.
func TestRanksLearnThatTheDiskIsFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("muster-test", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skip("SKIPPED: a file system of limited size needs root:", err)
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	addr := testcluster.Serve(t, &store.Server{Engine: &store.Memory{Dir: filepath.Join(dir, "store")}})
	m := create(t, 2, addr, nil, pgroup.Config{})
	s, err := store.Dial(bounded(t), addr, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	fill, err := os.Create(filepath.Join(dir, "fill"))
	require.NoError(t, err)
	defer fill.Close()
	_, err = io.Copy(fill, zeros{})
	require.ErrorIs(t, err, unix.ENOSPC)

	const why = "no space left on the store's disk"
	received := make(chan error, 1)
	go func() {
		_, err := pgroup.Recv[int](bounded(t), m.gs[0], 1)
		received <- err
	}()
	errs := m.outcomes(func(int) error {
		ctx := bounded(t)
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			now, err := s.Status(ctx, "")
			require.NoError(t, err)
			require.Len(t, now.Groups, 1)
			require.NotEmpty(t, now.Groups[0].Records, "rank 1 waits in the barrier")
			require.NotEmpty(t, now.Groups[0].Ranks[0].Waits, "rank 0 waits for a message")
		}, time.Minute, time.Millisecond)
		var err error
		for value := make([]byte, 1<<20); err == nil; {
			err = s.Set(ctx, "k", value, nil)
		}
		return err
	}, func(_ int, p *rank) error {
		_, err := p.do("group", "barrier")
		return err
	})
	require.ErrorContains(t, errs[0], why)
	require.ErrorContains(t, errs[1], why)
	require.ErrorContains(t, <-received, why)

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	errs = m.outcomes(func(r int) error {
		return m.gs[r].Barrier(ctx)
	}, func(_ int, p *rank) error {
		_, err := p.do("group", "barrier", kw{"timeout": 0.1})
		return err
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "timed out: no answer from the store")
		require.ErrorContains(t, err, why)
	}
}

// zeros is a reader of zeros without an end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
