package pgroup_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// untilInMemory calls barriers until the last was decided in shared memory.
func untilInMemory(t *testing.T, g *pgroup.Group) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: processes share memory on Linux alone")
	}
	for range 3000 {
		before := pgroup.DecidedInMemory(g)
		require.NoError(t, g.Barrier(t.Context()))
		here := int64(pgroup.DecidedInMemory(g) - before)
		// Its result says whether all ranks decided the barrier in memory. A rank alone cannot: a
		// record is decided once.
		least, err := pgroup.AllReduce(t.Context(), g.Channel("in memory"), pgroup.Min, here)
		require.NoError(t, err)
		if least[0] == 1 {
			return
		}
	}
	t.Fatal("no barrier was decided in shared memory")
}

// TestNoSharedMemory has groups that may share no memory, or have too little: a control group of 90
// MiB, in which the rings of all ranks and channels would end a rank.
func TestNoSharedMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		setting string
		limit   int64 // of a control group; 0: none
	}{
		"off":     {"off", 0},
		"limited": {"", 90 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MUSTER_SHARED_MEMORY", tc.setting)
			enter := func(*testing.T) {}
			if tc.limit > 0 {
				procs := filepath.Join(testcluster.ControlGroup(t, tc.limit), "cgroup.procs")
				enter = func(t *testing.T) { require.NoError(t, os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0)) }
			}
			pgrouptest.Job{N: 2}.Run(t, func(t *testing.T, g *pgroup.Group) {
				enter(t)
				for range 2000 {
					require.NoError(t, g.Barrier(t.Context()))
				}
				require.Zero(t, pgroup.DecidedInMemory(g))
				require.NoError(t, g.Shutdown(t.Context()))
			})
		})
	}
}

// TestRankIsKilledInSharedMemory checks that the end of a process, at any place of an operation, ends
// the group as without shared memory.
func TestRankIsKilledInSharedMemory(t *testing.T) {
	pgrouptest.Job{N: 4, MayFail: []int{2}}.Run(t, func(t *testing.T, g *pgroup.Group) {
		untilInMemory(t, g)
		if g.Rank() == 2 {
			time.AfterFunc(20*time.Millisecond, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
		}
		for {
			if err := g.Barrier(t.Context()); err != nil {
				rankError(t, g, err, pgroup.ErrLost, "lost rank 2")
				break
			}
		}
		next, err := g.Shrink(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, next.Size())
		untilInMemory(t, next)
		require.NoError(t, next.Shutdown(t.Context()))
	})
}

// sharing runs body on three ranks of this process whose operations are decided in shared memory.
func sharing(t *testing.T, body func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	gs := share(t, 3, hosted)
	together(3, func(rank int) { body(t, gs[rank]) })
}

// TestMissingRankInSharedMemory checks that a deadline is kept, and names the missing rank.
func TestMissingRankInSharedMemory(t *testing.T) {
	sharing(t, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 1 {
			<-g.Context().Done()
			return
		}
		start := time.Now()
		err := g.Barrier(within(t, 500*time.Millisecond))
		took := time.Since(start)
		v := rankError(t, g, err, pgroup.ErrTimeout, "missing rank 1", "in shared memory")
		equal(t, g, "missing", v.Missing, []int{1})
		assert.GreaterOrEqual(t, took, 450*time.Millisecond)
		assert.LessOrEqual(t, took, 3*time.Second)
		require.NoError(t, g.Close())
	})
}

