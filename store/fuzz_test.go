package store_test

import (
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// FuzzServer sends arbitrary bytes to a store or a relay, after a hello or instead of one, in
// pieces of any size.
func FuzzServer(f *testing.F) {
	const greeted, engine, step = 1, 2, 8 // bits of how
	for _, bad := range garbage {
		f.Add(bad.bytes, uint8(greeted))
		f.Add(append(greeting(), bad.bytes...), uint8(engine+7*step))
	}
	for op := range wire.OpStatus + 1 {
		req := wire.Request{
			Op: op, ID: 1, Key: "k", Keys: []string{"a", "b"}, Value: []byte("1"), Timeout: 1, TTL: 1, Lease: 1,
			Group: wire.Contribution{Size: 1, Generation: 1, Seq: 1, Root: -1, Want: wire.WantNothing},
		}
		f.Add(wire.AppendRequest(nil, &req), uint8(greeted))
		if op.Numbered() {
			req.Number = 1
		}
		again := wire.AppendRequest(nil, &req)
		f.Add(append(again, again...), uint8(greeted+engine+step))
		f.Add(append(again, again...), uint8(greeted+2*engine+step))
		if op != wire.OpBackup {
			f.Add(wire.AppendRelayRequest(branches(1, 2), 2, &req), uint8(greeted))
		}
	}
	vote := wire.AppendVote(nil, &wire.Vote{RelayCall: wire.RelayCall{Conn: 2, ID: 5}, Want: wire.WantNothing})
	f.Add(wire.AppendVotes(branches(1, 2), &wire.Contribution{Generation: 1, Seq: 1, Root: -1}, 1, vote), uint8(greeted))
	f.Add(append(branches(1), branches(1)...), uint8(greeted))
	f.Add(greeting()[:len(wire.Preface)+5], uint8(0))
	f.Add(wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello, Resume: 1, Incarnation: 1, Value: make([]byte, 16)}), uint8(step))
	bystanders := []*bystander{newBystander(f, new(store.Memory)), newBystander(f, &store.Memory{Dir: f.TempDir()})}
	r, err := store.NewRelay(f.Context(), "muster://"+bystanders[0].addr, nil)
	require.NoError(f, err)
	bystanders = append(bystanders, newBystander(f, r))
	f.Fuzz(func(t *testing.T, stream []byte, how uint8) {
		b := bystanders[how/engine%4%3]
		c, err := net.Dial("tcp", b.addr)
		require.NoError(t, err)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testTimeout))
		if how&greeted != 0 {
			stream = append(greeting(), stream...)
		}
		size := max(len(stream)/20, int(how/step)+1)
		for len(stream) > 0 {
			n := min(size, len(stream))
			if _, err := c.Write(stream[:n]); err != nil {
				break
			}
			stream = stream[n:]
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		b.undisturbed(t)
	})
}

// bystander is a client of a server to which others send arbitrary bytes.
type bystander struct {
	addr  string
	key   string
	count int64
	*store.Store
	waiting <-chan error
}

func newBystander(f *testing.F, e store.Backend) *bystander {
	addr := testcluster.Serve(f, &store.Server{Engine: e, Logger: slog.New(slog.DiscardHandler), Limits: store.ServerLimits{ReconnectTimeout: 10 * time.Millisecond}})
	b := &bystander{addr: addr, key: rand.Text(), Store: testcluster.Dial(f, addr, nil)}
	ctx := f.Context()
	b.waiting = start(func() error { _, err := b.Wait(ctx, b.key+" never"); return err })
	return b
}

// undisturbed asserts that the calls of the bystander still work: its changes take effect once, and
// its waits end.
func (b *bystander) undisturbed(t *testing.T) {
	t.Helper()
	n, err := b.Add(bounded(t), b.key, 1)
	require.NoError(t, err)
	b.count++
	require.Equal(t, b.count, n)
	select {
	case err := <-b.waiting:
		t.Fatalf("a wait has ended: %v", err)
	default:
	}
}
