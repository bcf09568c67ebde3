package etcdlog_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// TestLogLevels checks the log levels of changes of the leader: an orderly handover is not logged
// as a warning; a replaced leader, and the end of a leader's process, are warnings, but not errors
// of the store.
func TestLogLevels(t *testing.T) {
	members := etcd(t)
	var log testcluster.Log
	o := etcdlog.Options{Root: newRoot(), FailureTimeout: 5 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	leads := make(chan *store.Memory, 100)
	begin := func() (end func()) {
		return run(t, &etcdlog.Replica{Client: client(t, members), Options: o, Listener: testcluster.Listen(t), OnLead: func(m *store.Memory) {
			if m != nil {
				leads <- m
			}
		}})
	}
	one := begin()
	first := <-leads
	two := begin()
	one()
	second := <-leads
	require.NotSame(t, first, second)
	said := log.String()
	require.Contains(t, said, "handing over the leadership")
	require.NotContains(t, said, "level=WARN")
	require.NotContains(t, said, "level=ERROR")

	_, err := client(t, members).Delete(t.Context(), o.Root+"leader")
	require.NoError(t, err)
	<-second.Failed()
	<-leads
	two()
	said = strings.TrimPrefix(log.String(), said)
	require.Contains(t, said, "level=WARN")
	require.Contains(t, said, etcdlog.ErrReplaced.Error())
	require.NotContains(t, said, "level=ERROR")
}
