package etcdlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/internal/durable/logtest"
	"github.com/muster-pg/muster/store/etcdlog"
)

// direct is a memTransport without faults.
type direct struct{}

func (direct) Call(_ context.Context, do func()) error { do(); return nil }

func (direct) Deliver(ctx context.Context) error { return ctx.Err() }

// errCut is the error of a request whose answer was lost.
var errCut = status.Error(codes.Unavailable, "cut by the test")

// faultyEtcd is a logtest.Store.
type faultyEtcd struct{ etcd *memEtcd }

// faultyWay injects Faults into requests.
type faultyWay struct {
	direct
	f *logtest.Faults
}

// Call implements memTransport.
func (w faultyWay) Call(_ context.Context, do func()) error {
	err := w.f.Step(func() error { do(); return nil })
	if errors.Is(err, logtest.ErrFault) { // the client repeats the request
		return errCut
	}
	return err
}

// Open implements logtest.Store.
func (s faultyEtcd) Open(t *testing.T, f *logtest.Faults) (*durable.Disk, *core.Machine, error) {
	o := &etcdlog.Options{MaxValueBytes: 1000, FailureTimeout: 100 * time.Millisecond}
	// This is as if that leader had been silent.
	if _, err := s.etcd.Client(direct{}).Delete(bounded(t), "muster/leader"); err != nil {
		return nil, nil, err
	}
	l, err := etcdlog.Lead(bounded(t), s.etcd.Client(faultyWay{f: f}), "127.0.0.1:1", o)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Open(core.Limits{}, &durable.Options{})
}

// TestLogFaults runs the contract of all durable stores over an etcd in memory.
func TestLogFaults(t *testing.T) {
	seeds := 16
	if testing.Short() {
		seeds = 4
	}
	logtest.RunFaults(t, seeds, func(*testing.T) logtest.Store { return faultyEtcd{newMemEtcd()} })
}
