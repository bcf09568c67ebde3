package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// cast and vote are the parts of a contribution that several operations have in common: the rank and
// its call, and its vote.
var (
	cast = wire.Contribution{Generation: 7, Rank: 2, Channel: "c", Seq: 9, Root: -1, Verb: "sum", Type: "i"}
	vote = wire.Contribution{
		Generation: 7, Rank: 2, Channel: "c", Seq: 9, Root: -1, Verb: "sum", Type: "i", Label: "l",
		Want: wire.WantReduced, RootOnly: true, Reduction: wire.Reduction{Op: wire.ReduceMax, Kind: wire.Float64},
	}
)

func TestGoldenRequests(t *testing.T) {
	for _, g := range golden.Requests {
		t.Run(g.Name, func(t *testing.T) {
			require.Equal(t, g.Request.Op.String(), g.Name)
			want := unhex(t, g.Bytes)
			got := wire.AppendRequest([]byte("front"), &g.Request)
			if string(got) != "front"+string(want) {
				t.Fatalf("got  %x\nwant %x", got[5:], want)
			}
			require.Equal(t, g.Request, parseRequest(t, want))
		})
	}
}

// TestWaitsOrChanges checks that an operation that changes state never waits, and that one that
// waits changes no state or is a vote.
func TestWaitsOrChanges(t *testing.T) {
	waits := []wire.Op{wire.OpWait, wire.OpWatch, wire.OpJoin, wire.OpFollow, wire.OpCollect, wire.OpRecv, wire.OpSendReady}
	changes := []wire.Op{
		wire.OpSet, wire.OpAdd, wire.OpSwap, wire.OpAppend, wire.OpDelete, wire.OpLeave, wire.OpSend, wire.OpExpired,
		wire.OpGrant, wire.OpRevoke, wire.OpSkip, wire.OpPush, wire.OpPop, wire.OpCloseChannel,
	}
	for op := range wire.Op(255) {
		assert.Equal(t, slices.Contains(waits, op), op.Waits(), "%v waits", op)
		assert.Equal(t, slices.Contains(changes, op), op.Numbered(), "%v is numbered", op)
	}
}

// TestOthersHaveNoNumber checks that fields which the table does not give to an operation are not
// encoded.
func TestOthersHaveNoNumber(t *testing.T) {
	for op := wire.OpHello; op <= wire.OpStalled; op++ {
		plain := wire.AppendRequest(nil, &wire.Request{Op: op})
		if !op.Numbered() && !bytes.Equal(wire.AppendRequest(nil, &wire.Request{Op: op, Number: 1, Acked: 1}), plain) {
			t.Errorf("%v has a number", op)
		}
		leased := op == wire.OpSet || op == wire.OpKeepAlive || op == wire.OpRevoke
		assert.Equal(t, leased, !bytes.Equal(wire.AppendRequest(nil, &wire.Request{Op: op, Lease: 1}), plain), "%v has a lease", op)
		assert.Equal(t, op == wire.OpHello, !bytes.Equal(wire.AppendRequest(nil, &wire.Request{Op: op, Resume: 1}), plain), "%v resumes", op)
		if !bytes.Equal(wire.AppendRequest(nil, &wire.Request{Op: op, Session: 1}), plain) {
			t.Errorf("%v has a session, which its connection has", op)
		}
	}
}

// TestGoldenComplete checks that no operation is missing in the file: all that can be parsed are there,
// except a relay's (relay_test.go), and those that may have a number are there with one.
func TestGoldenComplete(t *testing.T) {
	have, numbered := map[wire.Op]bool{wire.OpRelay: true, wire.OpVotes: true}, map[wire.Op]bool{}
	for _, g := range golden.Requests {
		have[g.Request.Op] = true
		numbered[g.Request.Op] = numbered[g.Request.Op] || g.Request.Number != 0
	}
	for op := range wire.Op(255) {
		_, err := wire.ParseHeader(wire.AppendHeader(nil, wire.Header{Op: op}), 0)
		if known := err == nil; known != have[op] {
			t.Errorf("%v: known %v, in the file %v", op, known, have[op])
		}
		assert.Equal(t, op.Numbered(), numbered[op], op)
		if !have[op] {
			assert.ErrorIs(t, err, wire.ErrUnknownOp, op)
			assert.ErrorIs(t, new(wire.Request).Parse(wire.Header{Op: op}, nil), wire.ErrUnknownOp, op)
		}
	}
}

func TestPreface(t *testing.T) {
	require.Equal(t, golden.Preface, hex.EncodeToString([]byte(wire.Preface)))
	if wire.Preface[wire.VersionAt] != wire.Version {
		t.Fatal("the last byte is not the version")
	}
}

func parseRequest(t testing.TB, frame []byte) wire.Request {
	t.Helper()
	r, err := parsed(frame)
	require.NoError(t, err)
	require.EqualValues(t, len(frame)-wire.HeaderLen, binary.LittleEndian.Uint32(frame), "the length in the header")
	return r
}

