package tcpwire_test

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	require.NoError(t, err)
	return b
}

// goldenRequests has every operation's request.
var goldenRequests = []struct {
	req   tcpwire.Request
	bytes string
}{
	{tcpwire.Request{Op: tcpwire.OpValidate}, "00 cef7853c"},
	{tcpwire.Request{Op: tcpwire.OpSet, Key: "/k", Value: []byte("v")}, "01 0200000000000000 2f6b | 0100000000000000 76"},
	{tcpwire.Request{Op: tcpwire.OpSet, Key: "", Value: []byte{}}, "01 0000000000000000 | 0000000000000000"},
	{
		tcpwire.Request{Op: tcpwire.OpCompareSet, Key: "/k", Old: []byte("old"), Value: []byte("new!")},
		"02 0200000000000000 2f6b | 0300000000000000 6f6c64 | 0400000000000000 6e657721",
	},
	{tcpwire.Request{Op: tcpwire.OpGet, Key: "/k"}, "03 0200000000000000 2f6b"},
	{tcpwire.Request{Op: tcpwire.OpAdd, Key: tcpwire.InitKey, N: 1}, "04 0500000000000000 696e69742f | 0100000000000000"},
	{tcpwire.Request{Op: tcpwire.OpAdd, Key: "/n", N: -2}, "04 0200000000000000 2f6e | feffffffffffffff"},
	{
		tcpwire.Request{Op: tcpwire.OpCheck, Keys: []string{"/a", "/bb"}},
		"05 0200000000000000 | 0200000000000000 2f61 | 0300000000000000 2f6262",
	},
	{tcpwire.Request{Op: tcpwire.OpWait, Keys: []string{"/a"}}, "06 0100000000000000 | 0200000000000000 2f61"},
	{tcpwire.Request{Op: tcpwire.OpWait, Keys: []string{}}, "06 0000000000000000"},
	{tcpwire.Request{Op: tcpwire.OpGetNumKeys}, "07 "},
	{tcpwire.Request{Op: tcpwire.OpDeleteKey, Key: "/k"}, "08 0200000000000000 2f6b"},
	{tcpwire.Request{Op: tcpwire.OpAppend, Key: "/k", Value: []byte("v")}, "09 0200000000000000 2f6b | 0100000000000000 76"},
	{tcpwire.Request{Op: tcpwire.OpMultiGet, Keys: []string{"/a"}}, "0a 0100000000000000 | 0200000000000000 2f61"},
	{
		tcpwire.Request{Op: tcpwire.OpMultiSet, Keys: []string{"/a", "/b"}, Values: [][]byte{[]byte("1"), {}}},
		"0b 0200000000000000 | 0200000000000000 2f61 0100000000000000 31 | 0200000000000000 2f62 0000000000000000",
	},
	{tcpwire.Request{Op: tcpwire.OpCancelWait}, "0c "},
	{tcpwire.Request{Op: tcpwire.OpPing, N: 0x01020304}, "0d 04030201"},
	{tcpwire.Request{Op: tcpwire.OpQueuePush, Key: "/q", Value: []byte("v")}, "0e 0200000000000000 2f71 | 0100000000000000 76"},
	{tcpwire.Request{Op: tcpwire.OpQueuePop, Key: "/q"}, "0f 0200000000000000 2f71"},
	{tcpwire.Request{Op: tcpwire.OpQueueLen, Key: "/q"}, "10 0200000000000000 2f71"},
	{tcpwire.Request{Op: tcpwire.OpListKeys}, "11 "},
	{tcpwire.Request{Op: tcpwire.OpBarrier, Key: "/b", N: 4}, "12 0200000000000000 2f62 | 0400000000000000"},
}

