package shm_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/shm"
)

// TestLendMapRelease shares, maps and releases memory, in both directions over one Conn.
func TestLendMapRelease(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	for _, way := range []struct{ from, to *shm.Conn }{{c, d}, {d, c}} {
		a := newArena(t, nil)
		b, ref := filled(t, a, 1<<20, 1)
		part, ok := a.Find(b[100:300])
		require.True(t, ok)
		require.NoError(t, way.from.Share(ctx, a, ref, part))
		require.EqualValues(t, 1<<20, a.Stats().Shared)
		blocks, err := way.to.Map(ctx, part, ref)
		require.NoError(t, err)
		require.Equal(t, b[100:300], blocks[0].Data)
		require.Equal(t, b, blocks[1].Data)
		require.Equal(t, len(b), cap(blocks[1].Data))
		b[0] ^= 1
		require.Equal(t, b[0], blocks[1].Data[0], "the same memory")
		for _, bl := range blocks {
			bl.Release()
			require.Nil(t, bl.Data)
			bl.Release()
		}
		require.NoError(t, way.from.WaitReleased(ctx, ref, part))
		require.Zero(t, a.Stats().Shared)
		a.Free(b)
	}
}

// TestAsOftenAsShared checks that a ref that was shared several times stays shared until it is
// released as often.
func TestAsOftenAsShared(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, nil)
	_, ref := filled(t, a, 100, 1)
	_, other := filled(t, a, 100, 2)
	require.NoError(t, c.Share(ctx, a, ref, other, ref))
	require.NoError(t, c.Share(ctx, a, ref))
	blocks := mapped(t, d, ref, ref)
	last := mapped(t, d, other, ref)
	for _, b := range append(blocks, last[0]) {
		b.Release()
	}
	require.NoError(t, c.WaitReleased(ctx, other))
	short := testcluster.Within(t, 10*time.Millisecond)
	err := c.WaitReleased(short, other, ref)
	require.ErrorIs(t, err, context.DeadlineExceeded, "one is still out")
	require.ErrorContains(t, err, "shm: the peer has not released 1 of 2 refs")
	require.EqualValues(t, 128, a.Stats().Shared)
	last[1].Release()
	require.NoError(t, c.WaitReleased(ctx, ref, other))
	require.Zero(t, a.Stats().Shared)
	nothing, err := d.Map(ctx)
	require.NoError(t, err)
	require.Empty(t, nothing)
	require.NoError(t, c.Share(ctx, a))
	require.NoError(t, c.WaitReleased(ctx))
}

// TestMapWaitsForSegments checks that Map maps nothing until all segments have arrived.
func TestMapWaitsForSegments(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, &shm.Options{Segment: 1 << 16})
	b, ref := filled(t, a, 1<<16, 1)
	later, late := filled(t, a, 1<<16, 2)
	require.NoError(t, c.Share(ctx, a, ref))
	short := testcluster.Within(t, 10*time.Millisecond)
	_, err := d.Map(short, ref, late)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, fmt.Sprintf("shm: map 2 refs, of which the peer has not sent the segment of %+v", late))
	got := make(chan []*shm.Block)
	go func() {
		blocks, _ := d.Map(ctx, ref, late)
		got <- blocks
	}()
	require.NoError(t, c.Share(ctx, a, late))
	blocks := <-got
	require.Len(t, blocks, 2)
	require.Equal(t, b, blocks[0].Data)
	require.Equal(t, later, blocks[1].Data)
	blocks[0].Release()
	blocks[1].Release()
	require.NoError(t, c.WaitReleased(ctx, ref, late))
}

