package wire_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

func TestGoldenReplies(t *testing.T) {
	for _, g := range golden.Replies {
		t.Run(g.Name, func(t *testing.T) {
			want := unhex(t, g.Bytes)
			got := wire.AppendReply([]byte("front"), g.Op, g.ID, &g.Reply)
			if string(got) != "front"+string(want) {
				t.Fatalf("got  %x\nwant %x", got[5:], want)
			}
			require.Equal(t, g.Reply, parseReply(t, want))
			if head, ok := wire.AppendReplyHead([]byte("front"), g.Op, g.ID, &g.Reply); ok {
				require.Equal(t, got, append(head, g.Reply.Value...))
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
			Clash: []wire.Contribution{vote, cast}, Waited: 1,
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
	for c := wire.CodeOK; c <= wire.CodeStalled; c++ {
		named(uint16(c), c.String(), "code(")
	}
	clear(seen)
	for op := wire.OpHello; op <= wire.OpStalled; op++ {
		named(uint16(op), op.String(), "op(")
	}
	assert.Equal(t, "code(24)op(41)op(0)", (wire.CodeStalled+1).String()+(wire.OpStalled+1).String()+wire.Op(0).String())
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