// TestMismatchInSharedMemory checks that all ranks get a mismatch if one calls another operation,
// even if the root of the others' has succeeded before.
func TestMismatchInSharedMemory(t *testing.T) {
	for name, first := range map[string]func(ctx context.Context, g *pgroup.Group) error{
		"allgather": func(ctx context.Context, g *pgroup.Group) error { _, err := pgroup.AllGather(ctx, g, 1); return err },
		"broadcast": func(ctx context.Context, g *pgroup.Group) error {
			_, err := pgroup.Broadcast(ctx, g, 0, "x")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			sharing(t, func(t *testing.T, g *pgroup.Group) {
				var err error
				if g.Rank() == 2 {
					<-time.After(10 * time.Millisecond) // the root is likely to be done
					_, err = pgroup.Broadcast(t.Context(), g, 0, 1)
				} else {
					err = first(t.Context(), g)
				}
				for err == nil {
					err = g.Barrier(t.Context())
				}
				rankError(t, g, err, pgroup.ErrMismatch, "ranks disagree")
			})
		})
	}
}

// TestEndsInSharedMemory checks that operations end when a rank leaves, aborts, cancels, refuses or
// skips.
func TestEndsInSharedMemory(t *testing.T) {
	ends := []struct {
		name string
		end  func(g *pgroup.Group)
		is   error
	}{
		{"leaves", func(g *pgroup.Group) { _ = g.Close() }, pgroup.ErrLeft},
		{"aborts", func(g *pgroup.Group) { g.Abort(errors.New("no more")) }, pgroup.ErrAborted},
		{"cancels", func(g *pgroup.Group) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = g.Barrier(ctx)
		}, pgroup.ErrCancelled},
		{"refuses", func(g *pgroup.Group) { _, _ = pgroup.AllGather(context.Background(), g, func() {}) }, pgroup.ErrInvalid},
		{"skips", func(g *pgroup.Group) {
			g.Skip(pgroup.Seq(g) + 1)
			_ = g.Barrier(context.Background())
		}, pgroup.ErrSkipped},
	}
	for _, e := range ends {
		t.Run(e.name, func(t *testing.T) {
			sharing(t, func(t *testing.T, g *pgroup.Group) {
				if g.Rank() == 2 {
					e.end(g)
					return
				}
				err := g.Barrier(t.Context())
				rankError(t, g, err, e.is)
				if e.name == "skips" { // so that rank 2 does not wait
					_ = g.Barrier(t.Context())
				}
			})
		})
	}
}

// share returns a group of ranks of this process whose operations are decided in shared memory.
func share(t *testing.T, n int, at place) []*pgroup.Group {
	t.Helper()
	gs := create(t, n, at)
	shareMemory(t, gs)
	together(n, func(rank int) { untilInMemory(t, gs[rank]) })
	return gs
}

// TestCloseBeforeTheMemoryIsJoined checks that an operation that has begun does not touch memory that
// Close has freed.
func TestCloseBeforeTheMemoryIsJoined(t *testing.T) {
	gs := create(t, 2, hosted)
	shareMemory(t, gs)
	finish := beginSlow(t, gs[1])
	require.NoError(t, gs[1].Close())
	require.ErrorIs(t, finish(), pgroup.ErrClosed)
}

// TestAbortBeforeTheMemoryIsJoined checks that no operation succeeds after an Abort, even if the memory
// is opened after it.
func TestAbortBeforeTheMemoryIsJoined(t *testing.T) {
	gs := create(t, 2, hosted)
	gs[0].Abort(errors.New("no more"))
	together(2, func(rank int) { rankError(t, gs[rank], gs[rank].Barrier(t.Context()), pgroup.ErrAborted) })
	shareMemory(t, gs)
	for range 3 {
		together(2, func(rank int) { rankError(t, gs[rank], gs[rank].Barrier(t.Context()), pgroup.ErrAborted) })
	}
}

// TestRootIsAheadInSharedMemory checks that a root does not wait in memory for each of its operations
// while a reader is busy.
func TestRootIsAheadInSharedMemory(t *testing.T) {
	gs := share(t, 2, hosted)
	start := time.Now()
	for range 120 {
		_, err := pgroup.Broadcast(t.Context(), gs[0], 0, "x")
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, time.Since(start), 2*time.Second)
	for range 120 {
		got, err := pgroup.Broadcast(t.Context(), gs[1], 0, "")
		require.NoError(t, err)
		require.Equal(t, "x", got)
	}
}

