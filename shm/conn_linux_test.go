package shm_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/shm"
)

// TestLendMapRelease is the way that memory goes, both ways over one Conn.
func TestLendMapRelease(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	for _, way := range []struct{ from, to *shm.Conn }{{c, d}, {d, c}} {
		a := newArena(t, nil)
		b, ref := filled(t, a, 1<<20, 1)
		part, ok := a.Find(b[100:300])
		require.True(t, ok)
		require.NoError(t, way.from.Lend(ctx, a, ref, part))
		require.EqualValues(t, 1<<20, a.Stats().Lent)
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
		require.NoError(t, way.from.Returned(ctx, ref, part))
		require.Zero(t, a.Stats().Lent)
		a.Free(b)
	}
}

// TestAsOftenAsLent shows that a ref can be mapped as often as it was lent, and all or nothing.
func TestAsOftenAsLent(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, nil)
	_, ref := filled(t, a, 100, 1)
	_, late := filled(t, a, 100, 2)
	require.NoError(t, c.Lend(ctx, a, ref, ref))
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err := d.Map(short, ref, ref, ref)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = d.Map(short, ref, late)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, fmt.Sprintf("map 2 refs, of which the peer has not lent %+v", late))
	one, err := d.Map(ctx, ref)
	require.NoError(t, err)
	got := make(chan []*shm.Block)
	go func() {
		blocks, _ := d.Map(ctx, ref, late)
		got <- blocks
	}()
	require.NoError(t, c.Lend(ctx, a, late))
	rest := <-got
	require.Len(t, rest, 2)
	one[0].Release()
	err = c.Returned(short, late, ref)
	require.ErrorIs(t, err, context.DeadlineExceeded, "one is still out")
	require.ErrorContains(t, err, fmt.Sprintf("of which the peer has %+v", late))
	rest[0].Release()
	require.NoError(t, c.Returned(ctx, ref))
	rest[1].Release()
	require.NoError(t, c.Returned(ctx, ref, late))
	nothing, err := d.Map(ctx)
	require.NoError(t, err)
	require.Empty(t, nothing)
	require.NoError(t, c.Lend(ctx, a))
	require.NoError(t, c.Returned(ctx))
}

// TestNotReusedWhileHeld shows that freed memory waits for its peer, and for the last of several.
func TestNotReusedWhileHeld(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	e, f := pair(t)
	a := newArena(t, &shm.Options{Segment: 1 << 20})
	b, ref := filled(t, a, 1<<20, 1)
	want := sum(b)
	require.NoError(t, c.Lend(ctx, a, ref))
	require.NoError(t, e.Lend(ctx, a, ref))
	one, err := d.Map(ctx, ref)
	require.NoError(t, err)
	two, err := f.Map(ctx, ref)
	require.NoError(t, err)
	a.Free(b)
	require.Panics(t, func() { a.Free(b) })
	_, ok := a.Find(b)
	require.False(t, ok)
	require.Error(t, c.Lend(ctx, a, ref), "it is freed")
	other := alloc(t, a, 1<<20)
	fill(other, 2)
	a.Free(other)
	a.Trim()
	require.Equal(t, 1, a.Stats().Segments, "that which is held")
	one[0].Release()
	require.NoError(t, c.Returned(ctx, ref))
	fill(alloc(t, a, 1<<20), 3)
	require.Equal(t, want, sum(two[0].Data))
	two[0].Release()
	require.NoError(t, e.Returned(ctx, ref))
	alloc(t, a, 1<<20)
	require.Equal(t, shm.Stats{Segments: 2, Mapped: 2 << 20, Taken: 2 << 20, InUse: 2 << 20}, a.Stats())
}

