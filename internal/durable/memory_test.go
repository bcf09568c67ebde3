package durable

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// heap returns the size of all objects on the heap in bytes, including garbage.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// peakOf returns by how much the heap grew at most while f ran.
func peakOf(f func()) uint64 {
	runtime.GC()
	before, most := heap(), uint64(0)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				most = max(most, heap())
			case <-done:
				return
			}
		}
	}()
	f()
	close(done)
	<-ended
	return max(most, before) - before
}

// TestMemoryOfACheckpoint checks that a checkpoint needs little memory in addition to that of the
// store, whether the data is in large values, in small values, or in messages that no rank has
// received.
func TestMemoryOfACheckpoint(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it writes 128 MiB three times, in one goroutine: not in a short run")
	}
	const total = 128 << 20
	value := func(n int) []byte { return make([]byte, n) }
	for name, fill := range map[string]func(t *testing.T, do func(session uint64, req wire.Request) wire.Reply){
		"large values": func(_ *testing.T, do func(uint64, wire.Request) wire.Reply) {
			for i := range total / wire.MaxValue {
				do(core.Local, wire.Request{Op: wire.OpSet, Key: fmt.Sprint(i), Value: value(wire.MaxValue)})
			}
		},
		"small values": func(_ *testing.T, do func(uint64, wire.Request) wire.Reply) {
			for i := range total >> 10 {
				do(core.Local, wire.Request{Op: wire.OpSet, Key: fmt.Sprint(i), Value: value(1 << 10)})
			}
		},
		"messages": func(t *testing.T, do func(uint64, wire.Request) wire.Reply) {
			var sessions [2]uint64
			for i := range sessions {
				rep := do(core.Local, wire.Request{Op: wire.OpHello, Token: []byte("token of 16 byte"), Key: "a peer"})
				sessions[i] = uint64(rep.N)
			}
			for i, s := range sessions {
				do(s, wire.Request{Op: wire.OpJoin, ID: 1, Value: []byte("m"), Group: wire.Contribution{Group: "g", Rank: i, Size: 2, Label: "l"}})
			}
			for i := range total / wire.MaxValue {
				rep := do(sessions[0], wire.Request{
					Op: wire.OpSend, ID: uint64(i + 2), Number: uint64(i + 1), Value: value(wire.MaxValue),
					Group: wire.Contribution{Generation: 1, Root: 1, Channel: fmt.Sprint(i)},
				})
				require.Equal(t, wire.CodeOK, rep.Code, rep.Detail)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, m, err := Open(t.TempDir(), core.Limits{}, nil)
			require.NoError(t, err)
			fill(t, func(session uint64, req wire.Request) (rep wire.Reply) {
				m.Apply(time.Second, session, &req, &rep)
				return rep
			})
			require.GreaterOrEqual(t, heap(), uint64(total))
			var size int64
			began := time.Now()
			peak := peakOf(func() {
				require.NoError(t, d.Checkpoint(func(f func(*core.Machine)) error { f(m); return nil }))
				size = d.lastCheckpointSize()
			})
			require.NoError(t, d.Close())
			require.GreaterOrEqual(t, size, int64(total))
			t.Logf("%d MiB beside %d MiB, %v", peak>>20, total>>20, time.Since(began))
			require.Less(t, peak, uint64(64<<20))
			runtime.KeepAlive(m)
		})
	}
}

// TestLargeValues checks that a checkpoint keeps values of any number of pieces.
func TestLargeValues(t *testing.T) {
	dir := t.TempDir()
	d, m, err := Open(dir, core.Limits{}, nil)
	require.NoError(t, err)
	want := map[string]string{}
	for i, n := range []int{0, 1, pieceBytes - 1, pieceBytes, pieceBytes + 1, 2 * pieceBytes, batchBytes + 1, wire.MaxValue} {
		value := bytes.Repeat([]byte{byte('a' + i), byte(i), 0, 'z'}, n/4+1)[:n]
		req := wire.Request{Op: wire.OpSet, Key: fmt.Sprint(n), Value: value}
		m.Apply(time.Second, core.Local, &req, new(wire.Reply))
		want[req.Key] = string(value)
	}
	require.NoError(t, d.Checkpoint(func(f func(*core.Machine)) error { f(m); return nil }))
	require.NoError(t, d.Close())
	d, m, err = Open(dir, core.Limits{}, nil)
	require.NoError(t, err)
	require.Equal(t, len(want), m.Keys())
	for key, value := range want {
		var rep wire.Reply
		m.Apply(m.Now(), core.Local, &wire.Request{Op: wire.OpGet, Key: key}, &rep)
		require.Equal(t, wire.CodeOK, rep.Code, key)
		require.True(t, value == string(rep.Value), key)
	}
	require.NoError(t, d.Close())
}
