package tcpstore_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

func TestValues(t *testing.T) {
	c := current(t).client(t)
	require.Empty(t, c.call(get("/missing")).Value)
	require.EqualValues(t, tcpwire.NotReady, c.call(check("/a", "/b")).N)
	c.send(set("/a", "1"), set("/b", ""), set("/a", "2"))
	require.Equal(t, "2", string(c.call(get("/a")).Value))
	require.Empty(t, c.call(get("/b")).Value)
	require.EqualValues(t, tcpwire.Ready, c.call(check("/a", "/b")).N)
	require.EqualValues(t, tcpwire.Ready, c.call(check()).N)
	c.send(
		tcpwire.Request{Op: tcpwire.OpAppend, Key: "/a", Value: []byte("34")},
		tcpwire.Request{Op: tcpwire.OpAppend, Key: "/new", Value: []byte("56")},
		tcpwire.Request{Op: tcpwire.OpMultiSet, Keys: []string{"/x", "/y", "/x"}, Values: [][]byte{[]byte("7"), {}, []byte("8")}},
	)
	rep := c.call(tcpwire.Request{Op: tcpwire.OpMultiGet, Keys: []string{"/a", "/new", "/x", "/y", "/missing"}})
	require.Equal(t, [][]byte{[]byte("234"), []byte("56"), []byte("8"), {}, {}}, rep.Values)
	require.EqualValues(t, 1, c.call(tcpwire.Request{Op: tcpwire.OpDeleteKey, Key: "/a"}).N)
	require.EqualValues(t, 0, c.call(tcpwire.Request{Op: tcpwire.OpDeleteKey, Key: "/a"}).N)
	require.EqualValues(t, 4, c.call(of(tcpwire.OpGetNumKeys)).N)
	require.Equal(t, []string{"/b", "/new", "/x", "/y"}, c.call(of(tcpwire.OpListKeys)).Keys)
	require.EqualValues(t, 1, c.call(add("init/", 1)).N)
	require.EqualValues(t, 5, c.call(of(tcpwire.OpGetNumKeys)).N)
	require.Contains(t, c.call(of(tcpwire.OpListKeys)).Keys, "init/")
}

func TestCompareSet(t *testing.T) {
	for _, tc := range []struct {
		there         string
		is            bool
		old, new, now string
	}{
		{"", false, "", "new", "new"},
		{"", false, "old", "new", "old"}, // the expected value, although the key is absent
		{"old", true, "old", "new", "new"},
		{"other", true, "old", "new", "other"},
		{"other", true, "", "new", "other"},
		{"", true, "", "new", "new"},
		{"", true, "old", "new", ""},
		{"old", true, "old", "", ""},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			s := current(t)
			c := s.client(t)
			if tc.is {
				c.send(set("/k", tc.there))
			}
			rep := c.call(tcpwire.Request{Op: tcpwire.OpCompareSet, Key: "/k", Old: []byte(tc.old), Value: []byte(tc.new)})
			require.Equal(t, tc.now, string(rep.Value))
			v, err := s.Get(s.ctx, "k")
			if !tc.is && tc.old != "" {
				require.ErrorIs(t, err, store.ErrNotFound)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.now, string(v))
		})
	}
}

