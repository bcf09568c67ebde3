package tcpstore_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// states are the ways in which the store of a TCPStore ends, or is not there.
var states = map[string]func(t *testing.T, m *store.Memory, s *service){
	"stopping": func(t *testing.T, _ *store.Memory, s *service) { assert.NoError(t, s.Server.Close()) },
	"closed":   func(t *testing.T, m *store.Memory, _ *service) { assert.NoError(t, m.Close()) },
	"failed": func(t *testing.T, m *store.Memory, _ *service) {
		require.NoError(t, os.RemoveAll(m.Dir))
		<-m.Failed()
	},
	"not open": func(t *testing.T, m *store.Memory, _ *service) {
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		m.Dir = file
	},
}

var greeting = tcpwire.Request{Op: tcpwire.OpValidate}

// ask sends b on new connections, one after the other.
func (s *service) ask(b []byte) {
	for range 20 {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			return // the server has stopped
		}
		_, _ = c.Write(b)
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
}

// TestEachOperationInEachState checks that no operation ends the process of a store that ends or
// cannot be opened, whether it comes before, during or after that, and that such a store answers
// nothing: a client is never told that a change was made.
func TestEachOperationInEachState(t *testing.T) {
	for name, enter := range states {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &store.Memory{Dir: t.TempDir()}
			t.Cleanup(func() { _ = m.Close() })
			s := serve(t, &tcpstore.Protocol{}, &store.Server{Engine: m})
			var asking sync.WaitGroup
			ask := func() {
				for op := tcpwire.OpValidate + 1; op <= tcpwire.OpBarrier; op++ {
					req := tcpwire.Request{Op: op, Key: "/k", Keys: []string{"/k"}, Value: []byte("v"), Values: [][]byte{[]byte("v")}, N: 1}
					b := new(client).with(t, greeting, req)
					asking.Go(func() { s.ask(b) })
				}
			}
			if name != "not open" {
				require.NoError(t, m.Open())
				ask()
			}
			enter(t, m, s)
			ask()
			asking.Wait()
			nc, err := net.Dial("tcp", s.addr)
			if err != nil {
				require.Equal(t, "stopping", name)
				return
			}
			c := &client{Conn: nc, t: t}
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
			_, _ = c.Write(c.bytes(greeting, set("/k", "v"), get("/k"))) // may be refused while it is written
			n, err := io.Copy(io.Discard, c)
			assert.Zero(t, n, "an answer of a store that has ended")
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	}
}
