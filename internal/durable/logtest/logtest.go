// Package logtest is the conformance suite of a store's log, durable.Log.
package logtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/durable"
)

// Medium is where a log is kept. At most one log is open.
type Medium interface {
	// Open opens the log, and returns the entries from a segment on, in order.
	Open(t *testing.T, segment uint64) (r durable.Log, entries [][]byte)
	// Crash ends a log without Close, as the end of a process does. Entries that were not synced
	// may be lost.
	Crash(t *testing.T, r durable.Log)
}

// First is the number of the first segment of a new log.
const First = 1

// Run runs the suite, each test with a new Medium.
func Run(t *testing.T, home func(t *testing.T) Medium) {
	for name, test := range map[string]func(t *testing.T, h Medium){
		"what was synced is there after a crash, in order": synced,
		"an entry may be large, or empty":                  sizes,
		"what is before a segment can be removed":          segments,
		"a log that has failed says so for good":           failed,
	} {
		t.Run(name, func(t *testing.T) { test(t, home(t)) })
	}
}

// put appends an entry.
func put(r durable.Log, entry []byte) (pos uint64) {
	return r.Append(func(b []byte) []byte { return append(b, entry...) })
}

// numbered returns entry n, whose size depends on n.
func numbered(n uint64) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), bytes.Repeat([]byte{byte(n)}, int(n%50))...)
}

// are checks that entries are from, from+1, …, last.
func are(t *testing.T, entries [][]byte, from, last uint64) {
	t.Helper()
	require.Len(t, entries, int(last-from+1)) // #nosec G115 -- small
	for i, b := range entries {
		require.Equal(t, numbered(from+uint64(i)), b, "entry %d", i)
	}
}

func synced(t *testing.T, h Medium) {
	r, entries := h.Open(t, First)
	require.Empty(t, entries)
	require.NoError(t, r.Sync(0))
	for n := uint64(1); n <= 100; n++ {
		require.Equal(t, n, put(r, numbered(n)))
		if n%7 == 0 {
			require.Positive(t, r.Unsynced())
			require.NoError(t, r.Sync(n))
			require.Equal(t, n, r.Durable())
			require.Zero(t, r.Unsynced())
			require.Zero(t, r.Writing())
		}
	}
	require.NoError(t, r.Sync(100))
	require.Positive(t, r.Size())
	h.Crash(t, r)
	r, entries = h.Open(t, First)
	are(t, entries, 1, 100)
	require.EqualValues(t, 1, put(r, numbered(101)), "positions begin with 1")
	require.NoError(t, r.Close())
	require.Error(t, r.Sync(1), "Sync after Close")
}

func sizes(t *testing.T, h Medium) {
	all := [][]byte{{}, {1}, make([]byte, 3<<20), {}, bytes.Repeat([]byte{7}, 1<<20), {2}}
	r, _ := h.Open(t, First)
	for _, b := range all {
		put(r, b)
	}
	require.NoError(t, r.Sync(uint64(len(all))))
	h.Crash(t, r)
	r, entries := h.Open(t, First)
	require.Len(t, entries, len(all))
	for i, b := range all {
		require.True(t, bytes.Equal(b, entries[i]), "entry %d of %d bytes: %d bytes", i, len(b), len(entries[i]))
	}
	require.NoError(t, r.Close())
}

func segments(t *testing.T, h Medium) {
	r, _ := h.Open(t, First)
	require.EqualValues(t, First, r.Rotate(), "it has no entries yet")
	put(r, numbered(1))
	put(r, numbered(2))
	second := r.Rotate()
	require.Equal(t, second, r.Rotate(), "it has no entries yet")
	require.Greater(t, second, uint64(First))
	for n := uint64(3); n <= 40; n++ {
		put(r, numbered(n))
	}
	require.NoError(t, r.Begin(second))
	require.NoError(t, r.Sync(40))
	size := r.Size()
	require.NoError(t, r.Remove(second))
	require.Less(t, r.Size(), size)
	third := r.Rotate()
	require.NoError(t, r.Begin(third))
	h.Crash(t, r)
	r, entries := h.Open(t, second)
	are(t, entries, 3, 40)
	put(r, numbered(41))
	require.NoError(t, r.Close())
	r, entries = h.Open(t, second)
	are(t, entries, 3, 41)
	require.NoError(t, r.Remove(r.Rotate()))
	require.NoError(t, r.Close())
}

func failed(t *testing.T, h Medium) {
	r, _ := h.Open(t, First)
	require.NoError(t, r.Sync(put(r, numbered(1))))
	why := errors.New("it has failed")
	r.Fail(why)
	r.Fail(errors.New("again"))
	put(r, numbered(2)) // it is dropped
	require.ErrorIs(t, r.Sync(1), why)
	require.ErrorIs(t, r.Sync(2), why)
	h.Crash(t, r)
	r, entries := h.Open(t, First)
	require.Len(t, entries, 1)
	require.NoError(t, r.Close())
}
