package wire_test

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// goldenBranches are frames of a relay's connection, and their contents.
var goldenBranches = []struct {
	name  string
	frame []byte
	bytes string
}{
	{
		"a request of one branch",
		wire.AppendRelayRequest(nil, 7, &wire.Request{Op: wire.OpGet, ID: 5, Key: "k"}),
		"25000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000 | 05000000 05 00 0000 0500000000000000 | 01000000 6b",
	},
	{
		"a reply to one branch",
		wire.AppendRelayReply(nil, 7, wire.OpGet, 5, &wire.Reply{Code: wire.CodeNotFound}),
		"20000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000 | 00000000 05 00 0100 0500000000000000",
	},
	{
		"a reply to two branches",
		wire.AppendReply(wire.AppendRelay(nil, 0, wire.RelayCall{Conn: 7, ID: 5}, wire.RelayCall{Conn: 8, ID: 6}), wire.OpCollect, 5, new(wire.Reply)),
		"2c000000 1f 00 0000 0000000000000000 | 02000000 07000000 0500000000000000 08000000 0600000000000000 | 00000000 11 00 0000 0500000000000000",
	},
	{
		"a reply whose body a relay keeps",
		append(wire.AppendHeader(wire.AppendKeep(nil, wire.Keep{Number: 3, First: 2}, 1, wire.RelayCall{Conn: 7, ID: 5}), wire.Header{Len: 1, Op: wire.OpCollect}), 'x'),
		"21000000 1f 01 0000 0300000002000000 | 01000000 07000000 0500000000000000 | 01000000 11 00 0000 0000000000000000 | 78",
	},
	{
		"a reply whose body a relay has kept",
		wire.AppendHeader(wire.AppendKeep(nil, wire.Keep{Number: 3, First: 2, Again: true}, 0, wire.RelayCall{Conn: 7, ID: 5}), wire.Header{Len: 1, Op: wire.OpCollect}),
		"20000000 1f 02 0000 0300000002000000 | 01000000 07000000 0500000000000000 | 01000000 11 00 0000 0000000000000000",
	},
	{
		"the end of a branch, whose reason the store does not get",
		wire.AppendRelayRequest(nil, 7, &wire.Request{Op: wire.OpLost}),
		"28000000 1f 00 0000 0000000000000000 | 01000000 07000000 0000000000000000 | 08000000 15 00 0000 0000000000000000 | 0000000000000000",
	},
	{
		"two votes",
		wire.AppendVotes(nil, &vote, 2, wire.AppendVote(wire.AppendVote(nil, &goldenVotes[0]), &goldenVotes[1])),
		"7b000000 20 00 0000 0000000000000000 | 0700000000000000 | 01000000 63 0900000000000000 ffffffff 03000000 73756d 01000000 69" +
			"| 01000000 6c 01 04 06 0000000000000000 | 02000000" +
			"| 07000000 0500000000000000 02000000 fcffffff 00ca9a3b00000000 02000000 6869" +
			"| 08000000 0600000000000000 03000000 ffffffff 0000000000000000 ffffffff",
	},
}

var goldenVotes = []wire.Vote{
	{RelayCall: wire.RelayCall{Conn: 7, ID: 5}, Rank: 2, Want: wire.WantReduced, Timeout: time.Second, Value: []byte("hi")},
	{RelayCall: wire.RelayCall{Conn: 8, ID: 6}, Rank: 3, Want: wire.WantNothing},
}

func TestGoldenBranches(t *testing.T) {
	for _, g := range goldenBranches {
		require.Equal(t, unhex(t, g.bytes), g.frame, g.name)
	}
}

// parseBranch parses a whole OpRelay.
func parseBranch(b []byte) (calls []wire.RelayCall, of wire.Header, frame []byte, err error) {
	h, err := wire.ParseHeader(b, wire.MaxBody)
	if err != nil {
		return nil, of, nil, err
	}
	return wire.ParseRelay(h, b[wire.HeaderLen:], nil, wire.MaxVotes, wire.MaxBody)
}