// TestMapOutOfBounds checks that an impossible ref is an error at once, also together with one
// whose segment has not arrived, and that nothing is mapped.
func TestMapOutOfBounds(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, &shm.Options{Segment: 1 << 16})
	_, ref := shared(t, c, a, 1<<16, 1)
	never := shm.Ref{Arena: ref.Arena, Segment: 77, Len: 1}
	for name, bad := range map[string]shm.Ref{
		"beyond":   {Offset: 1<<16 - 1, Len: 2},
		"behind":   {Offset: 1 << 16, Len: 1},
		"before":   {Offset: -1, Len: 2},
		"no bytes": {},
		"negative": {Offset: 10, Len: -1},
		"overflow": {Offset: 1 << 16, Len: math.MaxInt64},
		"too far":  {Offset: math.MaxInt64, Len: math.MaxInt64},
	} {
		bad.Arena, bad.Segment = ref.Arena, ref.Segment
		blocks := mapped(t, d, ref)
		for _, refs := range [][]shm.Ref{{bad}, {ref, bad}, {never, bad}} {
			_, err := d.Map(ctx, refs...)
			require.EqualError(t, err, fmt.Sprintf("shm: map %d refs: %+v is not within a segment of 65536 bytes", len(refs), bad), name)
		}
		blocks[0].Release()
		require.NoError(t, c.WaitReleased(ctx, ref))
		require.NoError(t, c.Share(ctx, a, ref))
	}
	_, err := d.Map(ctx, shm.Ref{Arena: ref.Arena, Segment: 77, Offset: -1, Len: 1})
	require.ErrorContains(t, err, "not within", "in no segment")
	passed(t, c, d, ref) // the Conns have not ended
}

// TestNotReusedWhileHeld checks that freed memory is not reused until its peer has released it, and
// if there are several, the last of them.
func TestNotReusedWhileHeld(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	e, f := pair(t)
	a := newArena(t, &shm.Options{Segment: 1 << 20})
	b, ref := filled(t, a, 1<<20, 1)
	want := sum(b)
	require.NoError(t, c.Share(ctx, a, ref))
	require.NoError(t, e.Share(ctx, a, ref))
	one := mapped(t, d, ref)
	two := mapped(t, f, ref)
	a.Free(b)
	require.Panics(t, func() { a.Free(b) })
	_, ok := a.Find(b)
	require.False(t, ok)
	require.Error(t, c.Share(ctx, a, ref), "it is freed")
	other := alloc(t, a, 1<<20)
	fill(other, 2)
	a.Free(other)
	a.Trim()
	require.Equal(t, 1, a.Stats().Segments, "that which is held")
	one[0].Release()
	require.NoError(t, c.WaitReleased(ctx, ref))
	fill(alloc(t, a, 1<<20), 3)
	require.Equal(t, want, sum(two[0].Data))
	two[0].Release()
	require.NoError(t, e.WaitReleased(ctx, ref))
	alloc(t, a, 1<<20)
	require.Equal(t, shm.Stats{Segments: 2, Mapped: 2 << 20, Taken: 2 << 20, InUse: 2 << 20}, a.Stats())
}

// TestConnEnds checks the state of each side when a Conn ends while a block is shared: a Block
// keeps its contents, and its memory is never written to again.
func TestConnEnds(t *testing.T) {
	for _, who := range []string{"owner", "reader"} {
		t.Run(who, func(t *testing.T) {
			ctx := within(t)
			c, d := pair(t)
			a := newArena(t, &shm.Options{Segment: 1 << 20})
			b, ref := filled(t, a, 1000, 1)
			kept, _ := filled(t, a, 1000, 2)
			want := sum(b)
			require.NoError(t, c.Share(ctx, a, ref))
			blocks := mapped(t, d, ref)
			ends, peer := c, d
			if who == "reader" {
				ends, peer = d, c
			}
			require.NoError(t, ends.Close())
			<-peer.Done()
			require.ErrorIs(t, ends.Err(), shm.ErrClosed)
			require.ErrorIs(t, peer.Err(), io.EOF)
			require.ErrorIs(t, c.WaitReleased(ctx, ref), c.Err())
			require.ErrorIs(t, c.Share(ctx, a, ref), c.Err())

			require.Equal(t, 1, a.Stats().Retired)
			a.Free(b)
			fill(alloc(t, a, 1000), 3)
			require.Equal(t, 2, a.Stats().Segments)
			require.Equal(t, want, sum(blocks[0].Data))
			a.Free(kept)
			require.Equal(t, 1, a.Stats().Segments, "nothing else of the retired one is in use")
			require.Equal(t, want, sum(blocks[0].Data))
			blocks[0].Release()
			require.Nil(t, blocks[0].Data)
			blocks[0].Release()
		})
	}
}