func TestWhatEndsAConnection(t *testing.T) {
	str := func(n uint64) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 0, 0, 0, 0} }
	for name, tc := range map[string]struct {
		sent []byte
		says string
	}{
		"a counter that is no number": {new(client).with(t, set("/n", "x12"), add("/n", 1)), "not a decimal number"},
		"a key that is too long":      {append([]byte{1}, str(8<<10+1)...), "8193 bytes"},
		"a value that is too large":   {append(append([]byte{1}, str(0)...), str(16<<20+1)...), "16777217 bytes"},
		"too many keys":               {append([]byte{6}, str(10_001)...), "10001 keys"},
		"no such operation":           {[]byte{19}, "number 19"},
		"another magic number":        {[]byte{0, 1}, "not a client of PyTorch"},
		"two that wait":               {new(client).with(t, wait("/never"), wait("/never either")), "still waits"},
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

// TestAppendOfNothing checks that an append of nothing makes an empty entry. COMPARE_SET does not
// distinguish an empty value from an absent one.
func TestAppendOfNothing(t *testing.T) {
	s := current(t)
	c := s.client(t)
	appending := tcpwire.Request{Op: tcpwire.OpAppend, Key: "/a"}
	c.send(appending)
	require.EqualValues(t, tcpwire.Ready, c.call(check("/a")).N)
	swap := tcpwire.Request{Op: tcpwire.OpCompareSet, Key: "/a", Value: []byte("1")}
	require.Equal(t, "1", string(c.call(swap).Value))
	v, err := s.Get(s.ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "1", string(v))
}

func TestWait(t *testing.T) {
	s := current(t)
	c, other := s.client(t), s.client(t)
	require.EqualValues(t, tcpwire.StopWaiting, c.call(wait()).N)
	other.send(set("/a", "1"))
	other.works()
	require.EqualValues(t, tcpwire.StopWaiting, c.call(wait("/a")).N)
	c.send(wait("/a", "/b", "/c", "/b"))
	other.send(set("/c", "3"))
	other.works()
	c.silent()
	require.NoError(t, s.Set(s.ctx, "b", nil, nil), "by Go")
	require.EqualValues(t, tcpwire.StopWaiting, c.reply(tcpwire.OpWait, 4).N)
	c.works()
}

// TestSetBehindWait checks that a request to set a key is carried out while the same connection
// waits, as PyTorch's server does.
func TestSetBehindWait(t *testing.T) {
	c := current(t).client(t)
	c.send(wait("/a"), set("/a", "1"))
	require.EqualValues(t, tcpwire.StopWaiting, c.reply(tcpwire.OpWait, 1).N)
	c.works()
}

func TestCancelWait(t *testing.T) {
	s := current(t)
	c := s.client(t)
	cancel := of(tcpwire.OpCancelWait)
	require.EqualValues(t, tcpwire.WaitCanceled, c.call(cancel).N, "nothing waits")
	c.send(wait("/never"))
	require.EqualValues(t, tcpwire.WaitCanceled, c.call(cancel).N)
	c.send(set("/a", "1"), wait("/a"), cancel) // the reply of the wait is already sent
	require.EqualValues(t, tcpwire.StopWaiting, c.reply(tcpwire.OpWait, 1).N)
	require.EqualValues(t, tcpwire.WaitCanceled, c.reply(cancel.Op, 0).N)
	c.works()
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

func TestQueues(t *testing.T) {
	s := current(t)
	c, other := s.client(t), s.client(t)
	push := func(v string) tcpwire.Request {
		return tcpwire.Request{Op: tcpwire.OpQueuePush, Key: "/q", Value: []byte(v)}
	}
	pop, length := tcpwire.Request{Op: tcpwire.OpQueuePop, Key: "/q"}, tcpwire.Request{Op: tcpwire.OpQueueLen, Key: "/q"}
	require.EqualValues(t, 0, c.call(pop).N)
	require.EqualValues(t, 0, c.call(length).N)
	c.send(push("a"), push(""), push("c"))
	require.EqualValues(t, 3, c.call(length).N)
	require.EqualValues(t, tcpwire.Ready, other.call(check("/q")).N)
	require.EqualValues(t, 0, c.call(of(tcpwire.OpGetNumKeys)).N)
	require.Empty(t, c.call(of(tcpwire.OpListKeys)).Keys)
	require.EqualValues(t, 0, c.call(tcpwire.Request{Op: tcpwire.OpDeleteKey, Key: "/q"}).N)
	for i, v := range []string{"a", "", "c"} {
		rep := other.call(pop)
		require.EqualValues(t, 3-i, rep.N)
		require.Equal(t, v, string(rep.Value))
	}
	require.EqualValues(t, tcpwire.NotReady, other.call(check("/q")).N)
	c.send(wait("/q"))
	require.NoError(t, s.Push(s.ctx, "q", []byte("by Go")))
	require.EqualValues(t, tcpwire.StopWaiting, c.reply(tcpwire.OpWait, 1).N)
	require.Equal(t, "by Go", string(c.call(pop).Value))
	c.send(push("by Python"))
	v, err := s.Pop(s.ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "by Python", string(v))
	left := 0
	for _, err := range s.List(s.ctx, "") {
		require.NoError(t, err)
		left++
	}
	require.Zero(t, left)
}

func TestBarrier(t *testing.T) {
	s := current(t)
	b := tcpwire.Request{Op: tcpwire.OpBarrier, Key: "/b", N: 3}
	one, two, three := s.client(t), s.client(t), s.client(t)
	for range 3 { // the name can be used again
		one.send(b)
		one.silent()
		two.send(b)
		require.EqualValues(t, tcpwire.StopWaiting, three.call(b).N)
		for _, c := range []*client{one, two} {
			require.EqualValues(t, tcpwire.StopWaiting, c.reply(b.Op, 0).N)
		}
	}
	require.EqualValues(t, tcpwire.StopWaiting, one.call(tcpwire.Request{Op: tcpwire.OpBarrier, Key: "/alone", N: 1}).N)
	require.Zero(t, s.prefixed(t, ""), "nothing is left of it")
}

// TestBarrierWithoutThoseWhoLeft checks that a client that cancels or disconnects does not count in
// a barrier.
func TestBarrierWithoutThoseWhoLeft(t *testing.T) {
	s := current(t)
	b := tcpwire.Request{Op: tcpwire.OpBarrier, Key: "/b", N: 2}
	one, two, gone := s.client(t), s.client(t), s.client(t)
	one.send(b)
	require.EqualValues(t, tcpwire.WaitCanceled, one.call(of(tcpwire.OpCancelWait)).N)
	gone.send(b)
	gone.silent()
	_ = gone.Close()
	s.Says(t, "connection ended")
	two.send(b)
	two.silent()
	require.EqualValues(t, tcpwire.StopWaiting, one.call(b).N)
	require.EqualValues(t, tcpwire.StopWaiting, two.reply(b.Op, 0).N)
}

func (s *service) prefixed(t *testing.T, prefix string) (n int) {
	for _, err := range s.List(s.ctx, prefix) {
		require.NoError(t, err)
		n++
	}
	return n
}

func TestInPiecesOfAnySize(t *testing.T) {
	s := current(t)
	all := new(client).with(t,
		of(tcpwire.OpValidate), tcpwire.Request{Op: tcpwire.OpPing, N: 7}, set("/a", strings.Repeat("a", 100)),
		tcpwire.Request{Op: tcpwire.OpMultiSet, Keys: []string{"/b", "/c"}, Values: [][]byte{[]byte("b"), []byte("c")}},
		wait("/a", "/b", "/c"), get("/a"))
	for _, size := range []int{1, 2, 3, 4, 5, 7, 64, len(all)} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := s.raw(t)
			for part := range slices.Chunk(all, size) {
				c.write(part)
			}
			require.EqualValues(t, 7, c.reply(tcpwire.OpPing, 0).N)
			require.EqualValues(t, tcpwire.StopWaiting, c.reply(tcpwire.OpWait, 3).N)
			require.Len(t, c.reply(tcpwire.OpGet, 0).Value, 100)
		})
	}
}