func TestBranch(t *testing.T) {
	calls, h, body, err := parseBranch(goldenBranches[0].frame)
	require.NoError(t, err)
	require.Equal(t, []wire.RelayCall{{Conn: 7, ID: 5}}, calls)
	var req wire.Request
	require.NoError(t, req.Parse(h, body))
	require.Equal(t, wire.Request{Op: wire.OpGet, ID: 5, Key: "k"}, req)
	require.Equal(t, wire.RelayOverhead+wire.HeaderLen+len(body), len(goldenBranches[0].frame))
	calls, _, _, err = parseBranch(goldenBranches[2].frame)
	require.NoError(t, err)
	require.Equal(t, []wire.RelayCall{{Conn: 7, ID: 5}, {Conn: 8, ID: 6}}, calls)
}

func TestKeep(t *testing.T) {
	for i, want := range map[int]wire.Keep{2: {}, 3: {Number: 3, First: 2}, 4: {Number: 3, First: 2, Again: true}} {
		frame := goldenBranches[i].frame
		outer, err := wire.ParseHeader(frame, wire.MaxBody)
		require.NoError(t, err)
		keep, err := wire.ParseKeep(outer)
		require.NoError(t, err)
		require.Equal(t, want, keep)
		_, h, body, err := parseBranch(frame)
		require.NoError(t, err)
		require.Equal(t, want.Again, len(body) != int(h.Len))
	}
}

func TestVotes(t *testing.T) {
	frame := goldenBranches[6].frame
	h, err := wire.ParseHeader(frame, wire.MaxBody)
	require.NoError(t, err)
	var c wire.Contribution
	votes, err := wire.ParseVotes(h, frame[wire.HeaderLen:], &c, nil)
	require.NoError(t, err)
	require.Equal(t, goldenVotes, votes)
	want := vote
	want.Rank, want.Want = 0, 0 // these belong to each vote
	require.Equal(t, want, c)
}

func TestBranchRefused(t *testing.T) {
	inner := "00000000 04 00 0000 0500000000000000"
	for name, c := range map[string]struct {
		bytes string
		err   error
	}{
		"a flag":             {"20000000 1f 01 0000 0000000000000000 | 01000000 07000000 0500000000000000" + inner, wire.ErrFlags},
		"a code":             {"20000000 1f 00 0100 0000000000000000 | 01000000 07000000 0500000000000000" + inner, wire.ErrFlags},
		"an id":              {"20000000 1f 00 0000 0100000000000000 | 01000000 07000000 0500000000000000" + inner, wire.ErrFlags},
		"an unknown flag":    {"20000000 1f 04 0000 0100000001000000 | 01000000 07000000 0500000000000000" + inner, wire.ErrFlags},
		"a lower first one":  {"20000000 1f 01 0000 0100000002000000 | 01000000 07000000 0500000000000000" + inner, wire.ErrFlags},
		"no first one":       {"20000000 1f 01 0000 0100000000000000 | 01000000 07000000 0500000000000000" + inner, wire.ErrFlags},
		"a body that's kept": {"21000000 1f 02 0000 0100000001000000 | 01000000 07000000 0500000000000000" + inner + "00", wire.ErrTrailing},
		"without an owner":   {"14000000 1f 00 0000 0000000000000000 | 00000000" + inner, wire.ErrTruncated},
		"more than fit":      {"14000000 1f 00 0000 0000000000000000 | ffffffff" + inner, wire.ErrTruncated},
		"no frame":           {"10000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000", wire.ErrTruncated},
		"a frame too short":  {"20000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000 | 01000000 04 00 0000 0500000000000000", wire.ErrTruncated},
		"a frame too long":   {"21000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000" + inner + "00", wire.ErrTrailing},
		"a body too large":   {"20000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000 | 01001001 04 00 0000 0500000000000000", wire.ErrTooLarge},
		"an unknown one":     {"20000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000 | 00000000 ff 00 0000 0500000000000000", wire.ErrUnknownOp},
		"a branch in it":     {"20000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000 | 00000000 1f 00 0000 0000000000000000", wire.ErrUnknownOp},
		"votes in it":        {"20000000 1f 00 0000 0000000000000000 | 01000000 07000000 0500000000000000 | 00000000 20 00 0000 0000000000000000", wire.ErrUnknownOp},
		"which is a request": {"00000000 1f 00 0000 0000000000000000", wire.ErrTruncated},
	} {
		_, _, _, err := parseBranch(unhex(t, c.bytes))
		require.ErrorIs(t, err, c.err, name)
	}
	var req wire.Request
	require.ErrorIs(t, req.Parse(wire.Header{Op: wire.OpRelay}, nil), wire.ErrUnknownOp)
	require.ErrorIs(t, req.Parse(wire.Header{Op: wire.OpVotes}, nil), wire.ErrUnknownOp)
}