// TestConnEnds shows what each side has when a Conn ends while something is lent: a Block stays what it is, and its memory is never written
// to again.
func TestConnEnds(t *testing.T) {
	for _, who := range []string{"lender", "borrower"} {
		t.Run(who, func(t *testing.T) {
			ctx := within(t)
			c, d := pair(t)
			a := newArena(t, &shm.Options{Segment: 1 << 20})
			b, ref := filled(t, a, 1000, 1)
			kept, _ := filled(t, a, 1000, 2)
			want := sum(b)
			require.NoError(t, c.Lend(ctx, a, ref))
			blocks, err := d.Map(ctx, ref)
			require.NoError(t, err)
			ends, peer := c, d
			if who == "borrower" {
				ends, peer = d, c
			}
			require.NoError(t, ends.Close())
			<-peer.Done()
			require.ErrorIs(t, ends.Err(), shm.ErrClosed)
			require.ErrorIs(t, peer.Err(), io.EOF)
			require.ErrorIs(t, c.Returned(ctx, ref), c.Err())
			require.ErrorIs(t, c.Lend(ctx, a, ref), c.Err())
			_, err = d.Map(ctx, ref)
			require.ErrorIs(t, err, d.Err())

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

// TestReleaseThenClose shows that what was released before Close is told, so that nothing is retired.
func TestReleaseThenClose(t *testing.T) {
	for range 100 {
		ctx := within(t)
		c, d := pair(t)
		a := newArena(t, nil)
		_, ref := filled(t, a, 1000, 1)
		require.NoError(t, c.Lend(ctx, a, ref))
		blocks, err := d.Map(ctx, ref)
		require.NoError(t, err)
		blocks[0].Release()
		require.NoError(t, d.Close())
		require.NoError(t, c.Returned(ctx, ref))
		<-c.Done()
		require.NoError(t, c.Returned(ctx, ref), "also after the end")
		require.Zero(t, a.Stats().Retired)
	}
}

// TestArenaCloses shows that what is lent outlives its arena at the peer, and what is in use outlives it here.
func TestArenaCloses(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, &shm.Options{Segment: 1 << 16})
	freed, ref := filled(t, a, 1<<16, 1)
	kept, still := filled(t, a, 1<<16, 2)
	want := sum(freed)
	require.NoError(t, c.Lend(ctx, a, ref, still))
	a.Free(freed)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.Equal(t, shm.Stats{Segments: 1, Mapped: 1 << 16, Taken: 1 << 16, InUse: 1 << 16, Lent: 1 << 16}, a.Stats())
	_, err := a.Alloc(1)
	require.ErrorIs(t, err, shm.ErrClosed)
	require.ErrorIs(t, c.Lend(ctx, a, still), shm.ErrClosed)
	blocks, err := d.Map(ctx, ref, still)
	require.NoError(t, err)
	require.Equal(t, want, sum(blocks[0].Data))
	require.Equal(t, kept, blocks[1].Data)
	blocks[0].Release()
	blocks[1].Release()
	require.NoError(t, c.Returned(ctx, ref, still))
	a.Free(kept)
	require.Zero(t, a.Stats())
}

// TestTrimReachesThePeer shows that a segment that the owner gives back is unmapped at the peer.
func TestTrimReachesThePeer(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	before := segments(os.Getpid())
	a := newArena(t, nil)
	for range 3 {
		b, ref := filled(t, a, 1<<20, 1)
		require.NoError(t, c.Lend(ctx, a, ref))
		blocks, err := d.Map(ctx, ref)
		require.NoError(t, err)
		require.Equal(t, before+3, segments(os.Getpid()), "the owner's descriptor and mapping, and the peer's mapping")
		blocks[0].Release()
		require.NoError(t, c.Returned(ctx, ref))
		a.Free(b)
		a.Trim()
		require.Zero(t, a.Stats())
		testcluster.Eventually(t, patience, func() bool { return segments(os.Getpid()) == before }, "the peer to unmap it")
	}
}

// TestReadOnly shows that a Block cannot be written to, nor made writable.
func TestReadOnly(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, nil)
	_, ref := filled(t, a, 1<<16, 1)
	require.NoError(t, c.Lend(ctx, a, ref))
	blocks, err := d.Map(ctx, ref)
	require.NoError(t, err)
	data := blocks[0].Data
	require.ErrorIs(t, unix.Mprotect(data, unix.PROT_READ|unix.PROT_WRITE), unix.EACCES)
	require.Error(t, unix.Madvise(data, unix.MADV_REMOVE))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	require.Panics(t, func() { data[0] = 1 })
	blocks[0].Release()
}

// TestFullSocket shows that a peer that does not read keeps nobody longer than they want, and takes no memory without end.
func TestFullSocket(t *testing.T) {
	ctx := within(t)
	near, far := sockets(t)
	defer far.Close()
	c := shm.NewConn(near)
	a := newArena(t, nil)
	b := alloc(t, a, 1<<16)
	refs := make([]shm.Ref, 0, 1000)
	for i := range 1000 {
		r, ok := a.Find(b[i:])
		require.True(t, ok)
		refs = append(refs, r)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	n := 0
	var err error
	for ; err == nil; n++ {
		err = c.Lend(short, a, refs...)
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, n, 100, "32 KiB each")
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Lend(ctx, a, refs...), shm.ErrClosed)
	require.Equal(t, 1, a.Stats().Retired)
}

// TestReleaseDoesNotWait releases more than a socket takes at once to a peer that does not read.
func TestReleaseDoesNotWait(t *testing.T) {
	ctx := within(t)
	near, far := sockets(t)
	d := shm.NewConn(near)
	lender := rawPeer{t, far}
	s := lender.memfd(1<<16, sealedAll)
	lender.segment(s, 1<<16)
	const rounds, each = 64, 2000
	for range rounds {
		refs := make([]shm.Ref, each)
		for i := range refs {
			refs[i] = shm.Ref{Arena: 1, Segment: 1, Offset: int64(i), Len: 1}
		}
		lender.lend(refs...)
		blocks, err := d.Map(ctx, refs...)
		require.NoError(t, err)
		for _, b := range blocks {
			b.Release()
		}
	}
	require.NoError(t, d.Err())
	go func() { _, _ = io.Copy(io.Discard, far) }()
	require.NoError(t, d.Close())
	far.Close()
}

// TestWaitersHear shows that whoever waits hears of the end.
func TestWaitersHear(t *testing.T) {
	ctx := within(t)
	c, d := pair(t)
	a := newArena(t, nil)
	_, ref := filled(t, a, 10, 1)
	require.NoError(t, c.Lend(ctx, a, ref))
	blocks, err := d.Map(ctx, ref)
	require.NoError(t, err)
	var waits sync.WaitGroup
	for range 4 {
		waits.Go(func() {
			_, err := d.Map(ctx, ref)
			assert.ErrorIs(t, err, shm.ErrClosed)
		})
		waits.Go(func() { assert.ErrorIs(t, c.Returned(ctx, ref), io.EOF) })
	}
	require.NoError(t, d.Close())
	waits.Wait()
	blocks[0].Release()
}

// TestOtherSockets shows that a Conn wants a stream.
func TestOtherSockets(t *testing.T) {
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixgram"}
	s, err := net.ListenUnixgram("unixgram", addr)
	require.NoError(t, err)
	c := shm.NewConn(s)
	<-c.Done()
	require.ErrorContains(t, c.Err(), "stream")
	require.NoError(t, c.Close())
}

// TestManyAtOnce lends, maps and releases from many goroutines over several Conns, and checks each byte.
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
					if !assert.NoError(t, c.Lend(ctx, a, ref)) {
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
						assert.NoError(t, c.Returned(ctx, ref))
					}
				}
			})
		}
	}
	all.Wait()
	testcluster.Eventually(t, patience, func() bool { return a.Stats().InUse == 0 }, "all to be returned")
	a.Trim()
	require.Zero(t, a.Stats())
}
