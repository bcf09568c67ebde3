package store_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// inState is a durable store that is served, with what changes its state.
type inState struct {
	*store.Memory
	*service
	disk *stallingFS
}

func (s *inState) fail(t *testing.T) {
	testcluster.Eventually(t, testTimeout, func() bool { return os.RemoveAll(s.Dir) == nil }, "while the store still makes files in it")
	<-s.Failed()
}

// states are the ways in which a store ends or stands still, and what each operation then returns
// in this process; nil: it is carried out, or waits.
var states = map[string]struct {
	enter func(t *testing.T, s *inState)
	is    error
}{
	"open":     {func(*testing.T, *inState) {}, nil},
	"stalled":  {func(t *testing.T, s *inState) { t.Cleanup(s.disk.stall()) }, nil},
	"stopping": {func(_ *testing.T, s *inState) { _ = s.Server.Close() }, nil},
	"closed":   {func(_ *testing.T, s *inState) { _ = s.Close() }, store.ErrClosed},
	"failed":   {func(t *testing.T, s *inState) { s.fail(t) }, store.ErrUnavailable},
	"failed and closed": {func(t *testing.T, s *inState) {
		s.fail(t)
		_ = s.Close()
	}, store.ErrUnavailable},
	"not open": {func(t *testing.T, s *inState) {
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		s.Dir = file
	}, store.ErrUnavailable},
}

// kinds are the kinds of connections, all of which the server reads and writes differently.
var kinds = map[string]func(t *testing.T, m *store.Memory) (store, peers *service){
	"loop": func(t *testing.T, m *store.Memory) (_, _ *service) {
		s := serve(t, &store.Server{Engine: m}, tcp)
		return s, s
	},
	"pipe": func(t *testing.T, m *store.Memory) (_, _ *service) {
		s := serve(t, &store.Server{Engine: m}, pipes)
		return s, s
	},
	"relay": func(t *testing.T, m *store.Memory) (_, _ *service) {
		s := serve(t, &store.Server{Engine: m}, tcp)
		return s, relay(t, s.addr, new(store.Server), tcp)
	},
	"TLS": func(t *testing.T, m *store.Memory) (_, _ *service) {
		f := newTLSFiles(t)
		s := serve(t, &store.Server{Engine: m, TLS: serverTLS(t, f.server())}, tcp)
		return s, &service{dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := s.dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return tls.Client(nc, &tls.Config{InsecureSkipVerify: true}), nil
		}}
	},
}

// requestsOfEachOp returns a request of each operation.
func requestsOfEachOp() (reqs []*wire.Request) {
	for op := wire.OpHello; op <= wire.OpStalled; op++ {
		reqs = append(reqs, &wire.Request{
			Op: op, ID: 1, Key: "k", Keys: []string{"k"}, Value: []byte("v"), TTL: time.Second, Timeout: time.Minute,
			Group: wire.Contribution{Group: "g", Run: "r", Size: 2, Generation: 1, Seq: 1, Verb: "v"},
		})
	}
	return reqs
}

// flood sends req on a connection, again and again, until the connection or ctx ends.
func (s *service) flood(ctx context.Context, req *wire.Request) {
	c, err := s.dial(ctx, "tcp", "")
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	defer func() { _ = c.Close() }()
	go func() { _, _ = io.Copy(io.Discard, c) }()
	for b := greeting(); ; b = wire.AppendRequest(nil, req) {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// TestEachOperationInEachState checks that no operation, on any kind of connection, ends the
// process of a store that ends, stands still or cannot be opened, whether the operation comes
// before, during or after that, and that each returns the error of that state in this process.
func TestEachOperationInEachState(t *testing.T) { // not parallel: its floods take all processors
	if testing.Short() {
		t.Skip("SKIPPED: -short: floods of requests, for half a minute under the race detector")
	}
	long := testcluster.Form(50*time.Millisecond, 300*time.Millisecond)
	for name, state := range states {
		for kind, connect := range kinds {
			if name == "not open" && kind == "relay" { // which connects to the store first
				continue
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				s := &inState{Memory: &store.Memory{Dir: t.TempDir()}, disk: &stallingFS{FS: journal.OS}}
				store.SetFS(s.Memory, s.disk)
				t.Cleanup(func() { _ = s.Close() })
				own, peers := connect(t, s.Memory)
				s.service = own
				if name != "not open" {
					require.NoError(t, s.Open())
				}
				var flooding sync.WaitGroup
				flood := func() {
					ctx, cancel := context.WithTimeout(t.Context(), long)
					t.Cleanup(cancel)
					for _, req := range requestsOfEachOp() {
						flooding.Go(func() { peers.flood(ctx, req) })
					}
				}
				if name != "not open" {
					flood()
				}
				state.enter(t, s)
				flood()
				flooding.Go(func() { // after a panic, Cleanup of the test's own goroutine would wait for the store's lock
					for _, req := range requestsOfEachOp() {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
						if err := s.Do(ctx, req, new(wire.Reply)); state.is != nil {
							assert.ErrorIs(t, err, state.is, req.Op)
						}
						cancel()
					}
				})
				flooding.Wait()
			})
		}
	}
}
