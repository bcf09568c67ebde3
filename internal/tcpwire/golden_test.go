package tcpwire_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	require.NoError(t, err)
	return b
}

// golden is a line of testdata: the bytes of a request or of the reply to one, and what they say.
type golden struct {
	op    tcpwire.Op
	keys  int // of the request
	bytes []byte
	says  string
}

// goldens returns the messages of a file in testdata.
func goldens(t testing.TB, file string) (all []golden) {
	t.Helper()
	for _, line := range lines(t, file) {
		var g golden
		_, err := fmt.Sscanf(line, "%d of %d keys:", &g.op, &g.keys)
		require.NoError(t, err, line)
		_, line, _ = strings.Cut(line, ":")
		said, says, _ := strings.Cut(line, " = ")
		g.bytes, g.says = unhex(t, said), says
		all = append(all, g)
	}
	return all
}

// lines returns the lines of a file in testdata that are no comments.
func lines(t testing.TB, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	return all
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
	for _, g := range goldens(t, "requests.txt") {
		r := wholeRequest(t, g.bytes)
		require.Equal(t, []any{g.op, g.keys}, []any{r.Op, len(r.Keys)})
		require.Equal(t, g.says, fmt.Sprintf("%v: key %q, keys %q, old %q, value %q, values %q, number %d", r.Op, r.Key, r.Keys, r.Old, r.Value, r.Values, r.N))
		got, err := tcpwire.AppendRequest([]byte("front"), &r)
		require.NoError(t, err)
		require.Equal(t, "front"+string(g.bytes), string(got), g.op)
	}
	b, err := tcpwire.AppendRequest([]byte("front"), &tcpwire.Request{Op: 200})
	require.ErrorIs(t, err, tcpwire.ErrUnknownOp)
	require.Equal(t, "front", string(b))
}

func TestGoldenReplies(t *testing.T) {
	for _, g := range goldens(t, "replies.txt") {
		r := wholeReply(t, g.op, g.keys, g.bytes)
		require.Equal(t, g.says, fmt.Sprintf("%v: keys %q, value %q, values %q, number %d", g.op, r.Keys, r.Value, r.Values, r.N))
		require.Equal(t, "front"+string(g.bytes), string(tcpwire.AppendReply([]byte("front"), g.op, &r)), g.op)
		require.Equal(t, len(g.bytes) > 0 || g.op == tcpwire.OpMultiGet, g.op.Answered(), g.op)
	}
}

// conversation is one line of a recording of torch: the request and reply bytes of one call.
type conversation struct{ call, sent, answered string }

func recorded(t testing.TB) []conversation {
	t.Helper()
	var all []conversation
	for _, line := range lines(t, "torch-2.15.txt") {
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
