package tcpwire_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// FuzzRequests checks that the end of a request is found at the same place however its bytes
// arrive, and that a request that parses is encoded as the same bytes.
func FuzzRequests(f *testing.F) {
	for _, g := range goldens(f, "requests.txt") {
		f.Add(g.bytes, uint64(1))
	}
	for _, c := range recorded(f) {
		f.Add([]byte(c.sent), uint64(2))
	}
	pairs := tcpwire.Request{Op: tcpwire.OpMultiSet}
	for i := range 50 {
		pairs.Keys, pairs.Values = append(pairs.Keys, strings.Repeat("k", i)), append(pairs.Values, make([]byte, 3*i))
	}
	long, err := tcpwire.AppendRequest(nil, &pairs)
	require.NoError(f, err)
	for seed := range uint64(10) {
		f.Add(long, seed)
	}
	lim := tcpwire.Limits{Key: 100, Value: 1000, Keys: 50, Message: 10_000}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		n, whole, err := tcpwire.NextRequest(b, new(tcpwire.Cursor), lim)
		inPieces(t, b, n, whole, err, seed, func(b []byte, c *tcpwire.Cursor) (int, bool, error) {
			return tcpwire.NextRequest(b, c, lim)
		})
		var r tcpwire.Request
		_ = r.Parse(b)
		if !whole || err != nil {
			return
		}
		if err := r.Parse(b[:n]); err != nil {
			t.Fatalf("%x is whole, but: %v", b[:n], err)
		}
		again, err := tcpwire.AppendRequest(nil, &r)
		if err != nil || !bytes.Equal(again, b[:n]) {
			t.Fatalf("written again: %x, %v\nwas            %x", again, err, b[:n])
		}
	})
}

// FuzzReplies checks the same for replies.
func FuzzReplies(f *testing.F) {
	for _, g := range goldens(f, "replies.txt") {
		f.Add(uint8(g.op), uint8(g.keys), g.bytes, uint64(1))
	}
	lim := tcpwire.Limits{Key: 100, Value: 1000, Keys: 50, Message: 10_000}
	f.Fuzz(func(t *testing.T, number, keys uint8, b []byte, seed uint64) {
		op := tcpwire.Op(number)
		n, whole, err := tcpwire.NextReply(b, op, int(keys), new(tcpwire.Cursor), lim)
		inPieces(t, b, n, whole, err, seed, func(b []byte, c *tcpwire.Cursor) (int, bool, error) {
			return tcpwire.NextReply(b, op, int(keys), c, lim)
		})
		var r tcpwire.Reply
		_ = r.Parse(op, int(keys), b)
		if !whole || err != nil {
			return
		}
		if err := r.Parse(op, int(keys), b[:n]); err != nil {
			t.Fatalf("%x is whole, but: %v", b[:n], err)
		}
		if again := tcpwire.AppendReply(nil, op, &r); !bytes.Equal(again, b[:n]) {
			t.Fatalf("written again: %x\nwas            %x", again, b[:n])
		}
	})
}

// inPieces requires the result that next had for all bytes at once.
func inPieces(
	t *testing.T, b []byte, n int, whole bool, err error, seed uint64, next func([]byte, *tcpwire.Cursor) (int, bool, error),
) {
	chance := rand.New(rand.NewPCG(seed, 0))
	var c tcpwire.Cursor
	for at := 0; ; at = min(len(b), at+1+chance.IntN(20)) {
		gotN, gotWhole, gotErr := next(b[:at], &c)
		if gotErr == nil && !gotWhole && gotN <= at {
			t.Fatalf("%d bytes are there, and %d are wanted", at, gotN)
		}
		if at < len(b) && gotErr == nil && !gotWhole {
			continue
		}
		if gotWhole != whole || (gotErr == nil) != (err == nil) || whole && gotN != n {
			t.Fatalf("in pieces: %d %v %v, at once: %d %v %v", gotN, gotWhole, gotErr, n, whole, err)
		}
		return
	}
}
