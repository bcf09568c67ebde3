package journal_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/internal/durable/logtest"
	"github.com/muster-pg/muster/internal/journal"
)

// home is a directory with a log.
type home struct{ dir string }

func (h home) Open(t *testing.T, segment uint64) (r durable.Log, entries [][]byte) {
	t.Helper()
	j, err := journal.Open(h.dir, 1, segment, func(b []byte) error {
		entries = append(entries, bytes.Clone(b))
		return nil
	}, nil)
	require.NoError(t, err)
	return j, entries
}

func (h home) Crash(_ *testing.T, r durable.Log) { r.Fail(journal.ErrClosed) }

func TestContract(t *testing.T) {
	logtest.Run(t, func(t *testing.T) logtest.Medium {
		dir := t.TempDir()
		require.NoError(t, journal.Create(dir, 1, logtest.First, nil))
		return home{dir}
	})
}
