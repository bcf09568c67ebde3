package tcpstore_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// grace is how long the keys of a client remain.
const grace = 30 * time.Second

func sessions() *tcpstore.Protocol {
	return &tcpstore.Protocol{Sessions: []string{"/nixl/agents/", "/other/"}}
}

// inSessions runs a test in virtual time.
func inSessions(t *testing.T, test func(t *testing.T, s *service)) {
	synctest.Test(t, func(t *testing.T) { test(t, piped(t, new(store.Server), sessions())) })
}

// keys returns the keys below a prefix that Python sees.
func (s *service) keys(t *testing.T, prefix string) (keys []string) {
	t.Helper()
	for e, err := range s.List(s.ctx, prefix) {
		require.NoError(t, err)
		if !strings.Contains(e.Key, "\x00") {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// TestNIXL sends the bytes of NIXL's TCPStore backend (ai-dynamo/nixl#1930), and expects its answers.
func TestNIXL(t *testing.T) {
	inSessions(t, func(t *testing.T, s *service) {
		const (
			hello = "\x00\xce\xf7\x85\x3c"
			ping  = "\x0d\x67\x12\x00\x00"
			key   = "\x28\x00\x00\x00\x00\x00\x00\x00/nixl/agents/metadata/agent-0/NULL_AGENT"
			value = "\x04\x00\x00\x00\x00\x00\x00\x00blob"
			check = "\x05\x01\x00\x00\x00\x00\x00\x00\x00" + key
			ready = "\x00"
			none  = "\x01"
			empty = "\x00\x00\x00\x00\x00\x00\x00\x00"
			one   = "\x01\x00\x00\x00\x00\x00\x00\x00"
		)
		var agent, fetcher *client
		for i, step := range []struct {
			client        **client
			request, want string
			then          time.Duration
		}{
			{&agent, hello + ping, ping[1:], 0},
			{&fetcher, hello + ping, ping[1:], 0},
			{&fetcher, check, none, 0},
			{&agent, "\x01" + key + value, "", 0},
			{&fetcher, check, ready, 0},
			{&fetcher, "\x03" + key, value, 0},
			{&agent, "\x08" + key, one, 0},
			{&fetcher, "\x03" + key, empty, 0},
			{&agent, "\x01" + key + value, "", 0},
			{&agent, "", "", grace - time.Nanosecond}, // it ends
			{&fetcher, hello + ping, ping[1:], 0},
			{&fetcher, check, ready, time.Nanosecond},
			{&fetcher, "\x03" + key, empty, 0},
			{&fetcher, check + "\x03" + key, none + empty, 0},
		} {
			if *step.client == nil {
				*step.client = s.raw(t)
			}
			c := *step.client
			c.write([]byte(step.request))
			answer := make([]byte, len(step.want))
			_, err := io.ReadFull(c, answer)
			require.NoError(t, err)
			require.Equal(t, step.want, string(answer), "step %d", i)
			synctest.Wait()
			if step.request == "" {
				require.NoError(t, c.Close())
				*step.client, fetcher = nil, nil // whose deadline is over by then
			}
			time.Sleep(step.then)
			synctest.Wait()
		}
	})
}

// TestManyKeysOfAClient checks that all keys of a client end with it, below each prefix.
func TestManyKeysOfAClient(t *testing.T) {
	inSessions(t, func(t *testing.T, s *service) {
		a := s.client(t)
		for i := range 1000 {
			a.send(set(fmt.Sprintf("/nixl/agents/%d", i), "1"), set(fmt.Sprintf("/other/%d", i), "1"))
		}
		a.works()
		_ = a.Close()
		time.Sleep(grace - time.Nanosecond)
		synctest.Wait()
		require.Len(t, s.keys(t, ""), 2001)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, []string{"works"}, s.keys(t, ""))
	})
}

// TestASetAtTheEndOfTheGrace checks that a SET that comes when the key of another client ends is kept,
// whichever is first.
func TestASetAtTheEndOfTheGrace(t *testing.T) {
	inSessions(t, func(t *testing.T, s *service) {
		for i := range 100 {
			a := s.client(t)
			a.send(set("/nixl/agents/k", "old"))
			a.works()
			_ = a.Close()
			synctest.Wait()
			time.Sleep(grace)
			b := s.client(t)
			value := fmt.Sprint(i)
			b.send(set("/nixl/agents/k", value))
			b.works()
			time.Sleep(2 * grace)
			v, err := s.Get(s.ctx, "nixl/agents/k")
			require.NoError(t, err)
			require.Equal(t, value, string(v))
			_ = b.Close()
		}
	})
}

// TestALeaseThatEnds checks that a client learns that its keys have ended before it has, as when its
// relay is cut off from the store.
func TestALeaseThatEnds(t *testing.T) {
	inSessions(t, func(t *testing.T, s *service) {
		before, err := s.Lease(s.ctx, time.Minute)
		require.NoError(t, err)
		a := s.client(t)
		a.send(set("/nixl/agents/a", "1"))
		a.works()
		require.NoError(t, before.Close(s.ctx))
		require.NoError(t, s.Do(s.ctx, &wire.Request{Op: wire.OpRevoke, Lease: before.ID() + 1}, new(wire.Reply)))
		a.closed()
		require.Empty(t, s.keys(t, "nixl"))
	})
}

// TestTheLimitOfSessions checks that connections with such keys are bounded, and others are not.
func TestTheLimitOfSessions(t *testing.T) {
	s := serve(t, sessions(), &store.Server{Engine: &store.Memory{Limits: store.Limits{Leases: 1}}})
	a, b := s.client(t), s.client(t)
	a.send(set("/nixl/agents/a", "1"))
	a.works()
	b.works()
	b.send(set("/nixl/agents/b", "1"))
	b.closed()
	s.Says(t, "the limit is 1 leases")
	a.send(set("/nixl/agents/a", "2"), set("/nixl/agents/more", "1"))
	a.works()
	require.Equal(t, []string{"nixl/agents/a", "nixl/agents/more"}, s.keys(t, "nixl"))
}

// TestSessionsEndWithTheStore checks that a durable store that starts again has no keys of clients,
// whose connections have ended.
func TestSessionsEndWithTheStore(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, sessions(), &store.Server{Engine: &store.Memory{Dir: dir}})
	a := s.client(t)
	a.send(set("/nixl/agents/a", "1"), set("/nixl/other", "1"))
	a.works()
	require.NoError(t, s.Server.Close())
	require.NoError(t, s.Server.Engine.Close())
	s = serve(t, sessions(), &store.Server{Engine: &store.Memory{Dir: dir}})
	require.Equal(t, []string{"nixl/other", "works"}, s.keys(t, ""))
}

// TestSessionsBehindARelay checks that keys of a relay's clients outlive the restart of a durable
// store, since the relay's session does, and end with the relay.
func TestSessionsBehindARelay(t *testing.T) {
	dir, at := t.TempDir(), testcluster.Listen(t)
	start := func(l net.Listener) (s *store.Store, stop func()) {
		srv := &store.Server{Engine: &store.Memory{Dir: dir}, Limits: store.ServerLimits{ReconnectTimeout: testTimeout}}
		return store.New(srv.Engine), testcluster.ServeAt(t, srv, l)
	}
	_, stop := start(at)
	relay, err := store.NewRelay(t.Context(), "muster://"+at.Addr().String(), nil)
	require.NoError(t, err)
	s := serve(t, sessions(), &store.Server{Engine: relay})
	a := s.client(t)
	a.send(set("/nixl/agents/a", "1"))
	a.works()

	stop()
	again, err := net.Listen("tcp", at.Addr().String())
	require.NoError(t, err)
	s.Store, _ = start(again)
	a.send(set("/nixl/agents/b", "1"))
	a.works()
	require.Equal(t, []string{"nixl/agents/a", "nixl/agents/b"}, s.keys(t, "nixl/"))

	require.NoError(t, s.Server.Close())
	require.NoError(t, relay.Close())
	testcluster.Eventually(t, grace/2, func() bool { return len(s.keys(t, "nixl/")) == 0 }, "the keys end")
	require.Equal(t, []string{"works"}, s.keys(t, ""))
}

func TestPrefixesOfSessions(t *testing.T) {
	for _, bad := range []string{"", "nixl/agents/", "\x00"} {
		require.ErrorContains(t, (&tcpstore.Protocol{Sessions: []string{"/a", bad}}).Check(), fmt.Sprintf("%q is to begin with", bad))
	}
	require.NoError(t, sessions().Check())
}

// ownerOf is the variable with the address for the process of TestOwner.
const ownerOf = "MUSTER_TEST_OWNER"

// TestOwner is the process of TestKeysEndWithTheProcess that is killed.
func TestOwner(t *testing.T) {
	addr := os.Getenv(ownerOf)
	if addr == "" {
		t.Skip("SKIPPED: it is a process of TestKeysEndWithTheProcess")
	}
	s := &service{conn: func() (net.Conn, error) { return net.Dial("tcp", addr) }}
	c := s.as(t, os.Getpid())
	c.send(set("/nixl/agents/owner", "1"))
	_, _ = c.Read(make([]byte, 1)) // until it is killed
}

// TestKeysEndWithTheProcess checks that keys end soon after the end of the process that has set them,
// if the server or the relay is on its host, and that those of other clients stay: of a process that
// has closed its connection, and of one that has not.
func TestKeysEndWithTheProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("SKIPPED: this system does not show which process has a connection")
	}
	for name, start := range map[string]func(t *testing.T) *service{
		"server": func(t *testing.T) *service { return serve(t, sessions(), nil) },
		"relay": func(t *testing.T) *service {
			at := current(t)
			relay, err := store.NewRelay(at.ctx, "muster://"+at.addr, nil)
			require.NoError(t, err)
			return serve(t, sessions(), &store.Server{Engine: relay})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			cmd := exec.CommandContext(s.ctx, os.Args[0], "-test.run=^TestOwner$")
			cmd.Env = append(os.Environ(), ownerOf+"="+s.addr)
			keysEndWithTheProcess(t, s, cmd)
		})
	}
	t.Run("torch", func(t *testing.T) {
		t.Parallel()
		s := serve(t, sessions(), nil)
		host, port, err := net.SplitHostPort(s.addr)
		require.NoError(t, err)
		keysEndWithTheProcess(t, s, python(s.ctx, t, "owner.py", host, port))
	})
}

// keysEndWithTheProcess runs and kills cmd, which sets nixl/agents/owner.
func keysEndWithTheProcess(t *testing.T, s *service, cmd *exec.Cmd) {
	require.NoError(t, cmd.Start())
	end := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	stays, closes := s.as(t, os.Getpid()), s.as(t, os.Getpid())
	stays.send(set("/nixl/agents/stays", "1"))
	closes.send(set("/nixl/agents/closes", "1"))
	_, err := s.Wait(s.ctx, "nixl/agents/owner", "nixl/agents/stays", "nixl/agents/closes")
	require.NoError(t, err)
	published(t, s, func(all []tcpwire.Process) bool {
		known := 0
		for _, p := range all {
			if p.State != "" { // it is known to run on this host
				known++
			}
		}
		return known == 2
	})
	_ = closes.Close()
	end()
	testcluster.Eventually(t, grace/2, func() bool { return len(s.keys(t, "nixl/agents/owner")) == 0 }, "the key ends")
	require.Equal(t, []string{"nixl/agents/closes", "nixl/agents/stays"}, s.keys(t, "nixl/"))
}
