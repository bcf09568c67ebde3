package wire_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// FuzzHeader checks that a header that parses is encoded as the same bytes.
func FuzzHeader(f *testing.F) {
	for _, g := range golden.Requests {
		f.Add(unhex(f, g.Bytes), uint32(wire.MaxBody))
	}
	f.Add([]byte(wire.Preface), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, limit uint32) {
		h, err := wire.ParseHeader(b, limit)
		if err != nil {
			return
		}
		require.LessOrEqual(t, h.Len, limit)
		if again := wire.AppendHeader(nil, h); !bytes.Equal(again, b[:wire.HeaderLen]) {
			t.Fatalf("written again: %x, was %x", again, b[:wire.HeaderLen])
		}
	})
}

// FuzzRequest checks that a request that parses is encoded as the same bytes.
func FuzzRequest(f *testing.F) {
	for _, g := range golden.Requests {
		f.Add(unhex(f, g.Bytes))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := wire.ParseHeader(b, uint32(max(0, len(b)-wire.HeaderLen)))
		if err != nil {
			return
		}
		body := b[wire.HeaderLen : wire.HeaderLen+int(h.Len)]
		var r wire.Request
		if r.Parse(h, body) != nil {
			return
		}
		if again := wire.AppendRequest(nil, &r); !bytes.Equal(again, b[:wire.HeaderLen+int(h.Len)]) {
			t.Fatalf("written again: %x\nwas            %x", again, b)
		}
	})
}

// FuzzReply checks that a reply that parses is the same after another round trip. Its bytes may
// differ: empty parts are left out.
func FuzzReply(f *testing.F) {
	for _, g := range golden.Replies {
		f.Add(unhex(f, g.Bytes))
	}
	rep := everyPart()
	f.Add(wire.AppendReply(nil, wire.OpWait, 1, &rep))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := wire.ParseHeader(b, uint32(max(0, len(b)-wire.HeaderLen)))
		if err != nil {
			return
		}
		var r wire.Reply
		if r.Parse(h, b[wire.HeaderLen:wire.HeaderLen+int(h.Len)]) != nil {
			return
		}
		require.Equal(t, r, parseReply(t, wire.AppendReply(nil, h.Op, h.ID, &r)))
	})
}

// FuzzParts checks that parts that parse are encoded as the same bytes.
func FuzzParts(f *testing.F) {
	f.Add(wire.AppendParts(nil, [][]byte{[]byte("a"), nil, {}}))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 4 {
			return
		}
		parts, err := wire.ParseParts(b, int(binary.LittleEndian.Uint32(b)))
		if err != nil {
			return
		}
		if again := wire.AppendParts(nil, parts); !bytes.Equal(again, b) {
			t.Fatalf("written again: %x, was %x", again, b)
		}
	})
}
