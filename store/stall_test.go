package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	disklog "github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// stallingFS is the file system of the OS, with syncs that can be made to stall.
type stallingFS struct {
	disklog.FS
	syncs sync.RWMutex // held while syncs stall
	err   error        // of syncs; guarded by syncs
}

// fail makes syncs fail with err.
func (fs *stallingFS) fail(err error) {
	defer fs.stall()()
	fs.err = err
}

// stall makes syncs wait until resume is called.
func (fs *stallingFS) stall() (resume func()) {
	fs.syncs.Lock()
	return sync.OnceFunc(fs.syncs.Unlock)
}

func (fs *stallingFS) Open(name string) (disklog.File, error) { return fs.file(fs.FS.Open(name)) }

func (fs *stallingFS) Create(name string) (disklog.File, error) { return fs.file(fs.FS.Create(name)) }

func (fs *stallingFS) file(f disklog.File, err error) (disklog.File, error) {
	return &stallingFile{f, fs}, err
}

type stallingFile struct {
	disklog.File
	fs *stallingFS
}

func (f *stallingFile) Sync() error {
	f.fs.syncs.RLock()
	err := f.fs.err
	f.fs.syncs.RUnlock()
	if err != nil {
		return err
	}
	return f.File.Sync()
}

// stalling serves a store on a disk that can stall.
func stalling(t *testing.T, limits store.ServerLimits) (fs *stallingFS, s *service, m *store.Memory) {
	fs = &stallingFS{FS: disklog.OS}
	m = &store.Memory{Dir: t.TempDir()}
	store.SetFS(m, fs)
	require.NoError(t, m.Open())
	return fs, serve(t, &store.Server{Engine: m, Limits: limits}, tcp), m
}

// TestStatusWhileTheDiskStalls checks that old and new connections get the status while writes wait
// for the disk, that it says for how long a write has waited, and that the revision waits too.
func TestStatusWhileTheDiskStalls(t *testing.T) {
	t.Parallel()
	fs, srv, m := stalling(t, store.ServerLimits{})
	ctx := bounded(t)
	writer, looker := srv.client(t), srv.client(t)
	for _, s := range []*store.Store{writer, looker} {
		require.NoError(t, s.Set(ctx, "before", nil, nil))
	}
	st, err := looker.Status(ctx, "")
	require.NoError(t, err)
	require.Less(t, st.Server.SyncPending, time.Minute)
	resume := fs.stall()
	defer resume()
	written := start(func() error { return writer.Set(ctx, "k", []byte("v"), nil) })
	var before time.Duration
	testcluster.Eventually(t, testTimeout, func() bool {
		st, err := looker.Status(ctx, "")
		require.NoError(t, err)
		before = st.Server.SyncPending
		return before > 0
	}, "it says that the disk stalls")
	for name, s := range map[string]*store.Store{"writer": writer, "looker": looker, "newcomer": srv.client(t), "local": store.New(m)} {
		st, err := s.Status(ctx, "")
		require.NoError(t, err, name)
		require.Greater(t, st.Server.SyncPending, before, name)
		before = max(before, st.Server.SyncPending)
	}
	for name, s := range map[string]*store.Store{"looker": looker, "local": store.New(m)} {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		_, err := s.Revision(short)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded, "%s sees what a crash could undo", name)
	}
	require.Empty(t, written, "it is not acknowledged")
	resume()
	require.NoError(t, <-written)
	holds(t, looker, "k", "v")
}

// TestBackupWhileTheDiskStalls checks that a backup ends with its context, from a client and in the
// store's own process.
func TestBackupWhileTheDiskStalls(t *testing.T) {
	t.Parallel()
	fs, srv, m := stalling(t, store.ServerLimits{})
	for name, s := range map[string]*store.Store{"client": srv.client(t), "local": store.New(m)} {
		require.NoError(t, s.Set(bounded(t), "k", nil, nil))
		resume := fs.stall()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		_, err := s.Backup(ctx, new(bytes.Buffer))
		assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		assert.ErrorContains(t, err, "backup", name)
		assert.Less(t, time.Since(began), testTimeout, name)
		resume()
		cancel()
		var b bytes.Buffer
		_, err = s.Backup(bounded(t), &b)
		require.NoError(t, err, name)
		require.NotZero(t, b.Len(), name)
	}
}

