package wire_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

var goldenReplies = []struct {
	name  string
	op    wire.Op
	rep   wire.Reply
	bytes string
}{
	{"nothing", wire.OpSet, wire.Reply{}, "00000000 06 00 0000 0500000000000000"},
	{"code", wire.OpGet, wire.Reply{Code: wire.CodeNotFound}, "00000000 05 00 0100 0500000000000000"},
	{"numbers", wire.OpAdd, wire.Reply{Rev: 3, N: -1}, "10000000 08 01 0000 0500000000000000 | 0300000000000000 ffffffffffffffff"},
	{"detail", wire.OpAdd, wire.Reply{Code: wire.CodeInvalid, Detail: "x"}, "05000000 08 02 0d00 0500000000000000 | 01000000 78"},
	{"value", wire.OpGet, wire.Reply{Value: []byte("v")}, "05000000 05 04 0000 0500000000000000 | 01000000 76"},
	{
		"values", wire.OpWait,
		wire.Reply{Values: [][]byte{[]byte("v"), nil, {}}},
		"11000000 07 08 0000 0500000000000000 | 03000000  01000000 76  ffffffff  00000000",
	},
	{
		"welcome", wire.OpHello,
		wire.Reply{Rev: 0x0102030405060708, N: 3, Value: []byte("tok"), Nums: []int64{1, int64(500 * time.Millisecond)}},
		"2b000000 01 25 0000 0500000000000000 | 0807060504030201 0300000000000000  03000000 746f6b" +
			"02000000 0100000000000000 0065cd1d00000000",
	},
	{
		"proved welcome", wire.OpHello,
		wire.Reply{Rev: 1, N: 3, Value: []byte("tok"), Values: [][]byte{[]byte("p")}},
		"20000000 01 0d 0000 0500000000000000 | 0100000000000000 0300000000000000  03000000 746f6b  01000000  01000000 70",
	},
	{"question", wire.OpProof, wire.Reply{Value: []byte("nonce")}, "09000000 1d 04 0000 0500000000000000 | 05000000 6e6f6e6365"},
	{"probe", wire.OpProbe, wire.Reply{}, "00000000 1c 00 0000 0500000000000000"},
	{"no room", wire.OpSend, wire.Reply{Code: wire.CodeWouldBlock}, "00000000 12 00 1400 0500000000000000"},
	{"failed", wire.OpCollect, wire.Reply{Code: wire.CodeFailed}, "00000000 11 00 1500 0500000000000000"},
	{"lease", wire.OpGrant, wire.Reply{N: 9}, "10000000 18 01 0000 0500000000000000 | 0000000000000000 0900000000000000"},
	{
		"popped", wire.OpPop,
		wire.Reply{Rev: 9, N: 2, Value: []byte("v")},
		"15000000 23 05 0000 0500000000000000 | 0900000000000000 0200000000000000  01000000 76",
	},
	{
		"missing keys", wire.OpWait,
		wire.Reply{Code: wire.CodeTimeout, Keys: []string{"a", ""}},
		"0d000000 07 10 0500 0500000000000000 | 02000000  01000000 61  00000000",
	},
	{
		"changes", wire.OpWatch,
		wire.Reply{Rev: 9, Values: [][]byte{nil}, Keys: []string{"k"}, Nums: []int64{9, int64(wire.ChangeExpire)}},
		"35000000 0d 39 0000 0500000000000000 | 0900000000000000 0000000000000000  01000000 ffffffff  01000000 01000000 6b" +
			"02000000 0900000000000000 0200000000000000",
	},
	{
		"formed", wire.OpJoin,
		wire.Reply{Rev: 9, N: 2, Values: [][]byte{[]byte("a"), []byte("b")}, Nums: []int64{2, 0, 1, 255, 0, 2, 1}},
		"5a000000 0e 29 0000 0500000000000000 | 0900000000000000 0200000000000000  02000000 01000000 61 01000000 62" +
			"07000000 0200000000000000 0000000000000000 0100000000000000 ff00000000000000" +
			"0000000000000000 0200000000000000 0100000000000000",
	},
	{
		"message", wire.OpRecv,
		wire.Reply{Value: []byte{}, Type: "t"},
		"09000000 13 44 0000 0500000000000000 | 00000000  01000000 74",
	},
	{
		"failure", wire.OpCollect,
		wire.Reply{Code: wire.CodeTimeout, Failure: &wire.Failure{
			Code: wire.CodeTimeout, By: -1, Waited: time.Microsecond, Reason: "r", Missing: []int{1}, Doing: []string{"d"},
			Lost: []int{2, 3}, Left: []int{4},
		}},
		"39000000 11 80 0500 0500000000000000 | 0500 ffffffff e803000000000000  01000000 72" +
			"01000000 01000000  01000000 01000000 64  02000000 02000000 03000000  01000000 04000000  00",
	},
	{
		"clash", wire.OpCollect,
		wire.Reply{Code: wire.CodeMismatch, Failure: &wire.Failure{
			Code: wire.CodeMismatch, By: -1, Clash: []wire.Contribution{vote, member},
		}},
		"87000000 11 80 0e00 0500000000000000 | 0e00 ffffffff 0000000000000000  00000000  00000000 00000000 00000000 00000000  02" +
			"0700000000000000 02000000  01000000 63  0900000000000000  ffffffff  03000000 73756d  01000000 69  01000000 6c  fcffffff  01  04 06" +
			"0700000000000000 02000000  00000000  0000000000000000  00000000  00000000  00000000  00000000  00000000  00  00 00",
	},
	{
		"status", wire.OpStatus,
		statusReply(),
		"38030000 21 34 0000 0500000000000000 |" +
			"0503000001e60000000100000000000000010200000000000000030000000000000004000000000000000500000000000000060000000000" +
			"0000070000000000000008000000000000000200000000000000000000000900000000000000010000000a000000000000000b0000000000" +
			"00000c000000000000000d000000000000000e000000000000000f0000000000000010000000000000001100000000000000120000000000" +
			"0000130000000000000014000000000000001500000000000000010000001600000000000000170000000000000018000000000000001900000000000000" +
			"0500000065706f6c6c" +
			"07330000000103000000613a311a000000000000001b000000000000000100000003000000623a311c000000000000001d00000000000000" +
			"0284" +
			"000000010000007207000000000000000500000004000000010000000c00000000000000ffffffffffffffff010000000000000000000000" +
			"00000000000d000000000000000500ffffffff00ca9a3b0000000001000000780100000002000000010000000a000000696e206e6f206361" +
			"6c6c0100000003000000010000000400000000010000000356000000000000000a0000007069642031206f6e20610e000000000000000400" +
			"04000000726563760f000000000000001000000000000000ffffffffffffffff010400000072656376010000000100000074110000000000" +
			"00000454000000010000006312000000000000000700000062617272696572ffffffff130000000000000014000000000000000300000002" +
			"0000000000000001000000040000000400000001000000010000000200000002000000056100000001000000631100000000000000060000" +
			"0067617468657215000000000000000500ffffffff00ca9a3b0000000001000000780100000002000000010000000a000000696e206e6f20" +
			"63616c6c01000000030000000100000004000000000000000002290000000000000000000000000000000100000000000000000000000000" +
			"000000000000160000000000000000060c0000001700000018000000000000000300000005000000747261696e0100000062050000007265" +
			"6164790200000008000000000000000004000000000000",
	},
}