// TestUnknownInSharedMemory checks that ranks that wait for one whose vote was lost get the reason when
// it goes on, and not at their deadlines, and that memory decides again after that.
func TestUnknownInSharedMemory(t *testing.T) {
	l := testcluster.Listen(t)
	p := testcluster.NewProxy(t, l.Addr().String())
	gs := share(t, 3, func(*testing.T) func(int) pgroup.Config {
		return func(rank int) pgroup.Config {
			return []pgroup.Config{{Listener: l}, {Address: p.Addr()}, {Address: l.Addr().String()}}[rank]
		}
	})
	lost := make(chan struct{})
	together(3, func(rank int) {
		g := gs[rank]
		if rank != 1 {
			<-lost
			rankError(t, g, g.Barrier(within(t, 30*time.Second)), pgroup.ErrSkipped)
			_, err := pgroup.Broadcast(t.Context(), g, 1, "")
			ok(t, g, "the next broadcast", err)
			untilInMemory(t, g)
			return
		}
		p.Up.Stall(true)
		err := g.Barrier(within(t, 400*time.Millisecond))
		p.Cut(testcluster.Ending(0))
		p.Up.Stall(false)
		close(lost)
		assert.ErrorIs(t, err, pgroup.ErrUnknown)
		_, err = pgroup.Broadcast(t.Context(), g, 1, "x")
		ok(t, g, "the next broadcast", err)
		untilInMemory(t, g)
	})
}

// untilMessagesInMemory has ranks 0 and 1 exchange messages until one of each was passed in shared
// memory.
func untilMessagesInMemory(t *testing.T, g *pgroup.Group) {
	t.Helper()
	peer, before := 1-g.Rank(), pgroup.PassedInMemory(g)
	for range 100_000 {
		own := pgroup.PassedInMemory(g) > before
		ok(t, g, "send", pgroup.Send(t.Context(), g, peer, own))
		theirs, err := pgroup.Recv[bool](t.Context(), g, peer)
		ok(t, g, "recv", err)
		if theirs && own || t.Failed() {
			return
		}
	}
	t.Error("no message was passed in shared memory")
}

// TestMessagesInSharedMemory checks that processes of one host pass messages in memory after a while,
// without a collective operation, in order, of any size.
func TestMessagesInSharedMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: processes share memory on Linux alone")
	}
	// Each message takes several turns of the scheduler, tens of milliseconds each on a busy machine.
	pgrouptest.Job{N: 3, Timeout: 4 * time.Minute}.Run(t, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 2 {
			require.NoError(t, g.Shutdown(t.Context()))
			return
		}
		// Each rank sends in bursts, while the other one receives now and then.
		burst := func(n int) {
			for i := range n {
				length := []int{1, 100, 20_000}[i%3]
				if i%32 == 31 { // few: under the race detector, on a busy machine, a megabyte takes half a second
					length = 400_000
				}
				want := strings.Repeat(fmt.Sprint(i, ";"), length)
				if g.Rank() == 0 {
					require.NoError(t, pgroup.Send(t.Context(), g, 1, want))
					continue
				}
				got, err := pgroup.Recv[string](t.Context(), g, 0)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
		burst(100)
		for range testcluster.Form(1, 30) {
			for _, n := range []int{1, 3, 40, 200} {
				burst(n)
			}
			untilMessagesInMemory(t, g)
		}
		require.NoError(t, g.Shutdown(t.Context()))
	})
}

