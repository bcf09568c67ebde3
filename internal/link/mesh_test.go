package link_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// cluster is n ranks in this process, each on a separate node if apart.
func cluster(t *testing.T, n int, apart bool, change func(*pgroup.Config)) []*pgroup.Group {
	t.Helper()
	meet := store.New(new(store.Memory))
	t.Cleanup(func() { _ = meet.Close() })
	groups := make([]*pgroup.Group, n)
	together(t, n, func(rank int) {
		c := pgroup.Config{Rank: rank, Size: n, Store: meet, Timeout: 20 * time.Second}
		if apart {
			c.Host = fmt.Sprintf("node %d", rank)
		}
		if change != nil {
			change(&c)
		}
		g, err := pgroup.Create(t.Context(), c)
		if assert.NoError(t, err) {
			groups[rank] = g
			t.Cleanup(func() { _ = g.Close() })
		}
	})
	return groups
}

// together calls do for n ranks at the same time.
func together(t *testing.T, n int, do func(rank int)) {
	t.Helper()
	var ranks sync.WaitGroup
	for rank := range n {
		ranks.Go(func() { do(rank) })
	}
	ranks.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// open opens a mesh on every rank, with and without Options.Polling in turn; what is accepted comes
// out of the channels.
func open(t *testing.T, groups []*pgroup.Group) ([]*link.Mesh, []chan *link.Conn) {
	t.Helper()
	meshes, accepted := make([]*link.Mesh, len(groups)), make([]chan *link.Conn, len(groups))
	together(t, len(groups), func(rank int) {
		accepted[rank] = make(chan *link.Conn, 64)
		m, err := link.Open(t.Context(), groups[rank], link.Options{Name: "test", Polling: rank%2 == 0, Accept: func(c *link.Conn) { accepted[rank] <- c }})
		if assert.NoError(t, err) {
			meshes[rank] = m
			t.Cleanup(m.Close)
		}
	})
	return meshes, accepted
}

// talk sends a megabyte each way over a new connection, which it returns.
func talk(t *testing.T, m *link.Mesh, to int, accepted chan *link.Conn) (mine, theirs *link.Conn) {
	t.Helper()
	mine, err := m.Dial(t.Context(), to, link.Purpose{Kind: 'x', ID: 7, Number: 1 << 40})
	require.NoError(t, err)
	t.Cleanup(func() { _ = mine.Close() })
	theirs = <-accepted // Dial has returned, so it is there
	t.Cleanup(func() { _ = theirs.Close() })
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, way := range [][2]net.Conn{{mine, theirs}, {theirs, mine}} {
		var sending sync.WaitGroup
		sending.Go(func() {
			_, err := way[0].Write(data)
			assert.NoError(t, err)
		})
		got := make([]byte, len(data))
		_, err := io.ReadFull(way[1], got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(got, data))
		sending.Wait()
	}
	return mine, theirs
}

func TestDial(t *testing.T) {
	for _, test := range []struct {
		name  string
		apart bool
	}{{"one node", false}, {"between nodes", true}} {
		t.Run(test.name, func(t *testing.T) {
			meshes, accepted := open(t, cluster(t, 3, test.apart, nil))
			for from := range 3 {
				for to := range 3 {
					if from == to {
						continue
					}
					mine, theirs := talk(t, meshes[from], to, accepted[to])
					assert.Equal(t, to, mine.Rank)
					assert.Equal(t, from, theirs.Rank)
					assert.Equal(t, link.Purpose{Kind: 'x', ID: 7, Number: 1 << 40}, theirs.Purpose)
					_, unix := mine.Conn.(*net.UnixConn)
					assert.Equal(t, !test.apart && hasUnix, unix)
				}
			}
		})
	}
}

func madeFiles(t *testing.T) *store.TLSFiles {
	t.Helper()
	dir := t.TempDir()
	_, err := certs.Make(dir, certs.Options{})
	require.NoError(t, err)
	return &store.TLSFiles{CA: dir + "/ca.pem", Cert: dir + "/client.pem", Key: dir + "/client-key.pem"}
}

func TestDialOverTLS(t *testing.T) {
	files := madeFiles(t)
	meshes, accepted := open(t, cluster(t, 2, true, func(c *pgroup.Config) { c.TLS = files }))
	mine, theirs := talk(t, meshes[1], 0, accepted[0])
	for _, c := range []*link.Conn{mine, theirs} {
		secured, ok := c.Conn.(interface{ ConnectionState() tls.ConnectionState })
		require.True(t, ok)
		assert.Equal(t, uint16(tls.VersionTLS13), secured.ConnectionState().Version)
	}
}

func TestRanksThatDisagreeOnTLS(t *testing.T) {
	groups := cluster(t, 2, true, func(c *pgroup.Config) {
		if c.Rank == 1 {
			c.TLS = &store.TLSFiles{}
		}
	})
	together(t, 2, func(rank int) {
		_, err := link.Open(t.Context(), groups[rank], link.Options{Name: "test"})
		assert.ErrorContains(t, err, "rank 1 uses TLS, and rank 0 uses no TLS")
	})
}

// stranger connects to the port of m's rank, as any process can.
func stranger(t *testing.T, m *link.Mesh, rank int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", link.Addr(m, rank))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestNoSecretIsDenied(t *testing.T) {
	for name, hello := range map[string][]byte{
		"silent":        nil,
		"without a key": wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello}),
	} {
		t.Run(name, func(t *testing.T) {
			meshes, accepted := open(t, cluster(t, 2, true, nil))
			conn := stranger(t, meshes[0], 0)
			_, err := conn.Write(hello)
			require.NoError(t, err)
			if hello == nil {
				meshes[0].Close() // does not wait for it
			}
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, err = io.Copy(io.Discard, conn) // ends when it is turned away
			assert.False(t, isTimeout(err), "got %v", err)
			assert.Empty(t, accepted[0])
		})
	}
}

