package handshake_test

import (
	"bytes"
	"net"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

func FuzzFrames(f *testing.F) {
	var gets []byte
	for i := range 3 {
		gets = wire.AppendRequest(gets, &wire.Request{Op: wire.OpGet, ID: uint64(i + 1), Key: "key"})
	}
	f.Add(gets, uint8(1))
	f.Add(wire.AppendRequest(gets, &wire.Request{Op: wire.OpSet, Key: "k", Value: make([]byte, 300)}), uint8(7))
	f.Add([]byte("garbage behind garbage behind garbage"), uint8(16))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		heads, bodies, err := handshake.Cut([][]byte{stream}, 1<<20)
		for _, room := range []int{wire.HeaderLen, 64, 4096} {
			var pieces [][]byte
			for rest := stream; len(rest) > 0; {
				n := min(len(rest), int(step)+1)
				pieces, rest = append(pieces, rest[:n]), rest[n:]
			}
			h, b, e := handshake.Cut(pieces, room)
			require.Equal(t, heads, h)
			require.Equal(t, bodies, b)
			require.Equal(t, err == nil, e == nil)
		}
	})
}

// TestALargeFrameIsAllocatedOnce checks that a reply of up to First, as an all-gather of 10,000 ranks
// has, is read without growing its buffer.
func TestALargeFrameIsAllocatedOnce(t *testing.T) {
	value := bytes.Repeat([]byte("x"), 680_000)
	frame := wire.AppendReply(nil, wire.OpGet, 1, &wire.Reply{Value: value})
	client, server := net.Pipe()
	defer client.Close()
	go func() { _, _ = server.Write(frame) }()
	in := &handshake.FrameReader{Inbox: transport.Inbox{First: 1 << 20}, Limit: wire.MaxReply}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, body, owned, err := in.Read(client, make([]byte, 32<<10))
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.True(t, owned)
	require.Equal(t, frame[wire.HeaderLen:], body)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(len(frame)+128<<10))
}