// TestMapAfterTheEnd checks that memory which the peer has shared before its end can be mapped
// after it, until Close.
func TestMapAfterTheEnd(t *testing.T) {
	ctx := within(t)
	before := segments(os.Getpid())
	near, far := sockets(t)
	c := shm.NewConn(near)
	a := newArena(t, &shm.Options{Segment: 1 << 16})
	b, ref := filled(t, a, 1000, 1)
	other, second := filled(t, a, 1<<16, 2)
	require.NoError(t, c.Share(ctx, a, ref, second))
	require.NoError(t, c.Close()) // messages in the socket are still unread
	d := shm.NewConn(far)
	defer d.Close()
	never := shm.Ref{Arena: ref.Arena, Segment: 9, Len: 1}
	_, err := d.Map(ctx, ref, never) // waits until the end
	require.ErrorIs(t, err, io.EOF)
	require.ErrorContains(t, err, fmt.Sprintf("of which the peer has not sent the segment of %+v", never))
	<-d.Done()
	require.ErrorIs(t, d.Err(), io.EOF)
	blocks := mapped(t, d, ref, second)
	require.Equal(t, b, blocks[0].Data)
	require.Equal(t, other, blocks[1].Data)
	require.ErrorIs(t, d.Share(ctx, a, ref), io.EOF)
	_, err = d.Map(ctx, shm.Ref{Arena: ref.Arena, Segment: ref.Segment, Offset: 1 << 16, Len: 1})
	require.ErrorContains(t, err, "not within a segment")
	blocks[1].Release()
	require.NoError(t, d.Close())
	_, err = d.Map(ctx, ref)
	require.EqualError(t, err, "shm: map 1 refs: shm: closed")
	require.ErrorIs(t, d.Err(), io.EOF)
	require.Equal(t, b, blocks[0].Data, "a Block is open until Release")
	a.Free(b)
	a.Free(other)
	require.NoError(t, a.Close())
	require.Equal(t, before+1, segments(os.Getpid()))
	blocks[0].Release()
	require.Equal(t, before, segments(os.Getpid()))
}

// TestReleaseThenClose checks that releases before Close are sent, so that no memory is retired.
func TestReleaseThenClose(t *testing.T) {
	for range 100 {
		ctx := within(t)
		c, d := pair(t)
		a := newArena(t, nil)
		_, ref := shared(t, c, a, 1000, 1)
		blocks := mapped(t, d, ref)
		blocks[0].Release()
		require.NoError(t, d.Close())
		require.NoError(t, c.WaitReleased(ctx, ref))
		<-c.Done()
		require.NoError(t, c.WaitReleased(ctx, ref), "even after the end")
		require.Zero(t, a.Stats().Retired)
	}
}

// TestArenaCloses checks that shared memory outlives its arena at the peer, and memory in use
// outlives it here.
func TestArenaCloses(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, &shm.Options{Segment: 1 << 16})
	freed, ref := filled(t, a, 1<<16, 1)
	kept, still := filled(t, a, 1<<16, 2)
	want := sum(freed)
	require.NoError(t, c.Share(ctx, a, ref, still))
	a.Free(freed)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.Equal(t, shm.Stats{Segments: 1, Mapped: 1 << 16, Taken: 1 << 16, InUse: 1 << 16, Shared: 1 << 16}, a.Stats())
	_, err := a.Alloc(1)
	require.ErrorIs(t, err, shm.ErrClosed)
	require.ErrorIs(t, c.Share(ctx, a, still), shm.ErrClosed)
	blocks := mapped(t, d, ref, still)
	require.Equal(t, want, sum(blocks[0].Data))
	require.Equal(t, kept, blocks[1].Data)
	blocks[0].Release()
	blocks[1].Release()
	require.NoError(t, c.WaitReleased(ctx, ref, still))
	a.Free(kept)
	require.Zero(t, a.Stats())
}

// TestReadOnly checks that a Block cannot be written to, nor made writable.
func TestReadOnly(t *testing.T) {
	c, d := pair(t)
	a := newArena(t, nil)
	_, ref := shared(t, c, a, 1<<16, 1)
	blocks := mapped(t, d, ref)
	data := blocks[0].Data
	require.ErrorIs(t, unix.Mprotect(data, unix.PROT_READ|unix.PROT_WRITE), unix.EACCES)
	require.Error(t, unix.Madvise(data, unix.MADV_REMOVE))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	require.Panics(t, func() { data[0] = 1 })
	blocks[0].Release()
}