// TestStalledClients checks that a client that requests much and reads nothing, and one that sends
// half a message, do not delay other clients.
func TestStalledClients(t *testing.T) {
	s := current(t)
	mute, half, other := s.client(t), s.client(t), s.client(t)
	require.NoError(t, s.Set(s.ctx, "large", make([]byte, 4<<20), nil))
	half.write(half.bytes(set("/half", "value"))[:12])
	var asking sync.WaitGroup
	asking.Go(func() {
		for range 1000 {
			if _, err := mute.Write(new(client).with(t, get("/large"))); err != nil {
				return
			}
		}
	})
	for range 100 {
		other.works()
	}
	_ = mute.Close()
	asking.Wait()
}

func TestShutdownAnswersWhatWasAsked(t *testing.T) {
	s := current(t)
	c, waits := s.client(t), s.client(t)
	waits.send(wait("/never"))
	c.works()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	require.NoError(t, s.Shutdown(ctx))
	c.closed()
	waits.closed()
}

// TestManyJoinAtOnce checks that as many clients as a large job has can connect at the same moment,
// and that none is refused.
func TestManyJoinAtOnce(t *testing.T) {
	const n = 1000
	s := current(t)
	join := new(client).with(t, of(tcpwire.OpValidate), tcpwire.Request{Op: tcpwire.OpPing, N: 7}, add("init/", 1))
	var all sync.WaitGroup
	begin := make(chan struct{})
	errs := make(chan error, n)
	for range n {
		all.Go(func() {
			<-begin
			errs <- func() error {
				c, err := net.Dial("tcp", s.addr)
				if err != nil {
					return err
				}
				defer c.Close()
				if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
					return err
				}
				if _, err := c.Write(join); err != nil {
					return err
				}
				_, err = io.ReadFull(c, make([]byte, 4+8))
				return err
			}()
		})
	}
	close(begin)
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	v, err := s.Get(s.ctx, tcpstore.InitKey)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(n), string(v))
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