// TestClientsLearnWhyTheStoreFails checks that the calls of all clients, direct or through a relay,
// end with the reason when the disk of the store fails.
func TestClientsLearnWhyTheStoreFails(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"no space left on the store's disk":  syscall.ENOSPC,
		"the store cannot write to its disk": syscall.EIO,
	} {
		for _, relayed := range []bool{false, true} {
			fs, s, _ := stalling(t, store.ServerLimits{})
			if relayed {
				s = relay(t, s.addr, new(store.Server), tcp)
			}
			writer, waiter := s.client(t), s.client(t)
			ctx := bounded(t)
			require.NoError(t, writer.Set(ctx, "k", nil, nil))
			waited := startWait(t, waiter, "absent")
			testcluster.Eventually(t, testTimeout, func() bool { return store.Calls(waiter.Engine()) > 0 }, "it waits")
			fs.fail(err)
			changed := writer.Set(ctx, "k", nil, nil)
			require.ErrorIs(t, changed, store.ErrUnknown)
			for _, err := range []error{changed, <-waited} {
				e, ok := errors.AsType[*store.Error](err)
				require.True(t, ok, err)
				require.ErrorIs(t, err, store.ErrUnavailable)
				require.Equal(t, wire.ReasonDisk, e.Reason, err)
				require.Contains(t, err.Error(), want)
			}
			soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			require.ErrorContains(t, writer.Set(soon, "k", nil, nil), want, "later calls, since a durable store may come back")
			cancel()
		}
	}
}

// TestSlowDiskFailsNoPeer checks a disk that is far behind but makes progress: requests wait, so that
// memory is bounded, the status is answered, also after requests about liveness, and all requests
// succeed in the end. The server does not suspect peers whose requests wait, and their clients do not
// suspect the server.
func TestSlowDiskFailsNoPeer(t *testing.T) {
	t.Parallel()
	const writers, each, size = 4, 20, 1 << 20
	const liveness = 2500 * time.Millisecond // half of what the disk takes
	fs, s, m := stalling(t, store.ServerLimits{LivenessTimeout: liveness})
	clients := make([]*store.Store, writers)
	for i := range clients {
		clients[i] = testcluster.Dial(t, s.addr, &store.DialOptions{LivenessTimeout: liveness})
		_, err := clients[i].Join(bounded(t), wire.Contribution{Group: fmt.Sprint(i), Size: 1}, nil)
		require.NoError(t, err)
	}
	looker := s.client(t)
	works(t, looker)
	idle := s.greeted(t)
	resume := fs.stall()
	defer func() { resume() }()
	ctx := testcluster.Within(t, 4*testTimeout)
	value := bytes.Repeat([]byte("v"), size)
	var writing sync.WaitGroup
	for i, c := range clients {
		for n := range each {
			writing.Go(func() { assert.NoError(t, c.Set(ctx, fmt.Sprint(i, "/", n), value, nil)) })
		}
	}
	testcluster.Eventually(t, testTimeout, func() bool {
		send(t, idle, wire.AppendRequest(nil, &wire.Request{Op: wire.OpPing})) // it may take longer than liveness
		return store.Overloaded(m)
	}, "much waits for the disk")
	asked := wire.AppendRequest(wire.AppendRequest(nil, &wire.Request{Op: wire.OpPing}), &wire.Request{Op: wire.OpProbe})
	send(t, idle, wire.AppendRequest(asked, &wire.Request{Op: wire.OpStatus, ID: 1}))
	for got := wire.Op(0); got != wire.OpStatus; {
		got = receive(t, idle).Op
	}
	require.NoError(t, idle.Close())
	for range 20 {
		st, err := looker.Status(ctx, "")
		require.NoError(t, err)
		require.Less(t, st.Server.Bytes, int64(64+2*writers+2)<<20)
	}
	written := make(chan struct{})
	go func() {
		writing.Wait()
		close(written)
	}()
	for pace := time.NewTicker(60 * time.Millisecond); ; { // one batch of 1 MiB per tick
		select {
		case <-pace.C:
			resume()
			resume = fs.stall()
			continue
		case <-written:
			pace.Stop()
			resume()
		}
		break
	}
	require.NotContains(t, s.String(), "peer lost")
	require.EqualValues(t, writers*each+1, m.Keys())
	st, err := clients[0].Status(bounded(t), "")
	require.NoError(t, err)
	require.Len(t, st.Groups, writers)
	for _, g := range st.Groups {
		require.EqualValues(t, 1, g.Present, g.Name)
	}
}

