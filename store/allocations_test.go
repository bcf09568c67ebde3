package store_test

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestRequestsAllocateLittle checks that a get costs the server no allocation, a set that of its
// value, and that the value of a large reply is not copied.
func TestRequestsAllocateLittle(t *testing.T) {
	s := serve(t, &store.Server{Engine: new(store.Memory)}, tcp)
	c := s.greeted(t)
	in := make([]byte, 2<<20)
	call := func(r wire.Request) func() {
		out := wire.AppendRequest(nil, &r)
		return func() {
			_, err := c.Write(out)
			require.NoError(t, err)
			_, err = io.ReadFull(c, in[:wire.HeaderLen])
			require.NoError(t, err)
			h, err := wire.ParseHeader(in, wire.MaxReply)
			require.NoError(t, err)
			_, err = io.ReadFull(c, in[:h.Len])
			require.NoError(t, err)
		}
	}
	require.LessOrEqual(t, testing.AllocsPerRun(1000, call(wire.Request{Op: wire.OpSet, ID: 1, Key: "k", Value: []byte("value")})), 1.0)
	require.Zero(t, testing.AllocsPerRun(1000, call(wire.Request{Op: wire.OpGet, ID: 1, Key: "k"})))

	large := bytes.Repeat([]byte("large"), 200_000)
	call(wire.Request{Op: wire.OpSet, ID: 1, Key: "large", Value: large})()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	get := call(wire.Request{Op: wire.OpGet, ID: 1, Key: "large"})
	const gets = 20
	for range gets {
		get()
		require.True(t, bytes.Contains(in[:len(large)+100], large))
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(gets*len(large)/2))
}
