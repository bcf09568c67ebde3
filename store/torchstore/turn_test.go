package torchstore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/torchstore"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// A list of many short keys is read as one long value is, by a server and by a client: not copied for each key.
func TestManyShortKeys(t *testing.T) {
	const n = 100000
	s := current(t)
	c := s.client(t)
	keys, values := make([]string, n), make([][]byte, n)
	for i := range n {
		keys[i] = fmt.Sprintf("/%06d", i)
	}
	c.send(tcpstore.Request{Op: tcpstore.OpMultiSet, Keys: keys, Values: values}, check(keys...))
	require.EqualValues(t, tcpstore.Ready, c.reply(tcpstore.OpCheck, n).N)
	engine, err := torchstore.Dial(s.ctx, s.addr, nil)
	require.NoError(t, err)
	defer engine.Close()
	for key, err := range store.New(engine).Keys(s.ctx, "") {
		require.NoError(t, err)
		require.Equal(t, "000000", key)
		break
	}
}