func TestGoldenReplies(t *testing.T) {
	for _, g := range goldenReplies {
		t.Run(g.name, func(t *testing.T) {
			want := unhex(t, g.bytes)
			got := wire.AppendReply([]byte("front"), g.op, 5, &g.rep)
			if string(got) != "front"+string(want) {
				t.Fatalf("got  %x\nwant %x", got[5:], want)
			}
			require.Equal(t, g.rep, parseReply(t, want))
			if head, ok := wire.AppendReplyHead([]byte("front"), g.op, 5, &g.rep); ok {
				require.Equal(t, got, append(head, g.rep.Value...))
			}
		})
	}
}

func parseReply(t testing.TB, frame []byte) wire.Reply {
	t.Helper()
	h, err := wire.ParseHeader(frame, wire.MaxReply)
	require.NoError(t, err)
	var r wire.Reply
	require.NoError(t, r.Parse(h, frame[wire.HeaderLen:]))
	return r
}

// everyPart returns a reply with all possible parts, for vary.
func everyPart() wire.Reply {
	return wire.Reply{
		Code: 1, Detail: "d", Rev: 1, N: 1, Value: []byte("v"), Values: [][]byte{[]byte("v"), nil}, Keys: []string{"k"}, Nums: []int64{1},
		Type: "t", Failure: &wire.Failure{
			Code: 1, Missing: []int{1}, Doing: []string{"d"}, Lost: []int{1}, Left: []int{1}, By: 1, Reason: "r",
			Clash: []wire.Contribution{vote, member}, Waited: 1,
		},
	}
}

