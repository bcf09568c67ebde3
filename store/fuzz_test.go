package store_test

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func FuzzFrames(f *testing.F) {
	f.Add(gets(3, "key"), uint8(1))
	f.Add(wire.AppendRequest(gets(1, "k"), &wire.Request{Op: wire.OpSet, Key: "k", Value: make([]byte, 300)}), uint8(7))
	f.Add([]byte("garbage behind garbage behind garbage"), uint8(16))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		heads, bodies, err := store.Cut([][]byte{stream}, 1<<20)
		for _, room := range []int{wire.HeaderLen, 64, 4096} {
			var pieces [][]byte
			for rest := stream; len(rest) > 0; {
				n := min(len(rest), int(step)+1)
				pieces, rest = append(pieces, rest[:n]), rest[n:]
			}
			h, b, e := store.Cut(pieces, room)
			require.Equal(t, heads, h)
			require.Equal(t, bodies, b)
			require.Equal(t, err == nil, e == nil)
		}
	})
}

func FuzzServer(f *testing.F) {
	for _, bad := range garbage {
		f.Add(bad.bytes)
	}
	for op := range wire.OpLost {
		f.Add(wire.AppendRequest(nil, &wire.Request{Op: op, ID: 1, Key: "k", Keys: []string{"a", "b"}, Value: []byte("1"), Timeout: 1, Group: wire.Contribution{Size: 1, Generation: 1}}))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	srv := &store.Server{Engine: new(store.Memory), Logger: slog.New(slog.DiscardHandler)}
	go func() { _ = srv.Serve(l) }()
	other, err := store.Dial(f.Context(), l.Addr().String(), nil)
	require.NoError(f, err)
	f.Cleanup(func() { _ = other.Close(); _ = srv.Close(); _ = srv.Engine.Close() })
	f.Fuzz(func(t *testing.T, stream []byte) {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = c.Write(append(greeting(), stream...))
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		_, err = other.Revision(bounded(t))
		require.NoError(t, err)
	})
}
