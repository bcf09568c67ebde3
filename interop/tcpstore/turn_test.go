package tcpstore_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestManyShortKeys checks that a server and a client read a list of many short keys like one long
// value, without copying the buffer for each key.
func TestManyShortKeys(t *testing.T) {
	const n = wire.MaxKeys
	s := current(t)
	c := s.client(t)
	keys, values := make([]string, n), make([][]byte, n)
	for i := range n {
		keys[i] = fmt.Sprintf("/%06d", i)
	}
	c.send(tcpwire.Request{Op: tcpwire.OpMultiSet, Keys: keys, Values: values}, check(keys...))
	require.EqualValues(t, tcpwire.Ready, c.reply(tcpwire.OpCheck, n).N)
	engine, err := tcpstore.Dial(s.ctx, s.addr, nil)
	require.NoError(t, err)
	defer engine.Close()
	for key, err := range store.New(engine).Keys(s.ctx, "") {
		require.NoError(t, err)
		require.Equal(t, "000000", key)
		break
	}
}

// TestMuchThatTakesLittle checks that other clients do not have to wait for all of the many short
// requests that one client sends at once.
func TestMuchThatTakesLittle(t *testing.T) {
	const asked = 60000
	s := current(t)
	for i := range 400 {
		require.NoError(t, s.Set(s.ctx, fmt.Sprint(i), nil, nil))
	}
	greedy, other := s.client(t), s.client(t)
	reqs := make([]tcpwire.Request, asked)
	for i := range reqs {
		reqs[i].Op = tcpwire.OpGetNumKeys
	}
	greedy.send(reqs...)
	greedy.reply(tcpwire.OpGetNumKeys, 0)
	other.works()
	require.NoError(t, greedy.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	rest, _ := io.ReadAll(greedy)
	require.Less(t, len(greedy.buf)+len(rest), 8*asked/2)
}
