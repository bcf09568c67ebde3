package etcdlog_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// journal is a log to which several goroutines write.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(b)
}

// String returns the bytes written since the last call of String.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.b.Reset()
	return j.b.String()
}

// TestLogLevels checks the log levels of changes of the leader: an orderly handover is not logged
// as a warning; a replaced leader, and the end of a leader's process, are warnings, but not errors
// of the store.
func TestLogLevels(t *testing.T) {
	members := etcd(t)
	var log journal
	o := etcdlog.Options{Root: newRoot(), FailureTimeout: 5 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	leads := make(chan *store.Memory, 100)
	begin := func() (end func()) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		r := &etcdlog.Replica{Client: client(t, members), Options: o, Listener: listen(t), OnLead: func(m *store.Memory) {
			if m != nil {
				leads <- m
			}
		}}
		go func() { ended <- r.Run(ctx) }()
		return func() {
			stop()
			require.NoError(t, <-ended)
		}
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
	said = log.String()
	require.Contains(t, said, "level=WARN")
	require.Contains(t, said, etcdlog.ErrReplaced.Error())
	require.NotContains(t, said, "level=ERROR")
}