// TestSenderIsKilledInSharedMemory checks that what a rank sent before it was killed is received before
// the news of that, and that no message is sent after it.
func TestSenderIsKilledInSharedMemory(t *testing.T) {
	for i := range testcluster.Form(2, 40) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			pgrouptest.Job{N: 3, MayFail: []int{2}}.Run(t, func(t *testing.T, g *pgroup.Group) {
				untilInMemory(t, g) // so that all have opened it
				if g.Rank() == 2 {
					time.AfterFunc(time.Duration(50+10*(i%10))*time.Millisecond, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
					for n := 1; ; n++ { // the Send to 0 has succeeded before that to 1 begins
						require.NoError(t, pgroup.Send(t.Context(), g, 0, n))
						require.NoError(t, pgroup.Send(t.Context(), g, 1, n))
					}
				}
				last := 0
				for {
					n, err := pgroup.Recv[int](t.Context(), g, 2)
					if err != nil {
						rankError(t, g, err, pgroup.ErrLost, "lost rank 2")
						break
					}
					require.Equal(t, last+1, n)
					last = n
				}
				rankError(t, g, pgroup.Send(t.Context(), g, 1-g.Rank(), 1), pgroup.ErrLost)
				next, err := g.Shrink(t.Context())
				require.NoError(t, err)
				all, err := pgroup.AllGather(t.Context(), next, last)
				require.NoError(t, err)
				if all[0] < all[1] || all[0] > all[1]+1 || all[0] == 0 {
					t.Errorf("rank 0 has received %d messages, and rank 1 %d", all[0], all[1])
				}
				require.NoError(t, next.Shutdown(t.Context()))
			})
		})
	}
}

// TestSendAfterAbortInSharedMemory checks that no message is passed after an Abort, also to a rank that
// waits for it in memory.
func TestSendAfterAbortInSharedMemory(t *testing.T) {
	for range testcluster.Form(20, 500) {
		gs := share(t, 2, hosted)
		together(2, func(rank int) {
			untilMessagesInMemory(t, gs[rank])
			if rank == 1 {
				for { // until the Abort; messages before it may arrive
					if _, err := pgroup.Recv[string](t.Context(), gs[1], 0); err != nil {
						rankError(t, gs[1], err, pgroup.ErrAborted)
						return
					}
				}
			}
			ok(t, gs[0], "send", pgroup.Send(t.Context(), gs[0], 1, "x"))
			gs[0].Abort(errors.New("no more"))
			rankError(t, gs[0], pgroup.Send(t.Context(), gs[0], 1, "x"), pgroup.ErrAborted)
		})
	}
}

// TestKeptMessageInSharedMemory checks that a message of another type than the receiver wants stays for
// it, in order.
func TestKeptMessageInSharedMemory(t *testing.T) {
	gs := share(t, 2, hosted)
	together(2, func(rank int) {
		g := gs[rank]
		untilMessagesInMemory(t, g)
		for i := range 200 {
			if rank == 0 {
				ok(t, g, "send", pgroup.Send(t.Context(), g, 1, i))
				continue
			}
			for range 2 {
				_, err := pgroup.Recv[string](t.Context(), g, 0)
				assert.ErrorIs(t, err, pgroup.ErrMismatch)
			}
			got, err := pgroup.Recv[int](t.Context(), g, 0)
			ok(t, g, "recv", err)
			equal(t, g, "recv", got, i)
		}
	})
}

// TestRecvInSharedMemory checks that a receive whose wait began in memory keeps its deadline, names the
// rank, and ends with it.
func TestRecvInSharedMemory(t *testing.T) {
	gs := share(t, 3, hosted)
	together(2, func(rank int) { untilMessagesInMemory(t, gs[rank]) })
	start := time.Now()
	_, err := pgroup.Recv[int](within(t, 500*time.Millisecond), gs[0], 1)
	v := rankError(t, gs[0], err, pgroup.ErrTimeout, "recv from 1", "missing rank 1")
	equal(t, gs[0], "missing", v.Missing, []int{1})
	took := time.Since(start)
	assert.GreaterOrEqual(t, took, 450*time.Millisecond)
	assert.LessOrEqual(t, took, 3*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err = pgroup.Recv[int](ctx, gs[0], 1)
	rankError(t, gs[0], err, pgroup.ErrCancelled)
	time.AfterFunc(10*time.Millisecond, func() { _ = gs[1].Close() })
	_, err = pgroup.Recv[int](t.Context(), gs[0], 1)
	rankError(t, gs[0], err, pgroup.ErrLeft, "rank 1 left")
}

// TestStoreFreesLargePayloads checks that the store does not keep the payloads of the last operation
// that it decided while later ones are decided in memory.
func TestStoreFreesLargePayloads(t *testing.T) {
	gs := share(t, 2, hosted)
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc >> 20)
	}
	before := heap()
	together(2, func(rank int) {
		_, err := pgroup.AllGather(t.Context(), gs[rank], make([]byte, 16<<20))
		ok(t, gs[rank], "all-gather", err)
	})
	together(2, func(rank int) { untilInMemory(t, gs[rank]) })
	if after := heap(); after > before+16 {
		t.Errorf("the heap has %d MiB, %d before two payloads of 16 MiB", after, before)
	}
}

