package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// serverVar makes the test binary run as a durable server. Its value has the directory, the
// address, and the reconnect timeout after a restart.
const serverVar = "MUSTER_TEST_SERVER"

func beServer() {
	v := strings.Split(os.Getenv(serverVar), "|")
	err := func() error {
		grace, err := time.ParseDuration(v[2])
		if err != nil {
			return err
		}
		m := &store.Memory{Dir: v[0], ReconnectTimeout: grace}
		if err := m.Open(); err != nil {
			return err
		}
		l, err := store.Listen(context.Background(), v[1])
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		return (&store.Server{Engine: m}).Serve(l)
	}()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// process is a durable server in a separate process, which can be killed and started again at the
// same address.
type process struct {
	dir, addr string
	grace     time.Duration // reconnect timeout; 0 is the default
	cmd       *exec.Cmd
}

func newProcess(t *testing.T) *process { return newProcessWith(t, 0) }

func newProcessWith(t *testing.T, grace time.Duration) *process {
	t.Helper()
	p := &process{dir: t.TempDir(), addr: testcluster.Port(t), grace: grace}
	p.start(t)
	t.Cleanup(p.kill)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.CommandContext(t.Context(), os.Args[0])
	p.cmd.Env = append(os.Environ(), serverVar+"="+p.dir+"|"+p.addr+"|"+p.grace.String(), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
}

// kill sends SIGKILL, and waits for the end of the process.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *process) client(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Dial(t.Context(), p.addr, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestKillNine kills a durable server again and again while clients work. No call of a client
// fails, acknowledged changes are there, and each change was made exactly once.
func TestKillNine(t *testing.T) {
	t.Parallel()
	const kills, clients = 6, 8
	p := newProcess(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var working sync.WaitGroup
	var adds, rounds atomic.Int64
	done := make(chan struct{})
	going := func() bool {
		select {
		case <-done:
			return false
		default:
			return true
		}
	}
	for i := range clients {
		s := p.client(t)
		working.Go(func() {
			for n := int64(1); going(); n++ {
				mine, err := s.Add(ctx, fmt.Sprint("mine/", i), 1)
				if err != nil || mine != n {
					t.Errorf("client %d: add %d gave %d, %v", i, n, mine, err)
					return
				}
				if _, err := s.Add(ctx, "all", 1); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				adds.Add(1)
			}
		})
	}
	holder := p.client(t)
	lease, err := holder.Lease(ctx, 10*time.Second)
	require.NoError(t, err)
	require.NoError(t, holder.Set(ctx, "held", []byte("by lease"), &store.SetOptions{Lease: lease}))
	for rank := range 4 {
		s := p.client(t)
		working.Go(func() { gathers(ctx, t, s, rank, 4, going, &rounds) })
	}
	for range kills {
		before := adds.Load()
		testcluster.Eventually(t, testTimeout, func() bool { return adds.Load() > before+200 }, "some work between two kills")
		p.kill()
		p.start(t)
	}
	close(done)
	working.Wait()
	s := p.client(t)
	all, err := s.Add(ctx, "all", 0)
	require.NoError(t, err)
	require.Equal(t, adds.Load(), all)
	require.Greater(t, rounds.Load(), int64(kills))
	held, err := s.Get(ctx, "held")
	require.NoError(t, err)
	require.Equal(t, "by lease", string(held))
	require.NoError(t, lease.Err())
	require.NoError(t, lease.Close(ctx))
	_, err = s.Get(ctx, "held")
	require.ErrorIs(t, err, store.ErrNotFound)
	t.Logf("%d adds, %d rounds, %d kills", all, rounds.Load(), kills)
}

// TestRestartsDoNotRenewTheTimeToReconnect kills a durable server more often than the reconnect
// timeout passes. A process that died with the first server is declared lost all the same, and a
// client that reconnects each time is not.
func TestRestartsDoNotRenewTheTimeToReconnect(t *testing.T) {
	t.Parallel()
	const grace, every, most = 3 * time.Second, 2 * time.Second, 60 * time.Second
	p := newProcessWith(t, grace)
	proxy := testcluster.NewProxy(t, p.addr)
	dead, err := store.Dial(t.Context(), proxy.Addr(), nil)
	require.NoError(t, err)
	defer dead.Close()
	s := p.client(t)
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	var wg sync.WaitGroup
	var membership store.Formed
	for rank, s := range []*store.Store{s, dead} {
		wg.Go(func() {
			r, err := s.Join(ctx, wire.Contribution{Group: "g", Rank: rank, Size: 2, Label: fmt.Sprint("rank ", rank)}, nil)
			assert.NoError(t, err)
			if rank == 0 {
				membership = r
			}
		})
	}
	wg.Wait()
	over := make(chan error, 1)
	go func() { over <- s.Follow(ctx, wire.Contribution{Generation: membership.Generation}) }()
	p.kill()
	proxy.Refuse(true)
	proxy.Cut(testcluster.RST)
	for began, restarts := time.Now(), 0; ; restarts++ {
		p.start(t)
		select {
		case err := <-over:
			require.ErrorIs(t, err, store.ErrLost)
			e, _ := errors.AsType[*store.Error](err)
			require.Equal(t, []int{1}, e.Failure.Lost)
			require.NotZero(t, restarts)
			t.Logf("lost after %v and %d restarts", time.Since(began), restarts)
			return
		case <-time.After(every):
			p.kill()
		}
	}
}

// gathers runs all-gathers as one rank, round by round, until going returns false in rank 0.
func gathers(ctx context.Context, t *testing.T, s *store.Store, rank, size int, going func() bool, rounds *atomic.Int64) {
	c := wire.Contribution{Group: "g", Run: "r", Rank: rank, Size: size, Root: -1, Label: fmt.Sprint("rank ", rank)}
	membership, err := s.Join(ctx, c, nil)
	if err != nil {
		t.Error(err)
		return
	}
	for seq := uint64(1); ; seq++ {
		payload := fmt.Sprint(rank, "/", seq)
		if rank == 0 && !going() {
			payload = "enough"
		}
		v := wire.Contribution{Generation: membership.Generation, Rank: rank, Seq: seq, Root: -1, Verb: "all-gather", Want: wire.WantAll}
		values, err := s.Collect(ctx, v, []byte(payload))
		if err != nil {
			t.Errorf("rank %d, round %d: %v", rank, seq, err)
			return
		}
		if string(values[0]) == "enough" {
			return
		}
		for from, value := range values {
			assert.Equal(t, fmt.Sprint(from, "/", seq), string(value), "rank %d, round %d: %q from rank %d", rank, seq, value, from)
		}
		if rank == 0 {
			rounds.Add(1)
		}
	}
}

// TestAStoreThatDoesNotComeBack checks that calls to a durable store that is down end with their
// contexts, and that the error says since when the client is not connected.
func TestAStoreThatDoesNotComeBack(t *testing.T) {
	p := newProcess(t)
	s := p.client(t)
	works(t, s)
	p.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := s.Set(ctx, "k", nil, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, p.addr+": not connected for")
	p.start(t)
	works(t, s)
}
