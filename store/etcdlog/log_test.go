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

// journal is a log that several goroutines write.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(b)
}

// String is what was written since String was last called.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.b.Reset()
	return j.b.String()
}

// TestLogLevels: a leader that hands over is no news; one that was replaced, and one whose process has ended, is a warning. Neither is an
// error of the store's.
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