// parsed parses a header, and what follows as its body.
func parsed(frame []byte) (r wire.Request, err error) {
	h, err := wire.ParseHeader(frame, wire.MaxBody)
	if err == nil {
		err = r.Parse(h, frame[wire.HeaderLen:])
	}
	return r, err
}

// vary gives every field that is set in v another random value of its kind.
func vary(r *rand.Rand, v reflect.Value) {
	if v.IsZero() {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			vary(r, field)
		}
	case reflect.Pointer:
		vary(r, v.Elem())
	case reflect.String:
		v.SetString(randomText(r))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(randomText(r)))
			return
		}
		s := reflect.MakeSlice(v.Type(), 1+r.IntN(5), 8)
		for i := range s.Len() {
			s.Index(i).Set(v.Index(i % v.Len()))
			vary(r, s.Index(i))
		}
		v.Set(s)
	case reflect.Int, reflect.Int32:
		v.SetInt(int64(int32(r.Uint32())))
	case reflect.Int64:
		v.SetInt(r.Int64() - r.Int64())
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64()>>(64-v.Type().Bits()) | 1)
	}
}

func randomText(r *rand.Rand) string {
	b := make([]byte, 1+r.IntN(20))
	for i := range b {
		b[i] = byte(r.UintN(256))
	}
	return string(b)
}

func TestRequestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var reused wire.Request
	for range 200 {
		for _, g := range golden.Requests {
			req := g.Request
			op := req.Op
			vary(r, reflect.ValueOf(&req).Elem())
			req.Op, req.Limit = op, max(req.Limit, -req.Limit)
			frame := wire.AppendRequest(nil, &req)
			require.Equal(t, req, parseRequest(t, frame))
			h, _ := wire.ParseHeader(frame, wire.MaxBody)
			if err := reused.Parse(h, frame[wire.HeaderLen:]); err != nil || !reflect.DeepEqual(reused, req) {
				t.Fatalf("into a used one: %+v, %v\nwant %+v", reused, err, req)
			}
		}
	}
}

// TestNilIsNotEmpty checks that nil and empty stay different, in requests and replies.
func TestNilIsNotEmpty(t *testing.T) {
	for _, v := range [][]byte{nil, {}, {0}} {
		req := wire.Request{Op: wire.OpSwap, Key: "k", Value: v, Expect: v}
		require.Equal(t, req, parseRequest(t, wire.AppendRequest(nil, &req)))
		rep := wire.Reply{Value: v, Values: [][]byte{v, v}}
		require.Equal(t, rep, parseReply(t, wire.AppendReply(nil, wire.OpGet, 1, &rep)))
	}
}

// TestRequestOfAnotherLength cuts requests anywhere, in the header too, or appends a byte.
func TestRequestOfAnotherLength(t *testing.T) {
	for _, g := range golden.Requests {
		frame := unhex(t, g.Bytes)
		for n := range frame {
			_, err := parsed(frame[:n:n])
			assert.ErrorIs(t, err, wire.ErrTruncated, "%v cut to %d of %d bytes", g.Request.Op, n, len(frame))
		}
		_, err := parsed(append(frame, 0))
		assert.ErrorIs(t, err, wire.ErrTrailing, g.Request.Op)
	}
}

// TestUnknownFlags checks that a flag which the operation does not have is refused, whatever the
// body.
func TestUnknownFlags(t *testing.T) {
	const value, old, no, number, lease, resume, ttl, stall = 1, 2, 4, 8, 16, 32, 64, 128
	allowed := map[wire.Op]uint8{
		wire.OpHello: value | old | resume, wire.OpCancel: no, wire.OpSet: number | value | lease, wire.OpAdd: number | ttl, wire.OpSwap: number | value | old | ttl,
		wire.OpAppend: number | value | ttl, wire.OpDelete: number, wire.OpJoin: value | old, wire.OpLeave: number | no, wire.OpCollect: value | no | stall,
		wire.OpSend: number | value, wire.OpExpired: number, wire.OpPush: number | value, wire.OpPop: number, wire.OpCloseChannel: number, wire.OpGrant: number, wire.OpKeepAlive: lease,
		wire.OpRevoke: number | lease, wire.OpSkip: number, wire.OpProof: value, wire.OpLost: value, wire.OpStacks: value, wire.OpStalled: value,
	}
	for _, g := range golden.Requests {
		frame := unhex(t, g.Bytes)
		h, _ := wire.ParseHeader(frame, wire.MaxBody)
		for bit := range 8 {
			h.Flags = 1 << bit
			var r wire.Request
			err := r.Parse(h, frame[wire.HeaderLen:])
			assert.NotEqual(t, allowed[h.Op]&h.Flags != 0, errors.Is(err, wire.ErrFlags), "%v with flag %#x: %v", h.Op, h.Flags, err)
		}
	}
}

func TestRequestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		err   error
	}{
		"a code":             {"05000000 05 00 0100 0100000000000000 | 01000000 6b", wire.ErrFlags},
		"a cut number":       {"0f000000 1b 08 0000 0100000000000000 |" + strings.Repeat("01", 15), wire.ErrTruncated},
		"a number unasked":   {"10000000 1b 00 0000 0100000000000000 |" + strings.Repeat("01", 16), wire.ErrTrailing},
		"a token too long":   {"10000000 01 01 0000 0100000000000000 | 0000000000000000 00000000 01000001", wire.ErrTooLarge},
		"a nonce too long":   {"10000000 01 02 0000 0100000000000000 | 0000000000000000 00000000 01000001", wire.ErrTooLarge},
		"a proof too long":   {"04000000 1d 01 0000 0100000000000000 | 01000001", wire.ErrTooLarge},
		"a bool of 2":        {"2a000000 11 00 0000 0100000000000000 |" + strings.Repeat("00", 8+12+4+8+4+4+4+4+4) + "02 00 00", wire.ErrFlags},
		"a no that is ok":    {"12000000 0f 04 0000 0100000000000000 |" + strings.Repeat("00", 12) + "0000 00000000", wire.ErrFlags},
		"a key too long":     {"04000000 05 00 0000 0100000000000000 | 01200000", wire.ErrTooLarge},
		"a value too long":   {"14000000 06 01 0000 0100000000000000 | 00000000 01000001" + strings.Repeat("00", 12), wire.ErrTooLarge},
		"more keys than fit": {"04000000 0b 00 0000 0100000000000000 | ffffffff", wire.ErrTruncated},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parsed(unhex(t, c.bytes))
			require.ErrorIs(t, err, c.err)
		})
	}
}

func TestLimits(t *testing.T) {
	name, value := strings.Repeat("n", wire.MaxKey), make([]byte, wire.MaxValue)
	for _, over := range []int{0, 1} {
		want := []error{nil, wire.ErrTooLarge}[over]
		for what, req := range map[string]wire.Request{
			"key":     {Op: wire.OpGet, Key: name + "n"[:over]},
			"keys":    {Op: wire.OpWait, Keys: []string{name + "n"[:over]}},
			"count":   {Op: wire.OpDelete, Keys: make([]string, wire.MaxKeys+over)},
			"value":   {Op: wire.OpSet, Value: append(value, 0)[:wire.MaxValue+over]},
			"who":     {Op: wire.OpHello, Key: name + "n"[:over]},
			"token":   {Op: wire.OpHello, Value: append(value, 0)[:wire.MaxValue+over]},
			"old":     {Op: wire.OpSwap, Expect: append(value, 0)[:wire.MaxValue+over]},
			"group":   {Op: wire.OpJoin, Group: wire.Contribution{Group: name + "n"[:over]}},
			"run":     {Op: wire.OpJoin, Group: wire.Contribution{Run: name + "n"[:over]}},
			"channel": {Op: wire.OpCollect, Group: wire.Contribution{Channel: name + "n"[:over]}},
			"verb":    {Op: wire.OpCollect, Group: wire.Contribution{Verb: name + "n"[:over]}},
			"type":    {Op: wire.OpSend, Group: wire.Contribution{Type: name + "n"[:over]}},
			"phase":   {Op: wire.OpProgress, Phase: wire.Phase{Name: name[:wire.MaxPhase] + "n"[:over]}},
			"label":   {Op: wire.OpCollect, Group: wire.Contribution{Label: name + "n"[:over]}},
			"reason":  {Op: wire.OpLeave, Group: wire.Contribution{No: wire.CodeAborted, Reason: name + "n"[:over]}},
		} {
			_, err := parsed(wire.AppendRequest(nil, &req))
			assert.ErrorIs(t, err, want, "%s, %d over the limit", what, over)
		}
	}
}

func TestHeader(t *testing.T) {
	h := wire.Header{Len: 0x01020304, Op: wire.OpGet, Flags: 0x55, Code: 0x0607, ID: 0x08090a0b0c0d0e0f}
	b := wire.AppendHeader(nil, h)
	if got, want := hex.EncodeToString(b), "0403020105550706"+"0f0e0d0c0b0a0908"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	got, err := wire.ParseHeader(b, h.Len)
	require.NoError(t, err)
	require.Equal(t, h, got)
	_, err = wire.ParseHeader(b, h.Len-1)
	require.ErrorIs(t, err, wire.ErrTooLarge)
	wire.Readdress(b, wire.OpSet, 77)
	h.Op, h.ID = wire.OpSet, 77
	got, err = wire.ParseHeader(b, h.Len)
	require.NoError(t, err)
	require.Equal(t, h, got)
}