// TestReplyRoundTrip encodes replies with each set of parts, and random contents.
func TestReplyRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 1 << 10 {
		rep := everyPart()
		v := reflect.ValueOf(&rep).Elem()
		for i := range v.NumField() {
			if round>>i&1 == 0 {
				v.Field(i).SetZero()
			}
		}
		vary(r, v)
		require.Equal(t, rep, parseReply(t, wire.AppendReply(nil, wire.OpWait, r.Uint64(), &rep)))
	}
}

func TestReplyTruncated(t *testing.T) {
	rep := everyPart()
	frame := wire.AppendReply(nil, wire.OpWait, 1, &rep)
	h, _ := wire.ParseHeader(frame, wire.MaxReply)
	body := frame[wire.HeaderLen:]
	for n := range body {
		var r wire.Reply
		assert.ErrorIs(t, r.Parse(h, body[:n:n]), wire.ErrTruncated, "cut to %d of %d bytes", n, len(body))
	}
	var r wire.Reply
	assert.ErrorIs(t, r.Parse(h, append(body, 0)), wire.ErrTrailing)
}

// TestCounts checks that a count of elements which exceeds the data allocates nothing for them.
func TestCounts(t *testing.T) {
	body := []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}
	for name, parse := range map[string]func() error{
		"keys":     func() error { return new(wire.Request).Parse(wire.Header{Op: wire.OpDelete}, body) },
		"values":   func() error { return new(wire.Reply).Parse(wire.Header{Op: wire.OpGet, Flags: 8}, body) },
		"reply":    func() error { return new(wire.Reply).Parse(wire.Header{Op: wire.OpGet, Flags: 16}, body) },
		"numbers":  func() error { return new(wire.Reply).Parse(wire.Header{Op: wire.OpGet, Flags: 32}, body) },
		"a value":  func() error { return new(wire.Reply).Parse(wire.Header{Op: wire.OpGet, Flags: 4}, body) },
		"a detail": func() error { return new(wire.Reply).Parse(wire.Header{Op: wire.OpGet, Flags: 2}, body) },
		"parts":    func() error { _, err := wire.ParseParts(body, 1<<32-1); return err },
	} {
		if allocs := testing.AllocsPerRun(10, func() {
			if parse() == nil {
				t.Errorf("%s: no error", name)
			}
		}); allocs > 2 { // the request or reply itself
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// TestCountsOfElements checks the same for a count that has enough bytes, but not for so many
// elements.
func TestCountsOfElements(t *testing.T) {
	const n = 1 << 20
	body := make([]byte, 4+n)
	binary.LittleEndian.PutUint32(body, n/2) // half a million numbers of 8 bytes in a million bytes
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := new(wire.Reply).Parse(wire.Header{Op: wire.OpGet, Flags: 32}, body)
	runtime.ReadMemStats(&after)
	assert.ErrorIs(t, err, wire.ErrTruncated)
	if took := after.TotalAlloc - before.TotalAlloc; took > n {
		t.Errorf("%d bytes of memory for %d numbers that are not there", took, n/2)
	}
}

func TestParts(t *testing.T) {
	for _, parts := range [][][]byte{{}, {nil}, {{}}, {[]byte("a"), nil, {}, []byte(strings.Repeat("b", 300))}} {
		b := wire.AppendParts([]byte("x"), parts)[1:]
		back, err := wire.ParseParts(b, len(parts))
		require.NoError(t, err)
		assert.Equal(t, parts, back)
		for n := range b {
			if _, err := wire.ParseParts(b[:n:n], len(parts)); !errors.Is(err, wire.ErrTruncated) {
				t.Errorf("cut to %d of %d bytes: %v", n, len(b), err)
			}
		}
		if _, err := wire.ParseParts(append(b, 0), len(parts)); !errors.Is(err, wire.ErrTrailing) {
			t.Errorf("a byte more: %v", err)
		}
		if _, err := wire.ParseParts(b, len(parts)+1); err == nil {
			t.Errorf("%d parts for %d", len(parts), len(parts)+1)
		}
	}
}

// TestParsedCannotGrowIntoNeighbours checks that appending to a parsed value that aliases a buffer
// does not write into the buffer.
func TestParsedCannotGrowIntoNeighbours(t *testing.T) {
	req := wire.Request{Op: wire.OpSwap, Key: "k", Value: []byte("v"), Expect: []byte("old")}
	back := parseRequest(t, wire.AppendRequest(nil, &req))
	_ = append(back.Value, "xxxxxxxx"...)
	require.Equal(t, req, back)
}

// TestHotPathAllocates checks that the hot path allocates nothing, with buffers that are reused.
func TestHotPathAllocates(t *testing.T) {
	var (
		buf  []byte
		into wire.Request
		rep  wire.Reply
	)
	requests := []wire.Request{
		{Op: wire.OpGet, Key: "key"},
		{Op: wire.OpSet, Key: "key", Value: make([]byte, 100), TTL: 1},
		{Op: wire.OpWait, Keys: []string{"a", "b"}},
		{Op: wire.OpAdd, Key: "key", Add: 1},
		{Op: wire.OpAdd, Number: 2, Acked: 1, Key: "key", Add: 1},
		{Op: wire.OpDelete, Number: 2, Acked: 1, Keys: []string{"a", "b"}},
		{Op: wire.OpKeepAlive, Lease: 1},
		{Op: wire.OpSend, Value: make([]byte, 100), Group: cast},
		{Op: wire.OpRecv, Group: cast},
		{Op: wire.OpCollect, Value: make([]byte, 100), Group: vote},
	}
	for i := range requests {
		nothing(t, "request "+requests[i].Op.String(), func() error {
			buf = wire.AppendRequest(buf[:0], &requests[i])
			h, err := wire.ParseHeader(buf, wire.MaxBody)
			return errors.Join(err, into.Parse(h, buf[wire.HeaderLen:]))
		})
	}
	replies := []wire.Reply{{}, {Rev: 1, N: 2}, {Value: make([]byte, 100)}, {Value: make([]byte, 100), Type: "t"}, {Code: wire.CodeNotFound}}
	for i := range replies {
		nothing(t, "reply", func() error {
			buf = wire.AppendReply(buf[:0], wire.OpCollect, 7, &replies[i])
			h, err := wire.ParseHeader(buf, wire.MaxReply)
			return errors.Join(err, rep.Parse(h, buf[wire.HeaderLen:]))
		})
	}
}

// nothing asserts that f allocates nothing after its first run.
func nothing(t *testing.T, what string, f func() error) {
	t.Helper()
	require.NoError(t, f(), what)
	if n := testing.AllocsPerRun(100, func() { _ = f() }); n != 0 {
		t.Errorf("%s: %v allocations", what, n)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	named := func(what uint16, name, unknown string) {
		if name == "" || seen[name] || strings.HasPrefix(name, unknown) {
			t.Errorf("%d is %q", what, name)
		}
		seen[name] = true
	}
	for c := wire.CodeOK; c <= wire.CodeSkipped; c++ {
		named(uint16(c), c.String(), "code(")
	}
	clear(seen)
	for op := wire.OpHello; op <= wire.OpStacks; op++ {
		named(uint16(op), op.String(), "op(")
	}
	assert.Equal(t, "code(23)op(39)op(0)", (wire.CodeSkipped+1).String()+(wire.OpStacks+1).String()+wire.Op(0).String())
	assert.Equal(t, "code(999)op(99)", wire.Code(999).String()+wire.Op(99).String())
}

func TestFold(t *testing.T) {
	for op := range wire.ReduceOp(255) {
		for kind := range wire.NumberKind(255) {
			want := op >= wire.ReduceSum && op <= wire.ReduceMax && kind >= wire.Int32 && kind <= wire.Float64
			if got := (wire.Reduction{Op: op, Kind: kind}).Valid(); got != want {
				t.Fatalf("fold %d of kind %d: valid is %v", op, kind, got)
			}
			require.Equal(t, kind >= wire.Int32 && kind <= wire.Float64, kind.Size() > 0, "kind %d has size %d", kind, kind.Size())
		}
	}
}