// TestFullSocket checks Share with a peer that does not read: it blocks no longer than its context
// if there are segments to send, not at all if there are none, and few descriptors are queued.
func TestFullSocket(t *testing.T) {
	ctx := within(t)
	c, _ := raw(t)
	page := os.Getpagesize()
	a := newArena(t, &shm.Options{Segment: int64(page)})
	short := testcluster.Within(t, 100*time.Millisecond)
	var refs []shm.Ref
	var err error
	for {
		_, ref := filled(t, a, page, 1)
		if err = c.Share(short, a, ref); err != nil {
			break
		}
		refs = append(refs, ref)
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, len(refs), 2000)
	require.EqualValues(t, len(refs)*page, a.Stats().Shared, "the last is not shared")
	for range 1000 {
		require.NoError(t, c.Share(short, a, refs...), "nothing to send")
	}
	many := newArena(t, &shm.Options{Segment: int64(page)})
	before := open(t)
	var blocks [][]byte
	var late []shm.Ref
	for range 1000 {
		b, ref := filled(t, many, page, 1)
		blocks, late = append(blocks, b), append(late, ref)
	}
	require.ErrorIs(t, c.Share(short, many, late...), context.DeadlineExceeded)
	require.Zero(t, many.Stats().Shared)
	for _, b := range blocks {
		many.Free(b)
	}
	many.Trim()
	require.LessOrEqual(t, open(t), before+256, "that wait to be sent")
	require.NoError(t, c.Close())
	require.LessOrEqual(t, open(t), before)
	require.ErrorIs(t, c.Share(ctx, a, refs...), shm.ErrClosed)
	require.Equal(t, len(refs), a.Stats().Retired)
}

// TestLendSendsNothing checks that sharing memory of a segment that the peer has sends nothing over
// the socket.
func TestLendSendsNothing(t *testing.T) {
	ctx := within(t)
	c, far := raw(t)
	a := newArena(t, nil)
	_, ref := filled(t, a, 1000, 1)
	_, other := filled(t, a, 1000, 2)
	for range 100 {
		require.NoError(t, c.Share(ctx, a, ref, other))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := c.Share(ctx, a, ref); err != nil {
			panic(err)
		}
	}))
	require.NoError(t, c.Close()) // all is sent
	all, err := io.ReadAll(far.sock)
	require.NoError(t, err)
	require.Len(t, all, 8+24, "one segment")
}

// TestTakeBack ends the sharing of blocks that the peer was not notified of: their memory is
// reused, and other blocks stay shared.
func TestTakeBack(t *testing.T) {
	c, p := pair(t)
	a := newArena(t, &shm.Options{Limit: 1 << 20})
	b, ref := filled(t, a, 600<<10, 1)
	require.NoError(t, c.Share(t.Context(), a, ref, ref))
	require.NoError(t, c.Unshare(ref))
	a.Free(b)
	_, err := a.Alloc(600 << 10)
	require.ErrorIs(t, err, shm.ErrFull, "one shared block is left")
	passed(t, c, p, ref)
	alloc(t, a, 600<<10)
	require.Error(t, c.Unshare(ref), "it is not shared")
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Unshare(ref), shm.ErrClosed)
}

func TestMost(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: a million shared blocks: not in a short run")
	}
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, nil)
	_, ref := filled(t, a, 10, 1)
	const most = 1 << 20
	refs := slices.Repeat([]shm.Ref{ref}, most)
	require.NoError(t, c.Share(ctx, a, refs[1:]...))
	require.EqualError(t, c.Share(ctx, a, ref, ref), "shm: share 2 refs: 1048575 are shared over this Conn and not released, and 1048576 is the most")
	require.NoError(t, c.Share(ctx, a, ref))
	blocks := mapped(t, d, refs...)
	_, err := d.Map(ctx, ref)
	require.ErrorContains(t, err, "shm: map 1 refs: 1048576 Blocks are not released")
	for _, b := range blocks {
		b.Release()
	}
	require.NoError(t, c.WaitReleased(ctx, ref))
	require.NoError(t, c.Share(ctx, a, ref))
	passed(t, c, d, ref)
	require.Zero(t, a.Stats().Shared)
}

