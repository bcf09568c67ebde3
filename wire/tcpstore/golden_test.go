package tcpstore_test

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire/tcpstore"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	require.NoError(t, err)
	return b
}

// goldenRequests has every operation's request.
var goldenRequests = []struct {
	req   tcpstore.Request
	bytes string
}{
	{tcpstore.Request{Op: tcpstore.OpValidate}, "00 cef7853c"},
	{tcpstore.Request{Op: tcpstore.OpSet, Key: "/k", Value: []byte("v")}, "01 0200000000000000 2f6b | 0100000000000000 76"},
	{tcpstore.Request{Op: tcpstore.OpSet, Key: "", Value: []byte{}}, "01 0000000000000000 | 0000000000000000"},
	{
		tcpstore.Request{Op: tcpstore.OpCompareSet, Key: "/k", Old: []byte("old"), Value: []byte("new!")},
		"02 0200000000000000 2f6b | 0300000000000000 6f6c64 | 0400000000000000 6e657721",
	},
	{tcpstore.Request{Op: tcpstore.OpGet, Key: "/k"}, "03 0200000000000000 2f6b"},
	{tcpstore.Request{Op: tcpstore.OpAdd, Key: tcpstore.InitKey, N: 1}, "04 0500000000000000 696e69742f | 0100000000000000"},
	{tcpstore.Request{Op: tcpstore.OpAdd, Key: "/n", N: -2}, "04 0200000000000000 2f6e | feffffffffffffff"},
	{
		tcpstore.Request{Op: tcpstore.OpCheck, Keys: []string{"/a", "/bb"}},
		"05 0200000000000000 | 0200000000000000 2f61 | 0300000000000000 2f6262",
	},
	{tcpstore.Request{Op: tcpstore.OpWait, Keys: []string{"/a"}}, "06 0100000000000000 | 0200000000000000 2f61"},
	{tcpstore.Request{Op: tcpstore.OpWait, Keys: []string{}}, "06 0000000000000000"},
	{tcpstore.Request{Op: tcpstore.OpGetNumKeys}, "07 "},
	{tcpstore.Request{Op: tcpstore.OpDeleteKey, Key: "/k"}, "08 0200000000000000 2f6b"},
	{tcpstore.Request{Op: tcpstore.OpAppend, Key: "/k", Value: []byte("v")}, "09 0200000000000000 2f6b | 0100000000000000 76"},
	{tcpstore.Request{Op: tcpstore.OpMultiGet, Keys: []string{"/a"}}, "0a 0100000000000000 | 0200000000000000 2f61"},
	{
		tcpstore.Request{Op: tcpstore.OpMultiSet, Keys: []string{"/a", "/b"}, Values: [][]byte{[]byte("1"), {}}},
		"0b 0200000000000000 | 0200000000000000 2f61 0100000000000000 31 | 0200000000000000 2f62 0000000000000000",
	},
	{tcpstore.Request{Op: tcpstore.OpCancelWait}, "0c "},
	{tcpstore.Request{Op: tcpstore.OpPing, N: 0x01020304}, "0d 04030201"},
	{tcpstore.Request{Op: tcpstore.OpQueuePush, Key: "/q", Value: []byte("v")}, "0e 0200000000000000 2f71 | 0100000000000000 76"},
	{tcpstore.Request{Op: tcpstore.OpQueuePop, Key: "/q"}, "0f 0200000000000000 2f71"},
	{tcpstore.Request{Op: tcpstore.OpQueueLen, Key: "/q"}, "10 0200000000000000 2f71"},
	{tcpstore.Request{Op: tcpstore.OpListKeys}, "11 "},
	{tcpstore.Request{Op: tcpstore.OpBarrier, Key: "/b", N: 4}, "12 0200000000000000 2f62 | 0400000000000000"},
}