func TestVotesRefused(t *testing.T) {
	good := goldenBranches[6].frame[wire.HeaderLen:]
	var c wire.Contribution
	parse := func(h wire.Header, body []byte) error {
		_, err := wire.ParseVotes(h, body, &c, nil)
		return err
	}
	require.NoError(t, parse(wire.Header{}, good))
	for _, h := range []wire.Header{{Flags: 1}, {ID: 1}, {Code: 1}} {
		require.ErrorIs(t, parse(h, good), wire.ErrFlags)
	}
	require.ErrorIs(t, parse(wire.Header{}, append(bytes.Clone(good), 0)), wire.ErrTrailing)
	for n := range good {
		require.ErrorIs(t, parse(wire.Header{}, good[:n]), wire.ErrTruncated, n)
	}
	var many []byte
	for range wire.MaxVotes + 1 {
		many = wire.AppendVote(many, &goldenVotes[1])
	}
	body := wire.AppendVotes(nil, &vote, wire.MaxVotes+1, many)[wire.HeaderLen:]
	require.ErrorIs(t, parse(wire.Header{}, body), wire.ErrTooLarge)
}

// TestLostWithAReason checks that a server also passes its engine the reason for which other
// sessions lost their connections, and that a log contains it.
func TestLostWithAReason(t *testing.T) {
	want := wire.Request{Op: wire.OpLost, TTL: time.Second, Value: []byte("why")}
	frame := wire.AppendRequest(nil, &want)
	require.Equal(t, unhex(t, "0f000000 15 01 0000 0000000000000000 | 03000000 776879 00ca9a3b00000000"), frame)
	require.Equal(t, want, parseRequest(t, frame))
}

// FuzzBranch checks that an OpRelay that parses is encoded as the same bytes.
func FuzzBranch(f *testing.F) {
	for _, g := range goldenBranches {
		f.Add(g.frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		calls, h, body, err := parseBranch(b)
		if err != nil || b[4] != byte(wire.OpRelay) {
			return
		}
		outer, _ := wire.ParseHeader(b, wire.MaxBody)
		keep, _ := wire.ParseKeep(outer)
		again := append(wire.AppendHeader(wire.AppendKeep(nil, keep, len(body), calls...), h), body...)
		if int(outer.Len)+wire.HeaderLen == len(b) && !bytes.Equal(again, b) {
			t.Fatalf("written again: %x\nwas            %x", again, b)
		}
	})
}

// FuzzVotes checks that an OpVotes that parses is encoded as the same bytes.
func FuzzVotes(f *testing.F) {
	f.Add(goldenBranches[6].frame[wire.HeaderLen:])
	f.Fuzz(func(t *testing.T, body []byte) {
		var c wire.Contribution
		votes, err := wire.ParseVotes(wire.Header{}, body, &c, nil)
		if err != nil {
			return
		}
		var b []byte
		for i := range votes {
			b = wire.AppendVote(b, &votes[i])
		}
		if again := wire.AppendVotes(nil, &c, len(votes), b)[wire.HeaderLen:]; !bytes.Equal(again, body) {
			t.Fatalf("written again: %x\nwas            %x", again, body)
		}
		var twice wire.Contribution
		if same, err := wire.ParseVotes(wire.Header{}, body, &twice, votes); err != nil || !reflect.DeepEqual(c, twice) || len(same) != len(votes) {
			t.Fatalf("parsed twice: %+v, %v", twice, err)
		}
	})
}
