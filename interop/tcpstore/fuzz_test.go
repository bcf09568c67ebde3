package tcpstore_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// FuzzServeConn checks that the connection of a client that sends any bytes ends with the client,
// and that the store still works.
func FuzzServeConn(f *testing.F) {
	seed := func(reqs ...tcpwire.Request) { f.Add((&client{t: f}).bytes(reqs...)) }
	seed(set("/a", "1"), get("/a"), add("/n", 1), check("/a", "/b"), wait("/a"))
	seed(wait("/never"), of(tcpwire.OpCancelWait), set("/a", "1"))
	seed(tcpwire.Request{Op: tcpwire.OpBarrier, Key: "/b", N: 2}, of(tcpwire.OpCancelWait))
	seed(tcpwire.Request{Op: tcpwire.OpQueuePush, Key: "/q", Value: []byte("v")}, tcpwire.Request{Op: tcpwire.OpQueuePop, Key: "/q"})
	seed(tcpwire.Request{Op: tcpwire.OpCompareSet, Key: "/a", Value: []byte("1")}, of(tcpwire.OpListKeys), of(tcpwire.OpGetNumKeys))
	f.Fuzz(func(t *testing.T, sent []byte) {
		m := new(store.Memory)
		defer m.Close()
		mine, theirs := net.Pipe()
		var both sync.WaitGroup
		both.Go(func() {
			_ = (&tcpstore.Protocol{Ranks: []string{"{rank}"}}).ServeConn(context.Background(), &store.ProtocolConn{Conn: theirs, Store: store.New(m)})
			_ = theirs.Close()
		})
		both.Go(func() { _, _ = io.Copy(io.Discard, mine) })
		_, _ = mine.Write(append([]byte(tcpwire.Preface), sent...))
		_ = mine.Close()
		both.Wait()
		require.NoError(t, store.New(m).Set(t.Context(), "works", nil, nil))
	})
}