// goldenReplies has every operation's reply.
var goldenReplies = []struct {
	op    tcpstore.Op
	keys  int
	rep   tcpstore.Reply
	bytes string
}{
	{tcpstore.OpValidate, 0, tcpstore.Reply{}, ""},
	{tcpstore.OpSet, 0, tcpstore.Reply{}, ""},
	{tcpstore.OpCompareSet, 0, tcpstore.Reply{Value: []byte("now")}, "0300000000000000 6e6f77"},
	{tcpstore.OpGet, 0, tcpstore.Reply{Value: []byte{}}, "0000000000000000"},
	{tcpstore.OpAdd, 0, tcpstore.Reply{N: -1}, "ffffffffffffffff"},
	{tcpstore.OpCheck, 2, tcpstore.Reply{N: tcpstore.NotReady}, "01"},
	{tcpstore.OpWait, 1, tcpstore.Reply{N: tcpstore.StopWaiting}, "00"},
	{tcpstore.OpGetNumKeys, 0, tcpstore.Reply{N: 3}, "0300000000000000"},
	{tcpstore.OpDeleteKey, 0, tcpstore.Reply{N: 1}, "0100000000000000"},
	{tcpstore.OpAppend, 0, tcpstore.Reply{}, ""},
	{tcpstore.OpMultiGet, 2, tcpstore.Reply{Values: [][]byte{[]byte("1"), {}}}, "0100000000000000 31 | 0000000000000000"},
	{tcpstore.OpMultiGet, 0, tcpstore.Reply{}, ""},
	{tcpstore.OpMultiSet, 0, tcpstore.Reply{}, ""},
	{tcpstore.OpCancelWait, 0, tcpstore.Reply{N: tcpstore.WaitCanceled}, "01"},
	{tcpstore.OpPing, 0, tcpstore.Reply{N: 0xfffefdfc}, "fcfdfeff"},
	{tcpstore.OpQueuePush, 0, tcpstore.Reply{}, ""},
	{tcpstore.OpQueuePop, 0, tcpstore.Reply{N: 2, Value: []byte("v")}, "0200000000000000 | 0100000000000000 76"},
	{tcpstore.OpQueuePop, 0, tcpstore.Reply{}, "0000000000000000"},
	{tcpstore.OpQueueLen, 0, tcpstore.Reply{N: 9}, "0900000000000000"},
	{tcpstore.OpListKeys, 0, tcpstore.Reply{Keys: []string{"/a", tcpstore.InitKey}}, "0200000000000000 | 0200000000000000 2f61 | 0500000000000000 696e69742f"},
	{tcpstore.OpBarrier, 0, tcpstore.Reply{N: tcpstore.StopWaiting}, "00"},
}

// wholeRequest parses b, which is exactly one request.
func wholeRequest(t testing.TB, b []byte) tcpstore.Request {
	t.Helper()
	var c tcpstore.Cursor
	n, whole, err := tcpstore.NextRequest(b, &c, tcpstore.Limits{})
	require.NoError(t, err)
	require.True(t, whole)
	require.Len(t, b, n)
	require.Zero(t, c)
	var r tcpstore.Request
	require.NoError(t, r.Parse(b))
	return r
}

func wholeReply(t testing.TB, op tcpstore.Op, keys int, b []byte) tcpstore.Reply {
	t.Helper()
	var c tcpstore.Cursor
	n, whole, err := tcpstore.NextReply(b, op, keys, &c, tcpstore.Limits{})
	require.NoError(t, err)
	require.True(t, whole)
	require.Len(t, b, n)
	require.Zero(t, c)
	var r tcpstore.Reply
	require.NoError(t, r.Parse(op, keys, b))
	return r
}

func TestGoldenRequests(t *testing.T) {
	for _, golden := range goldenRequests {
		got, err := tcpstore.AppendRequest([]byte("front"), &golden.req)
		require.NoError(t, err)
		want := unhex(t, golden.bytes)
		require.Equal(t, "front"+string(want), string(got), golden.req.Op)
		assertRequest(t, golden.req, wholeRequest(t, want))
	}
	b, err := tcpstore.AppendRequest([]byte("front"), &tcpstore.Request{Op: 200})
	require.ErrorIs(t, err, tcpstore.ErrUnknownOp)
	require.Equal(t, "front", string(b))
}

