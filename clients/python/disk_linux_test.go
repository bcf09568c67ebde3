package python_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// TestRanksLearnThatTheDiskIsFull checks that ranks of Python and Go that wait learn why the store has
// ended.
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
}

// zeros is a reader of zeros without an end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
