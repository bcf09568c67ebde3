package tcpstore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/interop/tcpstore"
)

func TestWhatEndsAConnection(t *testing.T) {
	half := strings.Repeat("x", 9<<20)
	str := func(n uint64) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 0, 0, 0, 0} }
	for name, tc := range map[string]struct {
		sent []byte
		says string
	}{
		"a counter that is no number":  {new(client).with(t, set("/n", "x12"), add("/n", 1)), "not a decimal number"},
		"two that wait":                {new(client).with(t, wait("/never"), wait("/never either")), "still waits"},
		"a key that is too long":       {append([]byte{1}, str(8<<10+1)...), "8193 bytes"},
		"a value that is too large":    {append(append([]byte{1}, str(0)...), str(16<<20+1)...), "16777217 bytes"},
		"too many keys":                {append([]byte{6}, str(10_001)...), "10001 keys"},
		"no such operation":            {[]byte{19}, "number 19"},
		"another magic number":         {[]byte{0, 1}, "not a client of PyTorch"},
		"a value that grows too large": {new(client).with(t, set("/n", half), tcpwire.Request{Op: tcpwire.OpAppend, Key: "/n", Value: []byte(half)}), "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			s := current(t)
			c, other := s.client(t), s.client(t)
			c.write(tc.sent)
			c.closed()
			s.Says(t, tc.says)
			other.works()
		})
	}
}

// with returns the encoding of requests.
func (c *client) with(t *testing.T, reqs ...tcpwire.Request) []byte {
	return (&client{t: t}).bytes(reqs...)
}

// TestCancelRacesTheAnswer checks that, when a cancel and the key arrive at the same time, the
// client gets one 01, with at most one 00 before it.
func TestCancelRacesTheAnswer(t *testing.T) {
	s := current(t)
	c, other := s.client(t), s.client(t)
	both := [2]int{}
	for i := range 200 {
		key := fmt.Sprint("/", i)
		c.send(wait(key))
		var sending sync.WaitGroup
		sending.Go(func() { other.write(other.bytes(set(key, "1"))) })
		c.send(of(tcpwire.OpCancelWait))
		first := c.reply(tcpwire.OpCancelWait, 0).N
		if first == tcpwire.StopWaiting {
			require.EqualValues(t, tcpwire.WaitCanceled, c.reply(tcpwire.OpCancelWait, 0).N)
		}
		both[first]++
		sending.Wait()
	}
	t.Logf("answered %d times, cancelled first %d times", both[0], both[1])
	c.works()
}

func TestShutdownAnswersWhatWasAsked(t *testing.T) {
	s := current(t)
	c, waits := s.client(t), s.client(t)
	waits.send(wait("/never"))
	c.works()
	require.NoError(t, s.Shutdown(s.ctx))
	c.closed()
	waits.closed()
}

// TestMuchAtOnce checks that a long request is left to the goroutine of the connection, and that
// the requests after it wait for it.
func TestMuchAtOnce(t *testing.T) {
	const n = 3000
	s := current(t)
	c := s.client(t)
	var keys []string
	var values [][]byte
	for i := range n {
		keys, values = append(keys, fmt.Sprintf("/%04d", i)), append(values, fmt.Append(nil, i))
	}
	c.send(tcpwire.Request{Op: tcpwire.OpMultiSet, Keys: keys, Values: values}, of(tcpwire.OpGetNumKeys), of(tcpwire.OpListKeys),
		check(keys...), wait(keys...), tcpwire.Request{Op: tcpwire.OpMultiGet, Keys: keys}, get(keys[n-1]))
	require.EqualValues(t, n, c.reply(tcpwire.OpGetNumKeys, 0).N)
	require.Equal(t, keys, c.reply(tcpwire.OpListKeys, 0).Keys)
	require.EqualValues(t, tcpwire.Ready, c.reply(tcpwire.OpCheck, n).N)
	require.EqualValues(t, tcpwire.StopWaiting, c.reply(tcpwire.OpWait, n).N)
	require.Equal(t, values, c.reply(tcpwire.OpMultiGet, n).Values)
	require.Equal(t, values[n-1], c.reply(tcpwire.OpGet, 0).Value)
	c.works()
}

// TestCheckOfAProtocol checks that a protocol that is not valid accepts no client; serve.txt of cmd/muster has
// the patterns, TTLs and prefixes that are not.
func TestCheckOfAProtocol(t *testing.T) {
	require.NoError(t, (&tcpstore.Protocol{Ranks: []string{"a/{rank}/*"}}).Check())
	s := serve(t, &tcpstore.Protocol{Ranks: []string{"a"}}, nil)
	c := s.raw(t)
	c.send(of(tcpwire.OpValidate))
	c.closed()
	s.Says(t, `tcpstore: the pattern \"a\" is to have {rank} once`)
}