// assertRequest compares requests; nil and empty lists are equal.
func assertRequest(t testing.TB, want, got tcpstore.Request) {
	t.Helper()
	want.Keys, want.Values = append([]string{}, want.Keys...), append([][]byte{}, want.Values...)
	got.Keys, got.Values = append([]string{}, got.Keys...), append([][]byte{}, got.Values...)
	assert.Equal(t, want, got)
}

func assertReply(t testing.TB, want, got tcpstore.Reply) {
	t.Helper()
	want.Keys, want.Values = append([]string{}, want.Keys...), append([][]byte{}, want.Values...)
	got.Keys, got.Values = append([]string{}, got.Keys...), append([][]byte{}, got.Values...)
	assert.Equal(t, want, got)
}

func TestGoldenReplies(t *testing.T) {
	for _, golden := range goldenReplies {
		want := unhex(t, golden.bytes)
		require.Equal(t, "front"+string(want), string(tcpstore.AppendReply([]byte("front"), golden.op, &golden.rep)), golden.op)
		require.Equal(t, len(want) > 0 || golden.op == tcpstore.OpMultiGet, golden.op.Answered(), golden.op)
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
	seen := map[tcpstore.Op]bool{}
	for _, c := range recorded(t) {
		t.Run(c.call, func(t *testing.T) { replay(t, c, seen) })
	}
	for op := tcpstore.OpValidate; op <= tcpstore.OpBarrier; op++ {
		require.True(t, seen[op], "no %v was recorded", op)
	}
}

func replay(t *testing.T, c conversation, seen map[tcpstore.Op]bool) {
	sent, answered := []byte(c.sent), []byte(c.answered)
	cancelled := strings.HasSuffix(c.call, "_cancelled")
	for len(sent) > 0 {
		var cursor tcpstore.Cursor
		n, whole, err := tcpstore.NextRequest(sent, &cursor, tcpstore.Limits{})
		require.NoError(t, err)
		require.True(t, whole)
		req := wholeRequest(t, sent[:n])
		again, err := tcpstore.AppendRequest(nil, &req)
		require.NoError(t, err)
		require.Equal(t, sent[:n], again)
		sent, seen[req.Op] = sent[n:], true
		if cancelled && req.Op == tcpstore.OpWait {
			continue // the answer is that of CANCEL_WAIT
		}
		n, whole, err = tcpstore.NextReply(answered, req.Op, len(req.Keys), &cursor, tcpstore.Limits{})
		require.NoError(t, err)
		require.True(t, whole)
		rep := wholeReply(t, req.Op, len(req.Keys), answered[:n])
		require.Equal(t, string(answered[:n]), string(tcpstore.AppendReply(nil, req.Op, &rep)))
		answered = answered[n:]
	}
	require.Empty(t, answered)
}

// TestRecordedValues checks that some calls of the recording have the meaning of their names.
func TestRecordedValues(t *testing.T) {
	for _, c := range recorded(t) {
		switch c.call {
		case "connect":
			require.True(t, strings.HasPrefix(c.sent, tcpstore.Preface))
			ping := wholeRequest(t, []byte(c.sent[len(tcpstore.Preface):]))
			require.Equal(t, int64(0x04030201), ping.N)
		case "add_negative":
			require.Equal(t, int64(-7), wholeRequest(t, []byte(c.sent)).N)
			require.Equal(t, int64(-2), wholeReply(t, tcpstore.OpAdd, 0, []byte(c.answered)).N)
		case "compare_set_other":
			require.Equal(t, "wrong", string(wholeRequest(t, []byte(c.sent)).Old))
			require.Equal(t, "first", string(wholeReply(t, tcpstore.OpCompareSet, 0, []byte(c.answered)).Value))
		case "multi_set":
			require.Equal(t, "22", string(wholeRequest(t, []byte(c.sent)).Values[1]))
		case "check_absent":
			require.Equal(t, int64(tcpstore.NotReady), wholeReply(t, tcpstore.OpCheck, 1, []byte(c.answered)).N)
		case "list_keys":
			require.Contains(t, wholeReply(t, tcpstore.OpListKeys, 0, []byte(c.answered)).Keys, tcpstore.KeyPrefix+"long")
		}
	}
}
