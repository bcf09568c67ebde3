package torchstore_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/torchstore"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// FuzzServeConn checks that the connection of a client that sends any bytes ends with the client,
// and that the store still works.
func FuzzServeConn(f *testing.F) {
	seed := func(reqs ...tcpstore.Request) { f.Add((&client{t: f}).bytes(reqs...)) }
	seed(set("/a", "1"), get("/a"), add("/n", 1), check("/a", "/b"), wait("/a"))
	seed(wait("/never"), of(tcpstore.OpCancelWait), set("/a", "1"))
	seed(tcpstore.Request{Op: tcpstore.OpBarrier, Key: "/b", N: 2}, of(tcpstore.OpCancelWait))
	seed(tcpstore.Request{Op: tcpstore.OpQueuePush, Key: "/q", Value: []byte("v")}, tcpstore.Request{Op: tcpstore.OpQueuePop, Key: "/q"})
	seed(tcpstore.Request{Op: tcpstore.OpCompareSet, Key: "/a", Value: []byte("1")}, of(tcpstore.OpListKeys), of(tcpstore.OpGetNumKeys))
	f.Fuzz(func(t *testing.T, sent []byte) {
		m := new(store.Memory)
		defer m.Close()
		mine, theirs := net.Pipe()
		var both sync.WaitGroup
		both.Go(func() {
			_ = (&torchstore.Protocol{Ranks: []string{"{rank}"}}).ServeConn(context.Background(), &store.ProtocolConn{Conn: theirs, Store: store.New(m)})
			_ = theirs.Close()
		})
		both.Go(func() { _, _ = io.Copy(io.Discard, mine) })
		_, _ = mine.Write(append([]byte(tcpstore.Preface), sent...))
		_ = mine.Close()
		both.Wait()
		require.NoError(t, store.New(m).Set(t.Context(), "works", nil, nil))
	})
}
