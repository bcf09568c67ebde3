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
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// member, cast and vote are the parts of a contribution that several operations have in common: the
// rank, its call, and its vote.
var (
	member = wire.Contribution{Generation: 7, Rank: 2}
	cast   = wire.Contribution{Generation: 7, Rank: 2, Channel: "c", Seq: 9, Root: -1, Verb: "sum", Type: "i"}
	vote   = wire.Contribution{
		Generation: 7, Rank: 2, Channel: "c", Seq: 9, Root: -1, Verb: "sum", Type: "i", Label: "l",
		Want: wire.WantReduced, RootOnly: true, Reduction: wire.Reduction{Op: wire.ReduceMax, Kind: wire.Float64},
	}
)

// goldenRequests has every operation with all its fields, and its bytes as in
// docs/reference/protocol.md. Requests that may be numbered are here without a number; TestNumbered
// tests them with one.
var goldenRequests = []struct {
	req   wire.Request
	bytes string
}{
	{wire.Request{Op: wire.OpHello, ID: 1, Key: "me"}, "0e000000 01 00 0000 0100000000000000 | 0000000000000000 02000000 6d65"},
	{
		wire.Request{Op: wire.OpHello, ID: 1, Key: "me", Token: []byte("nonce"), Timeout: time.Second},
		"17000000 01 02 0000 0100000000000000 | 00ca9a3b00000000 02000000 6d65  05000000 6e6f6e6365",
	},
	{
		wire.Request{Op: wire.OpHello, ID: 1, Key: "me", Value: []byte("tok"), Token: []byte("nonce"), Resume: 3, Incarnation: 0x0102030405060708},
		"2e000000 01 23 0000 0100000000000000 | 0000000000000000 02000000 6d65  03000000 746f6b  05000000 6e6f6e6365  0300000000000000 0807060504030201",
	},
	{wire.Request{Op: wire.OpGoodbye, ID: 2}, "00000000 02 00 0000 0200000000000000"},
	{wire.Request{Op: wire.OpCancel, ID: 3}, "00000000 03 00 0000 0300000000000000"},
	{wire.Request{Op: wire.OpCancel, ID: 3, Group: wire.Contribution{No: wire.CodeTimeout, Reason: "w"}}, "07000000 03 04 0000 0300000000000000 | 0500 01000000 77"},
	{wire.Request{Op: wire.OpPing, ID: 4}, "00000000 04 00 0000 0400000000000000"},
	{wire.Request{Op: wire.OpGet, ID: 0x0102030405060708, Key: "k"}, "05000000 05 00 0000 0807060504030201 | 01000000 6b"},
	{
		wire.Request{Op: wire.OpSet, ID: 6, Key: "k", Value: []byte("v"), TTL: time.Second},
		"12000000 06 01 0000 0600000000000000 | 01000000 6b  01000000 76  00ca9a3b00000000",
	},
	{
		wire.Request{Op: wire.OpSet, ID: 6, Key: "k", Value: []byte{}, Lease: 9},
		"19000000 06 11 0000 0600000000000000 | 01000000 6b  00000000  0000000000000000  0900000000000000",
	},
	{
		wire.Request{Op: wire.OpSet, ID: 6, Number: 4, Acked: 3, Key: "k", Value: []byte("v"), TTL: time.Second, Lease: 9},
		"2a000000 06 19 0000 0600000000000000 | 0400000000000000 0300000000000000" +
			"01000000 6b  01000000 76  00ca9a3b00000000  0900000000000000",
	},
	{
		wire.Request{Op: wire.OpWait, ID: 7, Timeout: time.Microsecond, Keys: []string{"a", ""}},
		"15000000 07 00 0000 0700000000000000 | e803000000000000  02000000  01000000 61  00000000",
	},
	{
		wire.Request{Op: wire.OpAdd, ID: 8, Key: "n", Add: -2},
		"0d000000 08 00 0000 0800000000000000 | 01000000 6e  feffffffffffffff",
	},
	{
		wire.Request{Op: wire.OpAdd, ID: 8, Number: 1, Key: "n", Add: -2},
		"1d000000 08 08 0000 0800000000000000 | 0100000000000000 0000000000000000  01000000 6e  feffffffffffffff",
	},
	{
		wire.Request{Op: wire.OpSwap, ID: 9, Key: "k", Value: []byte("new"), Expect: []byte{}},
		"10000000 09 03 0000 0900000000000000 | 01000000 6b  03000000 6e6577  00000000",
	},
	{
		wire.Request{Op: wire.OpAppend, ID: 10, Key: "k", Value: []byte("v")},
		"0a000000 0a 01 0000 0a00000000000000 | 01000000 6b  01000000 76",
	},
	{
		wire.Request{Op: wire.OpAdd, ID: 8, Key: "n", Add: -2, TTL: 2},
		"15000000 08 40 0000 0800000000000000 | 01000000 6e  feffffffffffffff  0200000000000000",
	},
	{
		wire.Request{Op: wire.OpSwap, ID: 9, Key: "k", Value: []byte("new"), Expect: []byte{}, TTL: 2},
		"18000000 09 43 0000 0900000000000000 | 01000000 6b  03000000 6e6577  00000000  0200000000000000",
	},
	{
		wire.Request{Op: wire.OpAppend, ID: 10, Key: "k", Value: []byte("v"), TTL: 2},
		"12000000 0a 41 0000 0a00000000000000 | 01000000 6b  01000000 76  0200000000000000",
	},
	{wire.Request{Op: wire.OpDelete, ID: 11, Keys: []string{"a"}}, "09000000 0b 00 0000 0b00000000000000 | 01000000  01000000 61"},
	{
		wire.Request{Op: wire.OpList, ID: 12, Key: "p", Keys: []string{"a"}, Limit: 3},
		"16000000 0c 00 0000 0c00000000000000 | 01000000 70  01000000  01000000 61  0300000000000000",
	},
	{
		wire.Request{Op: wire.OpWatch, ID: 13, Timeout: 1, Key: "p", After: 5},
		"15000000 0d 00 0000 0d00000000000000 | 0100000000000000  01000000 70  0500000000000000",
	},
	{
		wire.Request{
			Op: wire.OpJoin, ID: 14, Timeout: 1, Value: []byte("m"), Claim: []byte("t"), Attempt: 2,
			Group: wire.Contribution{Generation: 7, Rank: 2, Group: "g", Run: "r", Size: 4, Label: "l"},
		},
		"39000000 0e 03 0000 0e00000000000000 | 0100000000000000  01000000 6d  01000000 74  0200000000000000  0700000000000000 02000000" +
			"01000000 67  01000000 72  04000000  01000000 6c",
	},
	{
		wire.Request{Op: wire.OpLeave, ID: 15, Group: wire.Contribution{Generation: 7, Rank: 2, No: wire.CodeAborted, Reason: "x"}},
		"13000000 0f 04 0000 0f00000000000000 | 0700000000000000 02000000  0f00  01000000 78",
	},
	{
		wire.Request{Op: wire.OpFollow, ID: 16, Timeout: 1, Group: member},
		"14000000 10 00 0000 1000000000000000 | 0100000000000000  0700000000000000 02000000",
	},
	{
		wire.Request{Op: wire.OpCollect, ID: 17, Timeout: 1, Value: []byte("v"), Group: no(vote, wire.CodeInvalid, "x")},
		"49000000 11 05 0000 1100000000000000 | 0100000000000000  01000000 76  0700000000000000 02000000" +
			"01000000 63  0900000000000000  ffffffff  03000000 73756d  01000000 69  01000000 6c  fcffffff  01  04 06  0d00  01000000 78",
	},
	{
		wire.Request{Op: wire.OpSend, ID: 18, Value: []byte("v"), TTL: 2, Group: cast},
		"36000000 12 01 0000 1200000000000000 | 01000000 76  0200000000000000  0700000000000000 02000000" +
			"01000000 63  0900000000000000  ffffffff  03000000 73756d  01000000 69",
	},
	{
		wire.Request{Op: wire.OpRecv, ID: 19, Timeout: 1, Group: cast},
		"31000000 13 00 0000 1300000000000000 | 0100000000000000  0700000000000000 02000000" +
			"01000000 63  0900000000000000  ffffffff  03000000 73756d  01000000 69",
	},
	{wire.Request{Op: wire.OpExpired, ID: 20, Group: member}, "0c000000 14 00 0000 1400000000000000 | 0700000000000000 02000000"},
	{wire.Request{Op: wire.OpLost, ID: 21, TTL: 500 * time.Millisecond}, "08000000 15 00 0000 1500000000000000 | 0065cd1d00000000"},
	{
		wire.Request{Op: wire.OpSendReady, ID: 23, Timeout: 1, Length: 3, Group: cast},
		"39000000 17 00 0000 1700000000000000 | 0100000000000000  0300000000000000  0700000000000000 02000000" +
			"01000000 63  0900000000000000  ffffffff  03000000 73756d  01000000 69",
	},
	{wire.Request{Op: wire.OpGrant, ID: 24, TTL: time.Second}, "08000000 18 00 0000 1800000000000000 | 00ca9a3b00000000"},
	{wire.Request{Op: wire.OpKeepAlive, ID: 25, Lease: 9}, "08000000 19 10 0000 1900000000000000 | 0900000000000000"},
	{wire.Request{Op: wire.OpRevoke, ID: 26, Lease: 9}, "08000000 1a 10 0000 1a00000000000000 | 0900000000000000"},
	{
		wire.Request{Op: wire.OpRevoke, ID: 26, Number: 4, Acked: 3, Lease: 9},
		"18000000 1a 18 0000 1a00000000000000 | 0400000000000000 0300000000000000  0900000000000000",
	},
	{
		wire.Request{Op: wire.OpSkip, ID: 27, Number: 4, Acked: 3},
		"10000000 1b 08 0000 1b00000000000000 | 0400000000000000 0300000000000000",
	},
	{wire.Request{Op: wire.OpProbe}, "00000000 1c 00 0000 0000000000000000"},
	{wire.Request{Op: wire.OpProof, ID: 29, Value: []byte("p")}, "05000000 1d 01 0000 1d00000000000000 | 01000000 70"},
	{wire.Request{Op: wire.OpBackup, ID: 30, Offset: 5}, "08000000 1e 00 0000 1e00000000000000 | 0500000000000000"},
	{
		wire.Request{Op: wire.OpStatus, ID: 31, Key: "jobs/", Group: wire.Contribution{Generation: 7, Rank: 2}},
		"19000000 21 00 0000 1f00000000000000 | 05000000 6a6f62732f  0200000000000000  0700000000000000",
	},
	{wire.Request{Op: wire.OpPush, ID: 34, Key: "q", Value: []byte("v")}, "0a000000 22 01 0000 2200000000000000 | 01000000 71  01000000 76"},
	{wire.Request{Op: wire.OpPop, ID: 35, Key: "q"}, "05000000 23 00 0000 2300000000000000 | 01000000 71"},
	{
		wire.Request{Op: wire.OpPop, ID: 35, Number: 4, Acked: 3, Key: "q"},
		"15000000 23 08 0000 2300000000000000 | 0400000000000000 0300000000000000  01000000 71",
	},
	{
		wire.Request{Op: wire.OpCloseChannel, ID: 36, Group: cast},
		"29000000 24 00 0000 2400000000000000 | 0700000000000000 02000000" +
			"01000000 63  0900000000000000  ffffffff  03000000 73756d  01000000 69",
	},
	{
		wire.Request{Op: wire.OpAck, ID: 37, Group: cast},
		"29000000 25 00 0000 2500000000000000 | 0700000000000000 02000000" +
			"01000000 63  0900000000000000  ffffffff  03000000 73756d  01000000 69",
	},
	{wire.Request{Op: wire.OpStacks, ID: 38, Group: wire.Contribution{Generation: 7, Rank: 2}}, "10000000 26 00 0000 2600000000000000 | 0200000000000000  0700000000000000"},
	{
		wire.Request{Op: wire.OpStacks, Value: []byte("main")},
		"18000000 26 01 0000 0000000000000000 | 04000000 6d61696e  0000000000000000  0000000000000000",
	},
	{
		wire.Request{Op: wire.OpMembers, ID: 22, Count: 5, First: 64, Group: member},
		"1c000000 16 00 0000 1600000000000000 | 4000000000000000  0500000000000000  0700000000000000 02000000",
	},
}