// TestChannelsShareMemory checks that the operations of a group whose ranks are processes of one host
// are decided in memory after a while, with the same results, and those of channels too, each in its
// own memory, in their first use.
func TestChannelsShareMemory(t *testing.T) {
	pgrouptest.Job{N: 4}.Run(t, func(t *testing.T, g *pgroup.Group) {
		first, second := g.Channel("first"), g.Channel("second")
		for _, ch := range []*pgroup.Group{g, first, second} {
			untilInMemory(t, ch)
		}
		together(3, func(i int) {
			ch := []*pgroup.Group{g, first, second}[i]
			for i := range testcluster.Form(50, 1000) {
				checkVerbs(t, ch, i)
			}
		})
		require.NoError(t, first.Shutdown(t.Context()))
		again := g.Channel("first")
		for i := range 30 {
			checkVerbs(t, again, i)
		}
		require.Zero(t, pgroup.DecidedInMemory(again))
		require.NoError(t, g.Shutdown(t.Context()))
	})
}

// shareChannel is share for the channel "x" of each group.
func shareChannel(t *testing.T, n int, at place) (gs, xs []*pgroup.Group) {
	t.Helper()
	gs = create(t, n, at)
	for _, g := range gs {
		xs = append(xs, g.Channel("x"))
	}
	together(n, func(rank int) { ok(t, gs[rank], "barrier", xs[rank].Barrier(t.Context())) })
	shareMemory(t, xs)
	together(n, func(rank int) { untilInMemory(t, xs[rank]) })
	return gs, xs
}

// TestNextUseOfAChannelInSharedMemory checks that a reader gets the broadcasts of its own use of a
// channel, whatever the root has done with the name since.
func TestNextUseOfAChannelInSharedMemory(t *testing.T) {
	gs, xs := shareChannel(t, 2, hosted)
	n := pgroup.Seq(xs[0])
	send := func(x *pgroup.Group, what string) {
		for i := range 60 {
			_, err := pgroup.Broadcast(t.Context(), x, 0, fmt.Sprint(what, i))
			require.NoError(t, err)
		}
	}
	send(xs[0], "first")
	require.NoError(t, xs[0].Close())
	again := gs[0].Channel("x")
	for range n {
		_, err := pgroup.Broadcast(t.Context(), again, 0, "")
		require.NoError(t, err)
	}
	send(again, "second")
	for i := range 60 {
		got, err := pgroup.Broadcast(t.Context(), xs[1], 0, "")
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("first", i), got)
	}
	_, err := pgroup.AllGather(t.Context(), xs[1], 1)
	rankError(t, gs[1], err, pgroup.ErrSkipped, "it has closed the channel")
}