// TestSlowDiskFindsFrozenClient checks that a frozen client is found while each sync takes 500 ms.
func TestSlowDiskFindsFrozenClient(t *testing.T) {
	t.Parallel()
	fs, s, _ := stalling(t, store.ServerLimits{LivenessTimeout: time.Second})
	b, proxy := s.through(t)
	g, writer := teamOf(t, s.client(t), b), s.client(t)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	var writing sync.WaitGroup
	writing.Go(func() {
		for writer.Set(ctx, "k", nil, nil) == nil {
		}
	})
	proxy.Blackhole(true)
	failed := start(func() error { return g.barrier(ctx, 0, 1) })
	for len(failed) == 0 {
		resume := fs.stall()
		<-time.After(500 * time.Millisecond)
		resume()
	}
	lost(t, <-failed, 1)
	cancel()
	writing.Wait()
	proxy.Cut(testcluster.RST)
}

// TestAJoinThatTheDiskDelaysHasOneOutcome checks a join whose replies wait for the disk after the
// group has formed, until a rank of this process gives up. That rank has left the group then,
// whatever its reply says.
func TestAJoinThatTheDiskDelaysHasOneOutcome(t *testing.T) {
	fs, _, m := stalling(t, store.ServerLimits{})
	s := store.New(m)
	resume := fs.stall()
	defer resume()
	ctx := testcluster.Within(t, 50*time.Millisecond)
	join := func(ctx context.Context, rank int) <-chan error {
		return start(func() error {
			_, err := s.Join(ctx, wire.Contribution{Group: "g", Rank: rank, Size: 2}, nil)
			return err
		})
	}
	result := join(ctx, 0)
	join(t.Context(), 1)
	testcluster.Eventually(t, testTimeout, func() bool {
		now, err := s.Status(t.Context(), "")
		return err == nil && len(now.Groups) > 0 && now.Groups[0].Generation != 0 && now.Groups[0].Present == 1
	}, "the rank that has given up has left the group")
	resume()
	err := <-result
	require.ErrorIs(t, err, store.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestNoAnswerBeforeTheLogOfAStoreThatOpensLate checks a store that fails to open for the first
// connection, and opens for the next one. Neither gets a reply before the state that it shows is on
// the disk.
func TestNoAnswerBeforeTheLogOfAStoreThatOpensLate(t *testing.T) {
	fs, m := &stallingFS{FS: disklog.OS}, &store.Memory{Dir: filepath.Join(t.TempDir(), "data")}
	require.NoError(t, os.WriteFile(m.Dir, nil, 0o600))
	store.SetFS(m, fs)
	s := serve(t, &store.Server{Engine: m}, tcp)
	_, err := store.Dial(bounded(t), s.addr, nil)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.NoError(t, os.Remove(m.Dir))
	c := dial(t, s.addr)
	require.NoError(t, c.Set(bounded(t), "before", nil, nil))
	resume := fs.stall()
	defer resume()
	ctx := testcluster.Within(t, 200*time.Millisecond)
	require.ErrorIs(t, c.Set(ctx, "key", nil, nil), store.ErrUnknown)
}
