package etcdlog_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// TestTakeover checks that the next leader has all changes that the last one acknowledged, also
// from a checkpoint.
func TestTakeover(t *testing.T) {
	c, o := client(t, etcd(t)), &etcdlog.Options{Root: newRoot(), MaxValueBytes: 1000}
	for term := range 5 {
		m := lead(t, c, o)
		s := store.New(m)
		for i := range term {
			v, err := s.Get(t.Context(), fmt.Sprint("key-", i))
			require.NoError(t, err, "term %d", term)
			require.Len(t, v, 10_000)
		}
		n, err := s.Add(t.Context(), "terms", 1)
		require.NoError(t, err)
		require.EqualValues(t, term+1, n)
		require.NoError(t, s.Set(t.Context(), fmt.Sprint("key-", term), make([]byte, 10_000), nil))
		if term%2 == 1 {
			_, err = s.Backup(t.Context(), io.Discard) // it makes a checkpoint
			require.NoError(t, err)
		}
		require.NoError(t, m.Close())
	}
}

// TestReplacedLeader checks that a leader that another process has replaced acknowledges nothing,
// and answers no read, even if only the request itself makes it contact etcd.
func TestReplacedLeader(t *testing.T) {
	c, o := client(t, etcd(t)), &etcdlog.Options{Root: newRoot(), FailureTimeout: time.Hour}
	before := lead(t, c, o)
	s := store.New(before)
	require.NoError(t, s.Set(t.Context(), "key", []byte("old"), nil))
	_, err := c.Delete(t.Context(), o.Root+"leader")
	require.NoError(t, err)
	after := lead(t, c, o)
	require.NoError(t, store.New(after).Set(t.Context(), "key", []byte("new"), nil))
	_, err = s.Get(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, etcdlog.ErrReplaced.Error())
	<-before.Failed()
	v, err := store.New(after).Get(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, "new", string(v))
}

// TestWatchAcrossTakeover checks that a watch is resumed at a leader that has started from a
// checkpoint, although the checkpoint is newer than the watch's revision.
func TestWatchAcrossTakeover(t *testing.T) {
	c, o := client(t, etcd(t)), &etcdlog.Options{Root: newRoot()}
	m := lead(t, c, o)
	s := store.New(m)
	seen, err := s.Revision(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Set(t.Context(), "set", []byte("value"), nil))
	_, err = s.Delete(t.Context(), "set")
	require.NoError(t, err)
	require.NoError(t, s.Set(t.Context(), "other", nil, nil))
	_, err = s.Backup(t.Context(), io.Discard) // it makes a checkpoint
	require.NoError(t, err)
	require.NoError(t, m.Close())
	s = store.New(lead(t, c, o))
	require.NoError(t, s.Set(t.Context(), "later", nil, nil))
	var brought []string
	for e, err := range s.Watch(bounded(t), "", seen) {
		require.NoError(t, err)
		if brought = append(brought, fmt.Sprintf("%s %q %v", e.Key, e.Value, e.Deleted)); len(brought) == 4 {
			break
		}
	}
	require.Equal(t, []string{`set "value" false`, `set "" true`, `other "" false`, `later "" false`}, brought)
}