func no(c wire.Contribution, code wire.Code, reason string) wire.Contribution {
	c.No, c.Reason = code, reason
	return c
}

// unhex returns the bytes of a golden string. Its spaces and bars are for the reader.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	require.NoError(t, err)
	return b
}

func TestGoldenRequests(t *testing.T) {
	for _, g := range goldenRequests {
		t.Run(g.req.Op.String(), func(t *testing.T) {
			want := unhex(t, g.bytes)
			got := wire.AppendRequest([]byte("front"), &g.req)
			if string(got) != "front"+string(want) {
				t.Fatalf("got  %x\nwant %x", got[5:], want)
			}
			require.Equal(t, g.req, parseRequest(t, want))
		})
	}
}

// numbered returns the requests above that may have a number, with one: it is the first field of
// the body.
func numbered() (reqs []wire.Request, plain []string) {
	for _, g := range goldenRequests {
		if g.req.Op.Numbered() && g.req.Number == 0 {
			req := g.req
			req.Number, req.Acked = 0x0102030405060708, 5
			reqs, plain = append(reqs, req), append(plain, g.bytes)
		}
	}
	return reqs, plain
}

func TestNumbered(t *testing.T) {
	reqs, plain := numbered()
	for i, req := range reqs {
		want := unhex(t, plain[i])
		binary.LittleEndian.PutUint32(want, uint32(len(want)-wire.HeaderLen+16))
		want[5] |= 8
		want = slices.Insert(want, wire.HeaderLen, 8, 7, 6, 5, 4, 3, 2, 1, 5, 0, 0, 0, 0, 0, 0, 0)
		if got := wire.AppendRequest(nil, &req); !bytes.Equal(got, want) {
			t.Errorf("%v: got  %x\nwant %x", req.Op, got, want)
		}
		assert.Equal(t, req, parseRequest(t, want))
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
	for op := wire.OpHello; op <= wire.OpStacks; op++ {
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

// TestGoldenComplete checks that no operation is missing above: all that can be parsed are there,
// except a relay's (relay_test.go).
func TestGoldenComplete(t *testing.T) {
	have := map[wire.Op]bool{wire.OpRelay: true, wire.OpVotes: true}
	for _, g := range goldenRequests {
		have[g.req.Op] = true
	}
	for op := range wire.Op(255) {
		_, err := wire.ParseHeader(wire.AppendHeader(nil, wire.Header{Op: op}), 0)
		if known := err == nil; known != have[op] {
			t.Errorf("%v: known %v, in the table %v", op, known, have[op])
		}
		if !have[op] {
			assert.ErrorIs(t, err, wire.ErrUnknownOp, op)
			assert.ErrorIs(t, new(wire.Request).Parse(wire.Header{Op: op}, nil), wire.ErrUnknownOp, op)
		}
	}
}

func TestPreface(t *testing.T) {
	if got, want := hex.EncodeToString([]byte(wire.Preface)), "8d4d5553544552020d0a0d0a"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
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
		for _, g := range goldenRequests {
			req := g.req
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
	for _, g := range goldenRequests {
		frame := unhex(t, g.bytes)
		for n := range frame {
			_, err := parsed(frame[:n:n])
			assert.ErrorIs(t, err, wire.ErrTruncated, "%v cut to %d of %d bytes", g.req.Op, n, len(frame))
		}
		_, err := parsed(append(frame, 0))
		assert.ErrorIs(t, err, wire.ErrTrailing, g.req.Op)
	}
}

// TestUnknownFlags checks that a flag which the operation does not have is refused, whatever the
// body.
func TestUnknownFlags(t *testing.T) {
	const value, old, no, number, lease, resume, ttl = 1, 2, 4, 8, 16, 32, 64
	allowed := map[wire.Op]uint8{
		wire.OpHello: value | old | resume, wire.OpCancel: no, wire.OpSet: number | value | lease, wire.OpAdd: number | ttl, wire.OpSwap: number | value | old | ttl,
		wire.OpAppend: number | value | ttl, wire.OpDelete: number, wire.OpJoin: value | old, wire.OpLeave: number | no, wire.OpCollect: value | no,
		wire.OpSend: number | value, wire.OpExpired: number, wire.OpPush: number | value, wire.OpPop: number, wire.OpCloseChannel: number, wire.OpGrant: number, wire.OpKeepAlive: lease,
		wire.OpRevoke: number | lease, wire.OpSkip: number, wire.OpProof: value, wire.OpLost: value, wire.OpStacks: value,
	}
	for _, g := range goldenRequests {
		frame := unhex(t, g.bytes)
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