// TestAHelloOfNoRank has peers that know the key, and are of another version.
func TestAHelloOfNoRank(t *testing.T) {
	meshes, accepted := open(t, cluster(t, 2, true, nil))
	for name, value := range map[string][]byte{"empty": nil, "the acceptor's own": make([]byte, 21), "beyond the last": bytes.Repeat([]byte{2}, 21)} {
		_, err := handshake.Open(t.Context(), stranger(t, meshes[0], 0), &handshake.Offer{Secret: link.Token(meshes[0]), Hello: wire.Request{Value: value}})
		assert.ErrorContains(t, err, "hello", name)
	}
	assert.Empty(t, accepted[0])
}

// TestUnauthenticatedPeersDoNotBlockRanks has more unauthenticated peers that send nothing than there may be handshakes: the oldest go.
func TestUnauthenticatedPeersDoNotBlockRanks(t *testing.T) {
	meshes, accepted := open(t, cluster(t, 2, true, nil))
	first := stranger(t, meshes[0], 0)
	for range 299 { // and there are two ranks
		stranger(t, meshes[0], 0)
	}
	_, err := first.Read(make([]byte, 1))
	require.Error(t, err, "the first one is turned away by the last")
	mine, err := meshes[1].Dial(testcluster.Within(t, 5*time.Second), 0, link.Purpose{Kind: 'x'})
	require.NoError(t, err)
	defer mine.Close()
	theirs := <-accepted[0]
	assert.Equal(t, 1, theirs.Rank)
	require.NoError(t, theirs.Close())
}

// TestAHandshakeThatIsCutShortIsMadeAgain has something on the way end the first connections. The next one gets through.
func TestAHandshakeThatIsCutShortIsMadeAgain(t *testing.T) {
	for name, tls := range map[string]*store.TLSFiles{"": nil, "over TLS": madeFiles(t)} {
		t.Run(name, func(t *testing.T) {
			meshes, accepted := open(t, cluster(t, 2, true, func(c *pgroup.Config) { c.TLS = tls }))
			between, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer between.Close()
			target := link.Addr(meshes[1], 0)
			link.Redirect(meshes[1], 0, between.Addr().String())
			var way sync.WaitGroup
			defer way.Wait()
			way.Go(func() {
				for range 3 {
					conn, err := between.Accept()
					if !assert.NoError(t, err) {
						return
					}
					_ = conn.Close()
				}
				conn, err := between.Accept()
				if !assert.NoError(t, err) {
					return
				}
				there, err := net.Dial("tcp", target)
				if !assert.NoError(t, err) {
					return
				}
				way.Go(func() { _, _ = io.Copy(conn, there); _ = conn.Close() })
				_, _ = io.Copy(there, conn)
				_ = there.Close()
			})
			mine, theirs := talk(t, meshes[1], 0, accepted[0])
			_, _ = mine.Close(), theirs.Close()
		})
	}
}