// goldenReplies has every operation's reply.
var goldenReplies = []struct {
	op    tcpwire.Op
	keys  int
	rep   tcpwire.Reply
	bytes string
}{
	{tcpwire.OpValidate, 0, tcpwire.Reply{}, ""},
	{tcpwire.OpSet, 0, tcpwire.Reply{}, ""},
	{tcpwire.OpCompareSet, 0, tcpwire.Reply{Value: []byte("now")}, "0300000000000000 6e6f77"},
	{tcpwire.OpGet, 0, tcpwire.Reply{Value: []byte{}}, "0000000000000000"},
	{tcpwire.OpAdd, 0, tcpwire.Reply{N: -1}, "ffffffffffffffff"},
	{tcpwire.OpCheck, 2, tcpwire.Reply{N: tcpwire.NotReady}, "01"},
	{tcpwire.OpWait, 1, tcpwire.Reply{N: tcpwire.StopWaiting}, "00"},
	{tcpwire.OpGetNumKeys, 0, tcpwire.Reply{N: 3}, "0300000000000000"},
	{tcpwire.OpDeleteKey, 0, tcpwire.Reply{N: 1}, "0100000000000000"},
	{tcpwire.OpAppend, 0, tcpwire.Reply{}, ""},
	{tcpwire.OpMultiGet, 2, tcpwire.Reply{Values: [][]byte{[]byte("1"), {}}}, "0100000000000000 31 | 0000000000000000"},
	{tcpwire.OpMultiGet, 0, tcpwire.Reply{}, ""},
	{tcpwire.OpMultiSet, 0, tcpwire.Reply{}, ""},
	{tcpwire.OpCancelWait, 0, tcpwire.Reply{N: tcpwire.WaitCanceled}, "01"},
	{tcpwire.OpPing, 0, tcpwire.Reply{N: 0xfffefdfc}, "fcfdfeff"},
	{tcpwire.OpQueuePush, 0, tcpwire.Reply{}, ""},
	{tcpwire.OpQueuePop, 0, tcpwire.Reply{N: 2, Value: []byte("v")}, "0200000000000000 | 0100000000000000 76"},
	{tcpwire.OpQueuePop, 0, tcpwire.Reply{}, "0000000000000000"},
	{tcpwire.OpQueueLen, 0, tcpwire.Reply{N: 9}, "0900000000000000"},
	{tcpwire.OpListKeys, 0, tcpwire.Reply{Keys: []string{"/a", tcpwire.InitKey}}, "0200000000000000 | 0200000000000000 2f61 | 0500000000000000 696e69742f"},
	{tcpwire.OpBarrier, 0, tcpwire.Reply{N: tcpwire.StopWaiting}, "00"},
}

// wholeRequest parses b, which is exactly one request.
func wholeRequest(t testing.TB, b []byte) tcpwire.Request {
	t.Helper()
	var c tcpwire.Cursor
	n, whole, err := tcpwire.NextRequest(b, &c, tcpwire.Limits{})
	require.NoError(t, err)
	require.True(t, whole)
	require.Len(t, b, n)
	require.Zero(t, c)
	var r tcpwire.Request
	require.NoError(t, r.Parse(b))
	return r
}

func wholeReply(t testing.TB, op tcpwire.Op, keys int, b []byte) tcpwire.Reply {
	t.Helper()
	var c tcpwire.Cursor
	n, whole, err := tcpwire.NextReply(b, op, keys, &c, tcpwire.Limits{})
	require.NoError(t, err)
	require.True(t, whole)
	require.Len(t, b, n)
	require.Zero(t, c)
	var r tcpwire.Reply
	require.NoError(t, r.Parse(op, keys, b))
	return r
}

func TestGoldenRequests(t *testing.T) {
	for _, golden := range goldenRequests {
		got, err := tcpwire.AppendRequest([]byte("front"), &golden.req)
		require.NoError(t, err)
		want := unhex(t, golden.bytes)
		require.Equal(t, "front"+string(want), string(got), golden.req.Op)
		assertRequest(t, golden.req, wholeRequest(t, want))
	}
	b, err := tcpwire.AppendRequest([]byte("front"), &tcpwire.Request{Op: 200})
	require.ErrorIs(t, err, tcpwire.ErrUnknownOp)
	require.Equal(t, "front", string(b))
}