// TestMostSegments checks how many segments a peer may have, and that it has each of them until all
// blocks of it are released, even if their arenas are closed before the peer is notified of the
// blocks.
func TestMostSegments(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: 4,096 segments: not in a short run")
	}
	ctx := within(t)
	before, files := segments(os.Getpid()), open(t)
	c, d := pair(t)
	page := os.Getpagesize()
	var refs []shm.Ref
	for i := range 8 { // of 512 segments each, so that few descriptors are open
		a := newArena(t, &shm.Options{Segment: int64(page)})
		for range 512 {
			b, ref := shared(t, c, a, page, uint64(i))
			refs = append(refs, ref)
			a.Free(b)
		}
		require.NoError(t, a.Close())
	}
	a := newArena(t, nil)
	b, ref := filled(t, a, 10, 1)
	require.EqualError(t, c.Share(ctx, a, ref),
		"shm: share 1 refs: the peer has 4096 segments, the most there may be: Trim, or set Options.Segment to more than 64.0 MiB")
	blocks := mapped(t, d, refs...)
	require.LessOrEqual(t, open(t), files+8, "sockets, and a's")
	want := make([]byte, page)
	for i, b := range blocks {
		if i%512 == 0 {
			fill(want, uint64(i/512))
		}
		require.Equal(t, want, b.Data)
		b.Release()
	}
	require.NoError(t, c.WaitReleased(ctx, refs...))
	require.NoError(t, c.Share(ctx, a, ref))
	passed(t, c, d, ref)
	a.Free(b)
	a.Trim()
	testcluster.Eventually(t, testTimeout, func() bool { return segments(os.Getpid()) == before }, "the peer to unmap them")
}

// TestReleaseDoesNotWait releases more than a socket buffer holds, to a peer that does not read.
func TestReleaseDoesNotWait(t *testing.T) {
	d, owner := raw(t)
	owner.segment(owner.memfd(1<<16, sealedAll), 1<<16)
	const rounds, each = 64, 2000
	for range rounds {
		refs := make([]shm.Ref, each)
		for i := range refs {
			refs[i] = shm.Ref{Arena: 1, Segment: 1, Offset: int64(i), Len: 1}
		}
		for _, b := range mapped(t, d, refs...) {
			b.Release()
		}
	}
	require.NoError(t, d.Err())
	go func() { _, _ = io.Copy(io.Discard, owner.sock) }()
	require.NoError(t, d.Close())
	owner.sock.Close()
}

// TestWaitersEndWithTheConn checks that all waiting calls return when the Conn ends.
func TestWaitersEndWithTheConn(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, nil)
	_, ref := shared(t, c, a, 10, 1)
	blocks := mapped(t, d, ref)
	var waits sync.WaitGroup
	for range 4 {
		waits.Go(func() {
			_, err := d.Map(ctx, shm.Ref{Arena: 1, Len: 1})
			assert.ErrorIs(t, err, shm.ErrClosed)
		})
		waits.Go(func() { assert.ErrorIs(t, c.WaitReleased(ctx, ref), io.EOF) })
	}
	require.NoError(t, d.Close())
	waits.Wait()
	blocks[0].Release()
}

// TestOtherSockets checks that a Conn requires a stream socket.
func TestOtherSockets(t *testing.T) {
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixgram"}
	s, err := net.ListenUnixgram("unixgram", addr)
	require.NoError(t, err)
	c := shm.NewConn(s)
	<-c.Done()
	require.ErrorContains(t, c.Err(), "stream")
	require.NoError(t, c.Close())
}

// TestManyAtOnce shares, maps and releases from many goroutines over several Conns, and checks each
// byte.
func TestManyAtOnce(t *testing.T) {
	ctx := within(t)
	a := newArena(t, &shm.Options{Segment: 1 << 18})
	var all sync.WaitGroup
	for conn := range 3 {
		c, d := pair(t)
		for g := range 4 {
			all.Go(func() {
				for i := range 60 {
					seed := uint64(conn<<16 | g<<8 | i)
					n := 1 + int(seed*7919)%50_000
					b, err := a.Alloc(n)
					if !assert.NoError(t, err) {
						return
					}
					fill(b, seed)
					want := sum(b)
					ref, _ := a.Find(b)
					if !assert.NoError(t, c.Share(ctx, a, ref)) {
						return
					}
					a.Free(b)
					blocks, err := d.Map(ctx, ref)
					if !assert.NoError(t, err) {
						return
					}
					assert.Equal(t, want, sum(blocks[0].Data))
					blocks[0].Release()
					if i%16 == 0 {
						a.Trim()
						assert.NoError(t, c.WaitReleased(ctx, ref))
					}
				}
			})
		}
	}
	all.Wait()
	testcluster.Eventually(t, testTimeout, func() bool { return a.Stats().InUse == 0 }, "all to be returned")
	a.Trim()
	require.Zero(t, a.Stats())
}