// TestDialEnds has a peer that accepts and says nothing: a dial ends with its context, with the group, and
// with the group's timeout if its context has no deadline.
func TestDialEnds(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	dial := func(t *testing.T, timeout time.Duration, during func(groups []*pgroup.Group) context.Context) error {
		groups := cluster(t, 2, true, func(c *pgroup.Config) { c.Timeout = timeout })
		meshes, _ := open(t, groups)
		link.Redirect(meshes[1], 0, mute.Addr().String())
		_, err := meshes[1].Dial(during(groups), 0, link.Purpose{Kind: 'x'})
		return err
	}
	t.Run("the group is aborted", func(t *testing.T) {
		err := dial(t, 20*time.Second, func(groups []*pgroup.Group) context.Context {
			go func() {
				conn, err := mute.Accept()
				if assert.NoError(t, err) {
					defer conn.Close()
					groups[0].Abort(errors.New("enough"))
					<-groups[1].Context().Done()
				}
			}()
			return t.Context()
		})
		assert.ErrorIs(t, err, pgroup.ErrAborted)
	})
	t.Run("its context is over", func(t *testing.T) {
		err := dial(t, 20*time.Second, func([]*pgroup.Group) context.Context { return testcluster.Within(t, 50*time.Millisecond) })
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("the group's timeout is over", func(t *testing.T) {
		err := dial(t, 3*time.Second, func([]*pgroup.Group) context.Context { return t.Context() })
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

func TestTheTokenOfAnotherMesh(t *testing.T) {
	groups := cluster(t, 2, true, nil)
	meshes, accepted := open(t, groups)
	others, _ := open(t, groups)
	link.Redirect(others[1], 0, link.Addr(meshes[0], 0)) // an address that was used again
	_, err := others[1].Dial(t.Context(), 0, link.Purpose{Kind: 'x', ID: 7, Number: 1 << 40})
	assert.ErrorContains(t, err, "connecting to the data port of rank 0")
	assert.ErrorContains(t, err, "wrong secret")
	assert.Empty(t, accepted[0])
}

func TestDialNamesMissingRank(t *testing.T) {
	meshes, _ := open(t, cluster(t, 3, true, nil))
	meshes[2].Close()
	_, err := meshes[0].Dial(t.Context(), 2, link.Purpose{Kind: 'x', ID: 7, Number: 1 << 40})
	assert.ErrorContains(t, err, "rank 2")
	assert.ErrorContains(t, err, "refused")
	for _, none := range []int{-1, 0, 3} {
		_, err := meshes[0].Dial(t.Context(), none, link.Purpose{Kind: 'x', ID: 7, Number: 1 << 40})
		assert.ErrorContains(t, err, fmt.Sprintf("rank %d", none))
	}
	meshes[1].Close()
	_, err = meshes[1].Dial(t.Context(), 0, link.Purpose{Kind: 'x', ID: 7, Number: 1 << 40})
	assert.ErrorIs(t, err, link.ErrClosed)
}

func TestBadListen(t *testing.T) {
	for _, listen := range []string{"0.0.0.0", "203.0.113.1", "no host at all"} {
		groups := cluster(t, 2, true, nil)
		together(t, 2, func(rank int) {
			o := link.Options{Name: "test"}
			if rank == 1 {
				o.Listen = listen
			}
			_, err := link.Open(t.Context(), groups[rank], o)
			assert.ErrorContains(t, err, "rank 1: listening for data connections")
		})
	}
}

// TestRecords say of which rank of which group they are, and where that is.
func TestRecords(t *testing.T) {
	var logged bytes.Buffer
	groups := cluster(t, 2, true, func(c *pgroup.Config) {
		c.Name = "train"
		if c.Rank == 1 {
			c.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
		}
	})
	meshes, _ := open(t, groups)
	c := stranger(t, meshes[0], 1)
	_, err := c.Write(make([]byte, 200))
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, c) // until it is refused
	for _, m := range meshes {
		m.Close()
	}
	require.Contains(t, logged.String(), "a data connection was refused")
	require.Regexp(t, `group=train generation=\d+ rank=1 seq=\d+ `, logged.String())
}
