package tcpwire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// feed passes b to next piece by piece. The end must be found with the last byte, and not before.
func feed(t testing.TB, b []byte, next func(b []byte) (int, bool, error)) {
	t.Helper()
	asked := 0
	for n := range b {
		need, whole, err := next(b[:n])
		require.NoError(t, err)
		require.False(t, whole, "of %d bytes %d are there", len(b), n)
		require.Greater(t, need, n)
		require.LessOrEqual(t, need, len(b))
		require.GreaterOrEqual(t, need, asked)
		asked = need
	}
	more := append(bytes.Clone(b), "more"...)
	n, whole, err := next(more)
	require.NoError(t, err)
	require.True(t, whole)
	require.Equal(t, len(b), n)
}

func TestByteByByte(t *testing.T) {
	for _, g := range goldens(t, "requests.txt") {
		var c tcpwire.Cursor
		feed(t, g.bytes, func(b []byte) (int, bool, error) { return tcpwire.NextRequest(b, &c, tcpwire.Limits{}) })
	}
	for _, g := range goldens(t, "replies.txt") {
		var c tcpwire.Cursor
		feed(t, g.bytes, func(b []byte) (int, bool, error) {
			return tcpwire.NextReply(b, g.op, g.keys, &c, tcpwire.Limits{})
		})
	}
}

// TestSaysHowManyBytesItNeeds checks that a reader that waits for the number of bytes that next
// asks for calls it a few times per message, not once for each piece.
func TestSaysHowManyBytesItNeeds(t *testing.T) {
	b, err := tcpwire.AppendRequest(nil, &tcpwire.Request{Op: tcpwire.OpSet, Key: "/k", Value: make([]byte, 1<<20)})
	require.NoError(t, err)
	var c tcpwire.Cursor
	var needs []int
	for n := 0; n < len(b); {
		need, whole, err := tcpwire.NextRequest(b[:n], &c, tcpwire.Limits{})
		require.NoError(t, err)
		require.False(t, whole)
		needs, n = append(needs, need), need
	}
	require.Equal(t, []int{1, 9, 11, 19, len(b)}, needs)
}

// TestStarts checks that a message that is too large, or none of the protocol, is refused by its first
// bytes, before it has arrived.
func TestStarts(t *testing.T) {
	for _, line := range lines(t, "starts.txt") {
		name, line, _ := strings.Cut(line, ": ")
		said, want, _ := strings.Cut(line, " = ")
		b := unhex(t, said)
		_, whole, err := tcpwire.NextRequest(b, new(tcpwire.Cursor), tcpwire.Limits{Key: 4, Value: 6, Keys: 2, Message: 60})
		require.False(t, whole, name)
		if want == "more" {
			require.NoError(t, err, name)
		} else {
			require.EqualError(t, err, want, name)
		}
		if !errors.Is(err, tcpwire.ErrTooLarge) { // Parse has no limits
			require.Error(t, new(tcpwire.Request).Parse(b), name)
		}
	}
}

func TestLimitsOfReplies(t *testing.T) {
	lim := tcpwire.Limits{Key: 4, Value: 6, Keys: 2}
	long := binary.LittleEndian.AppendUint64(nil, 7)
	for op, front := range map[tcpwire.Op]string{
		tcpwire.OpGet: "", tcpwire.OpMultiGet: "", tcpwire.OpListKeys: "", tcpwire.OpQueuePop: string(long),
	} {
		var c tcpwire.Cursor
		_, _, err := tcpwire.NextReply(append([]byte(front), long...), op, 1, &c, lim)
		require.ErrorIs(t, err, tcpwire.ErrTooLarge, op)
		require.ErrorContains(t, err, op.String())
	}
	_, _, err := tcpwire.NextReply(nil, 19, 0, new(tcpwire.Cursor), tcpwire.Limits{})
	require.ErrorIs(t, err, tcpwire.ErrUnknownOp)
}

func TestDefaultLimits(t *testing.T) {
	u64 := func(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) }
	for front, most := range map[string]uint64{
		"\x03": 8 << 10, "\x01" + u64(0): 8 << 20, "\x06": 10_000,
	} {
		var c tcpwire.Cursor
		_, _, err := tcpwire.NextRequest([]byte(front+u64(most)), &c, tcpwire.Limits{})
		require.NoError(t, err)
		_, _, err = tcpwire.NextRequest([]byte(front+u64(most+1)), new(tcpwire.Cursor), tcpwire.Limits{})
		require.ErrorIs(t, err, tcpwire.ErrTooLarge)
	}
}