// assertRequest compares requests; nil and empty lists are equal.
func assertRequest(t testing.TB, want, got tcpwire.Request) {
	t.Helper()
	want.Keys, want.Values = append([]string{}, want.Keys...), append([][]byte{}, want.Values...)
	got.Keys, got.Values = append([]string{}, got.Keys...), append([][]byte{}, got.Values...)
	assert.Equal(t, want, got)
}

func assertReply(t testing.TB, want, got tcpwire.Reply) {
	t.Helper()
	want.Keys, want.Values = append([]string{}, want.Keys...), append([][]byte{}, want.Values...)
	got.Keys, got.Values = append([]string{}, got.Keys...), append([][]byte{}, got.Values...)
	assert.Equal(t, want, got)
}

func TestGoldenReplies(t *testing.T) {
	for _, golden := range goldenReplies {
		want := unhex(t, golden.bytes)
		require.Equal(t, "front"+string(want), string(tcpwire.AppendReply([]byte("front"), golden.op, &golden.rep)), golden.op)
		require.Equal(t, len(want) > 0 || golden.op == tcpwire.OpMultiGet, golden.op.Answered(), golden.op)
		assertReply(t, golden.rep, wholeReply(t, golden.op, golden.keys, want))
	}
}

// conversation is one line of a recording of torch: the request and reply bytes of one call.
type conversation struct{ call, sent, answered string }

func recorded(t testing.TB) []conversation {
	t.Helper()
	text, err := os.ReadFile("testdata/torch-2.15.txt")
	require.NoError(t, err)
	var all []conversation
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		c := conversation{call: words[0]}
		for _, w := range words[1:] {
			if said, ok := strings.CutPrefix(w, ">"); ok {
				c.sent += string(unhex(t, said))
			} else {
				c.answered += string(unhex(t, w[1:]))
			}
		}
		all = append(all, c)
	}
	return all
}

// TestRecordings checks that the recorded messages of torch's clients and servers parse, and are
// encoded as the same bytes.
func TestRecordings(t *testing.T) {
	seen := map[tcpwire.Op]bool{}
	for _, c := range recorded(t) {
		t.Run(c.call, func(t *testing.T) { replay(t, c, seen) })
	}
	for op := tcpwire.OpValidate; op <= tcpwire.OpBarrier; op++ {
		require.True(t, seen[op], "no %v was recorded", op)
	}
}

func replay(t *testing.T, c conversation, seen map[tcpwire.Op]bool) {
	sent, answered := []byte(c.sent), []byte(c.answered)
	cancelled := strings.HasSuffix(c.call, "_cancelled")
	for len(sent) > 0 {
		var cursor tcpwire.Cursor
		n, whole, err := tcpwire.NextRequest(sent, &cursor, tcpwire.Limits{})
		require.NoError(t, err)
		require.True(t, whole)
		req := wholeRequest(t, sent[:n])
		again, err := tcpwire.AppendRequest(nil, &req)
		require.NoError(t, err)
		require.Equal(t, sent[:n], again)
		sent, seen[req.Op] = sent[n:], true
		if cancelled && req.Op == tcpwire.OpWait {
			continue // the answer is that of CANCEL_WAIT
		}
		n, whole, err = tcpwire.NextReply(answered, req.Op, len(req.Keys), &cursor, tcpwire.Limits{})
		require.NoError(t, err)
		require.True(t, whole)
		rep := wholeReply(t, req.Op, len(req.Keys), answered[:n])
		require.Equal(t, string(answered[:n]), string(tcpwire.AppendReply(nil, req.Op, &rep)))
		answered = answered[n:]
	}
	require.Empty(t, answered)
}