// TestCloseOfAChannelInSharedMemory checks that Close ends a call that waits in memory at once, for all
// ranks.
func TestCloseOfAChannelInSharedMemory(t *testing.T) {
	gs, xs := shareChannel(t, 3, hosted)
	called := make(chan struct{})
	together(4, func(rank int) {
		switch rank {
		case 0:
			close(called)
			assert.ErrorIs(t, xs[0].Barrier(t.Context()), pgroup.ErrClosed)
		case 1:
			err := xs[1].Barrier(t.Context())
			if v := rankError(t, gs[1], err, err, "has closed the channel"); v.Code != wire.CodeCancelled && v.Code != wire.CodeSkipped {
				t.Errorf("got %v, want ErrCancelled, or ErrSkipped if rank 0 had not called", err)
			}
		case 3: // rank 2 does not call
			<-called
			require.NoError(t, xs[0].Close())
		}
	})
	together(3, func(rank int) { ok(t, gs[rank], "barrier of the group", gs[rank].Barrier(t.Context())) })
}

// TestEndOfTheGroupInTheMemoryOfAChannel checks that the end of the group ends its channels, also
// operations of a root alone.
func TestEndOfTheGroupInTheMemoryOfAChannel(t *testing.T) {
	ends := map[string]func(g *pgroup.Group) error{
		"aborts":  func(g *pgroup.Group) error { g.Abort(errors.New("no more")); return pgroup.ErrAborted },
		"leaves":  func(g *pgroup.Group) error { return cmp.Or(g.Close(), pgroup.ErrLeft) },
		"differs": func(g *pgroup.Group) error { _, _ = pgroup.AllGather(t.Context(), g, 1); return pgroup.ErrMismatch },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			gs, xs := shareChannel(t, 2, hosted)
			var other sync.WaitGroup
			if name == "differs" {
				other.Go(func() { _ = gs[0].Barrier(t.Context()) })
			}
			want := end(gs[1])
			other.Wait()
			_, err := pgroup.AllGather(t.Context(), xs[0], 1)
			rankError(t, gs[0], err, want)
			if name != "leaves" { // which is no reason for a root to fail
				<-gs[0].Context().Done()
				_, err = pgroup.Broadcast(t.Context(), xs[0], 0, 1)
				rankError(t, gs[0], err, want)
			}
		})
	}
}

// TestManyProcessesShareMemory checks that the ranks of a group so large that they do not know each
// other's processes share memory, if they are processes.
func TestManyProcessesShareMemory(t *testing.T) {
	const n = wire.MaxInline + 1
	t.Run("processes", func(t *testing.T) {
		pgrouptest.Job{N: n}.Run(t, func(t *testing.T, g *pgroup.Group) {
			untilInMemory(t, g)
			every, err := pgroup.AllGather(t.Context(), g, g.Rank())
			require.NoError(t, err)
			require.Equal(t, upTo(n), every)
			require.NoError(t, g.Shutdown(t.Context()))
		})
	})
	t.Run("one process", func(t *testing.T) {
		gs := create(t, n, inMemory)
		together(n, func(rank int) {
			for range 70 {
				ok(t, gs[rank], "barrier", gs[rank].Barrier(t.Context()))
			}
		})
		key := fmt.Sprintf("%s/%d/\x00memory", gs[0].Name(), gs[0].Generation())
		require.NoError(t, gs[0].Close()) // waits for what makes the memory
		_, err := pgroup.StoreOf(gs[1]).Get(t.Context(), key)
		require.ErrorIs(t, err, store.ErrNotFound)
	})
}

// TestChannelsWithMemoryAreLimited checks that channels that are used at the same time do not all get a
// memory.
func TestChannelsWithMemoryAreLimited(t *testing.T) {
	pgrouptest.Job{N: 2}.Run(t, func(t *testing.T, g *pgroup.Group) {
		untilInMemory(t, g)
		together(100, func(i int) {
			for range 100 {
				ok(t, g, "barrier", g.Channel(fmt.Sprint(i)).Barrier(t.Context()))
			}
		})
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		if n := strings.Count(string(maps), "muster-group"); n < 2 || n > 16 {
			t.Errorf("%d memories", n)
		}
		require.NoError(t, g.Shutdown(t.Context()))
	})
}