// TestIsOlder checks that the first messages of clients before torch 2.2 are recognized, and nothing
// else.
func TestIsOlder(t *testing.T) {
	for first, want := range map[string]bool{
		"\x03\x05\x00\x00\x00\x00\x00\x00\x00init/":        true, // ADD
		"\x00\x12\x00\x00\x00\x00\x00\x00\x00/def":         true, // SET
		"\x04\x01\x00\x00\x00\x00\x00\x00\x00\x02":         true, // CHECK
		tcpwire.Preface + "\x0d\x01\x02\x03\x04":           false,
		"GET / HTTP/1.1":                                   false,
		"\x03\x00\x00\x13\x0e\xe0\x00\x00\x00\x00\x00\x01": false, // RDP
		"\x0c\x05\x00\x00\x00\x00\x00\x00\x00init/":        false, // no number of torch 2.1
	} {
		for n := range first {
			yes, more := tcpwire.IsOlder([]byte(first[:n]))
			assert.Equal(t, want && n >= 9, yes, "%q", first[:n])
			assert.False(t, yes && more)
			assert.True(t, !want || yes || more, "%q", first[:n])
		}
		yes, more := tcpwire.IsOlder([]byte(first))
		assert.Equal(t, want, yes, "%q", first)
		assert.False(t, more)
	}
}

func TestParseWantsOneWholeMessage(t *testing.T) {
	var req tcpwire.Request
	require.ErrorIs(t, req.Parse(nil), tcpwire.ErrTruncated)
	for _, g := range goldens(t, "requests.txt") {
		for n := range g.bytes {
			require.ErrorIs(t, req.Parse(g.bytes[:n]), tcpwire.ErrTruncated, "%v: %d of %d", g.op, n, len(g.bytes))
		}
		require.ErrorIs(t, req.Parse(append(g.bytes, 0)), tcpwire.ErrTrailing)
	}
	var rep tcpwire.Reply
	for _, g := range goldens(t, "replies.txt") {
		for n := range g.bytes {
			require.ErrorIs(t, rep.Parse(g.op, g.keys, g.bytes[:n]), tcpwire.ErrTruncated, "%v: %d of %d", g.op, n, len(g.bytes))
		}
		require.ErrorIs(t, rep.Parse(g.op, g.keys, append(g.bytes, 0)), tcpwire.ErrTrailing)
	}
}

// TestParseOfHugeCounts checks that an impossible count allocates nothing.
func TestParseOfHugeCounts(t *testing.T) {
	huge := binary.LittleEndian.AppendUint64(nil, math.MaxUint64)
	for _, number := range []byte{0x05, 0x06, 0x0a, 0x0b} {
		var r tcpwire.Request
		require.ErrorIs(t, r.Parse(append([]byte{number}, huge...)), tcpwire.ErrTruncated)
		assert.Zero(t, cap(r.Keys))
	}
	var r tcpwire.Reply
	require.ErrorIs(t, r.Parse(tcpwire.OpListKeys, 0, huge), tcpwire.ErrTruncated)
	require.ErrorIs(t, r.Parse(tcpwire.OpMultiGet, math.MaxInt, huge), tcpwire.ErrTruncated)
	require.ErrorIs(t, r.Parse(tcpwire.OpMultiGet, math.MaxInt, nil), tcpwire.ErrTruncated)
}

func TestMultiSetNeedsPairs(t *testing.T) {
	_, err := tcpwire.AppendRequest(nil, &tcpwire.Request{Op: tcpwire.OpMultiSet, Keys: []string{"a"}})
	require.ErrorIs(t, err, tcpwire.ErrMismatch)
}

func TestNames(t *testing.T) {
	require.Equal(t, "QUEUE_POP", tcpwire.OpQueuePop.String())
	require.Equal(t, "VALIDATE op(19) op(200)", fmt.Sprint(tcpwire.OpValidate, tcpwire.Op(19), tcpwire.Op(200)))
	require.False(t, tcpwire.Op(200).Answered())
}

// TestAllocatesNothing checks that an open connection allocates nothing for a message.
func TestAllocatesNothing(t *testing.T) {
	var (
		room, answer []byte
		c            tcpwire.Cursor
		req          tcpwire.Request
		rep          tcpwire.Reply
	)
	for _, g := range goldens(t, "requests.txt") {
		sent := wholeRequest(t, g.bytes)
		allocs := testing.AllocsPerRun(100, func() {
			room, _ = tcpwire.AppendRequest(room[:0], &sent)
			n, whole, err := tcpwire.NextRequest(room, &c, tcpwire.Limits{})
			if err != nil || !whole || req.Parse(room[:n]) != nil {
				t.Fatal("a message is lost")
			}
		})
		require.Zero(t, allocs, g.op)
	}
	for _, g := range goldens(t, "replies.txt") {
		sent := wholeReply(t, g.op, g.keys, g.bytes)
		allocs := testing.AllocsPerRun(100, func() {
			answer = tcpwire.AppendReply(answer[:0], g.op, &sent)
			n, whole, err := tcpwire.NextReply(answer, g.op, g.keys, &c, tcpwire.Limits{})
			if err != nil || !whole || rep.Parse(g.op, g.keys, answer[:n]) != nil {
				t.Fatal("a reply is lost")
			}
		})
		require.Zero(t, allocs, g.op)
	}
}
