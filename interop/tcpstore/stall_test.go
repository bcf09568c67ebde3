package tcpstore_test

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// visit serves a connection whose client sends say, and then nothing. It returns the client's end,
// and a channel for the error of the server.
func visit(t *testing.T, say []byte) (mine net.Conn, over chan error) {
	m := new(store.Memory)
	mine, theirs := net.Pipe()
	over = make(chan error, 1)
	go func() {
		err := new(tcpstore.Protocol).ServeConn(t.Context(), &store.ProtocolConn{Conn: theirs, Store: store.New(m)})
		_ = theirs.Close()
		_ = m.Close()
		over <- err
	}()
	_, err := mine.Write(append([]byte(tcpwire.Preface), say...))
	require.NoError(t, err)
	return mine, over
}

// TestStalls checks that the server closes the connection of a client that makes it hold data, and
// makes no progress.
func TestStalls(t *testing.T) {
	large := new(client).with(t, set("/large", string(make([]byte, 1<<20))))
	for what, say := range map[string][]byte{
		"half a large message": large[:128<<10],
		"answers not read":     append(large, new(client).with(t, get("/large"), get("/large"))...),
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				mine, over := visit(t, say)
				defer mine.Close()
				require.ErrorContains(t, <-over, "for 10 seconds")
				require.WithinRange(t, time.Now(), began.Add(10*time.Second), began.Add(30*time.Second))
			})
		})
	}
}

// TestNoStalls checks that the server keeps the connection of a client that is only slow, or makes
// it hold little.
func TestNoStalls(t *testing.T) {
	large := new(client).with(t, set("/large", string(make([]byte, 1<<20))))
	synctest.Test(t, func(t *testing.T) {
		mine, over := visit(t, nil)
		for rest := large; len(rest) > 0; {
			n := min(len(rest), 64<<10)
			_, err := mine.Write(rest[:n])
			require.NoError(t, err)
			rest = rest[n:]
			<-time.After(7 * time.Second)
		}
		half := new(client).with(t, get("/large"))
		_, err := mine.Write(half[:5])
		require.NoError(t, err)
		<-time.After(time.Hour)
		_, err = mine.Write(half[5:])
		require.NoError(t, err)
		for got := 0; got < 8+1<<20; {
			n, err := io.ReadFull(mine, make([]byte, min(8+1<<20-got, 256<<10)))
			require.NoError(t, err)
			got += n
			<-time.After(7 * time.Second)
		}
		require.NoError(t, mine.Close())
		require.ErrorIs(t, <-over, io.EOF)
	})
}
