package gather_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// TestModelOpt01 to TestModelOpt09 check the failures of modelopt.torch.export.distribute, by their
// numbers.

// watched is a store that calls before with each request that reaches it, and after with each that it has
// applied; an error of after is the reply.
type watched struct {
	store.Engine
	before func(*wire.Request)
	after  func(ctx context.Context, req *wire.Request) error
}

func (w *watched) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if w.before != nil {
		w.before(req)
	}
	err := w.Engine.Do(ctx, req, rep)
	if w.after != nil {
		err = cmp.Or(w.after(ctx, req), err)
	}
	return err
}

// watch returns a new store that calls see with each request, one at a time.
func watch(t *testing.T, see func(*wire.Request)) *store.Store {
	var mu sync.Mutex
	s := store.New(&watched{Engine: testcluster.Store(t)(), before: func(req *wire.Request) {
		mu.Lock()
		defer mu.Unlock()
		see(req)
	}})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// offers reports whether req is the vote with the offer of the rank at index in the list, in the
// rank's nth verb: the rank sends from then on.
func offers(req *wire.Request, index int, nth uint64) bool {
	return req.Op == wire.OpCollect && req.Group.Channel == "verbs" && req.Group.Rank == index && req.Group.Seq == 2*nth-1
}

// gathers runs a gather of numbered tensors, and checks the result.
func (r *rank) gathers(ranks []int, number, n int) bool {
	res := r.gather(ranks, r.tensor(number+r.me(), n))
	defer res.Release()
	if res.First && !assert.Len(r, res.Items, len(ranks)) {
		return false
	}
	for rank, got := range res.Present() {
		equal(r.T, filled(number+rank, n), got)
	}
	return !r.Failed()
}

// TestModelOpt01LaterRun starts a job while an older one of the same name and run still exists, in
// the same directory: the new one gets its own tensors, and the old one gets an error.
func TestModelOpt01LaterRun(t *testing.T) {
	o := gather.Options{Dir: t.TempDir()}
	opened, later := make(chan struct{}, 2), make(chan struct{})
	var old sync.WaitGroup
	old.Go(func() {
		job{n: 2, runID: "restarted", o: o}.run(t, func(r *rank) {
			done := sync.OnceFunc(func() { opened <- struct{}{} })
			defer done() // if it fails too
			r.gathers([]int{0, 1}, 10, 100)
			done()
			<-later
			_, err := gather.Tensors(r.ctx, r.ga, []int{0, 1}, r.tensor(r.me(), 100))
			assert.ErrorIs(r, err, pgroup.ErrFailed)
			assert.Equal(r, 1, r.rankError(err).By)
			assert.ErrorContains(r, err, nfsws.ErrSuperseded.Error())
			assert.Equal(r, r.me() == 1, errors.Is(err, nfsws.ErrSuperseded))
		})
	})
	<-opened
	<-opened
	job{n: 2, runID: "restarted", o: o}.run(t, func(r *rank) {
		r.gathers([]int{0, 1}, 20, 100)
		assert.NoError(r, r.group.Barrier(r.ctx))
		if r.me() == 0 {
			close(later)
			old.Wait()
		}
		assert.NoError(r, r.group.Barrier(r.ctx))
		r.gathers([]int{0, 1}, 30, 100)
	})
}

// filesIn lists the files below dir.
func filesIn(t *testing.T, dir string) (files []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	return files
}

// TestModelOpt03FullMemory has less memory than needed: all ranks get an error that names the rank,
// and continue with smaller tensors.
func TestModelOpt03FullMemory(t *testing.T) {
	for _, w := range ways() {
		// these use no shared memory, the rank's own arena, or a mix
		if w.dir || w.allocated || w.mixed {
			continue
		}
		full := 1 // the rank that lacks the memory
		if w.apart {
			full = 0
		}
		t.Run(w.name, func(t *testing.T) {
			sharing(t)
			w.run(t, 3, gather.Options{Limit: 1 << 20}, func(r *rank) {
				for round := range 3 {
					var mine *tensor.Tensor
					if r.me() < 2 {
						mine = filled(r.me(), 1<<20)
					}
					res, err := gather.Tensors(r.ctx, r.ga, []int{0, 1, 2}, mine)
					assert.Nil(r, res)
					assert.ErrorIs(r, err, pgroup.ErrFailed)
					assert.Equal(r, full, r.rankError(err).By, "%v", err)
					assert.ErrorContains(r, err, "not enough memory")
					assert.Equal(r, r.me() == full, errors.Is(err, shm.ErrFull))
					if !r.gathers([]int{0, 1, 2}, 10*round, 1000) {
						return
					}
				}
			})
		})
	}
}

// TestModelOpt04Sizes gathers small parts of large tensors, and empty tensors: only the elements of
// the parts are transferred.
func TestModelOpt04Sizes(t *testing.T) {
	part := func(r *rank) *tensor.Tensor { // 1 KiB of 16 MiB
		p, err := tensor.Wrap(r.tensor(7, 1<<14, 256).Data[100<<10:101<<10], tensor.F32, 1, 256)
		require.NoError(r, err)
		return p
	}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			seen := new(testcluster.Events)
			job{way: w, n: 2, o: gather.Options{Limit: 1 << 20}, trace: seen}.run(t, func(r *rank) {
				want := map[string]*tensor.Tensor{"part": part(r), "nothing": tensor.New(tensor.F32, 5, 0), "scalar": filled(3), "bits": tensor.New(tensor.F4, 2)}
				for _, give := range []map[string]*tensor.Tensor{{}, want, {"nothing": want["nothing"]}, {}} {
					res, err := gather.TensorMaps(r.ctx, r.ga, []int{0, 1}, give)
					require.NoError(r, err)
					for _, got := range res.Present() {
						require.NotNil(r, got, "an empty map is not absent")
						assert.Len(r, got, len(give))
						for name := range give {
							equal(r.T, give[name], got[name])
						}
					}
					res.Release()
				}
			})
			for _, e := range seen.Of("gather.tensormaps") {
				if e.Seq == 2 {
					require.EqualValues(t, 1024+4+1, e.Bytes)
				}
			}
		})
	}
}

// mapping returns the line of /proc/self/maps that contains data: its file, and the offset of data
// in that file.
func mapping(t *testing.T, data []byte) (inode string, offset uint64) {
	t.Helper()
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data))))
	lines, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(lines)) {
		var from, to, off uint64
		var perm, dev string
		if _, err := fmt.Sscanf(line, "%x-%x %s %x %s %s", &from, &to, &perm, &off, &dev, &inode); err == nil && from <= at && at < to {
			return inode, off + at - from
		}
	}
	t.Errorf("nothing is mapped at %#x", at)
	return "", 0
}

// memory returns the number of segments that this process has descriptors of, and how many bytes of
// the host's memory they take.
func memory(t *testing.T) (segments int, taken int64) {
	t.Helper()
	const dir = "/proc/self/fd/"
	fds, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, fd := range fds {
		if to, _ := os.Readlink(dir + fd.Name()); strings.Contains(to, "memfd:muster-shm") {
			var s syscall.Stat_t
			require.NoError(t, syscall.Stat(dir+fd.Name(), &s))
			segments, taken = segments+1, taken+s.Blocks*512
		}
	}
	return segments, taken
}

// TestModelOpt05NoCopy has tensors that were allocated in an arena: the first rank maps the same
// pages of the same file.
func TestModelOpt05NoCopy(t *testing.T) {
	for _, w := range ways() {
		if !w.allocated {
			continue
		}
		_, former := memory(t) // segments of other tests' arenas that are still allocated
		w.run(t, 2, gather.Options{}, func(r *rank) {
			mine := r.tensor(r.me(), 1<<20)
			inode, offset := mapping(r.T, mine.Data)
			whole, err := pgroup.AllGather(r.ctx, r.group, []string{inode, fmt.Sprint(offset)})
			require.NoError(r, err)
			before := r.arena.Stats()
			for round := range 20 {
				mine.Data[0] = byte(round) // it may change once it is released
				res := r.gather([]int{0, 1}, mine)
				for rank, got := range res.Present() {
					assert.Equal(r, byte(round), got.Data[0])
					inode, offset := mapping(r.T, got.Data)
					assert.Equal(r, whole[rank], []string{inode, fmt.Sprint(offset)}, "rank %d's", rank)
				}
				res.Release()
				assert.NoError(r, res.WaitReleased(r.ctx))
			}
			assert.Equal(r, before, r.arena.Stats())
			_, taken := memory(r.T)
			assert.LessOrEqual(r, taken-former, int64(2*(4<<20+4096)), "no more than what is in the arena")
		})
	}
}

// TestModelOpt05Reused gathers many times: no new memory is allocated after the second.
func TestModelOpt05Reused(t *testing.T) {
	sharing(t)
	for _, w := range ways() {
		if w.dir || w.tls {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			former, _ := memory(t)
			w.run(t, 4, gather.Options{}, func(r *rank) {
				var segments int
				var taken int64
				mine := r.tensor(r.me(), 1<<18)
				for round := range 50 {
					res := r.gather([]int{2, 0, 1, 3}, mine)
					res.Release()
					assert.NoError(r, res.WaitReleased(r.ctx))
					require.NoError(r, r.group.Barrier(r.ctx))
					if round == 1 {
						segments, taken = memory(r.T)
					}
				}
				s, n := memory(r.T)
				assert.Equal(r, segments, s)
				assert.Equal(r, taken, n)
				assert.NoError(r, r.group.Barrier(r.ctx))
			})
			if left, _ := memory(t); !w.allocated {
				assert.Equal(t, former, left, "after Close")
			}
		})
	}
}

// TestModelOpt06Thousands gathers one tensor and thousands: both take as many requests to the
// store, and as many segments.
func TestModelOpt06Thousands(t *testing.T) {
	for _, w := range ways() {
		if w.tls { // its store needs certificates, and has the same counts as TCP's
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			const n = 3
			former, _ := memory(t)
			var requests atomic.Int64
			j := job{way: w, n: n, meet: watch(t, func(*wire.Request) { requests.Add(1) })}
			j.run(t, func(r *rank) {
				var took []int
				for _, many := range []int{1, 1, 5000, 1} { // the first makes the list's group
					ts := map[string]*tensor.Tensor{}
					for i := range many {
						x := filled(i, 1+i%50)
						if i%2 == 0 {
							x = r.tensor(i, 1+i%50)
						}
						ts[fmt.Sprintf("model.layers.%d.weight", i)] = x
					}
					assert.NoError(r, r.group.Barrier(r.ctx))
					// of all ranks: no rank continues before the next barrier
					before := requests.Load()
					assert.NoError(r, r.group.Barrier(r.ctx))
					res, err := gather.TensorMaps(r.ctx, r.ga, []int{1, 0, 2}, ts)
					require.NoError(r, err)
					for _, got := range res.Present() {
						assert.Len(r, got, many)
						for name := range ts {
							equal(r.T, ts[name], got[name])
						}
					}
					res.Release()
					assert.NoError(r, r.group.Barrier(r.ctx))
					took = append(took, int(requests.Load()-before))
					if !w.dir && !w.apart {
						segments, _ := memory(r.T)
						assert.LessOrEqual(r, segments-former, 2*n, "an arena for each rank, and one for the tensors in it")
					}
					assert.NoError(r, r.group.Barrier(r.ctx))
				}
				assert.LessOrEqual(r, slices.Max(took[1:]), 6*n, "two votes of each rank, and three barriers: %v", took)
			})
		})
	}
}

// TestModelOpt07NoRankIsStranded has one rank that does not take part, for each possible reason:
// before the list is used first, and later.
func TestModelOpt07NoRankIsStranded(t *testing.T) {
	t.Parallel()
	reason := errors.New("out of cheese")
	type failing struct {
		name  string
		fails func(r *rank)
		check func(r *rank, err error, who int)
		who   int // the first of the list, or the last
		known bool
	}
	cases := map[string]failing{}
	for _, test := range []failing{
		{name: "aborts", fails: func(r *rank) { r.group.Abort(reason) }, check: func(r *rank, err error, who int) {
			assert.ErrorIs(r, err, pgroup.ErrAborted)
			assert.Equal(r, who, r.rankError(err).By)
			assert.ErrorContains(r, err, reason.Error())
		}},
		{name: "closes its gatherer", fails: func(r *rank) {
			assert.NoError(r, r.ga.Close())
			_, err := gather.Tensors(r.ctx, r.ga, list, r.tensor(0, 3))
			assert.ErrorIs(r, err, pgroup.ErrClosed)
		}, check: func(r *rank, err error, who int) {
			assert.True(r, errors.Is(err, pgroup.ErrLeft) || errors.Is(err, pgroup.ErrTimeout), "%v", err)
			re := r.rankError(err)
			assert.Contains(r, append(re.Left, re.Missing...), who)
		}},
		{name: "closes its group", fails: func(r *rank) { assert.NoError(r, r.ga.Close()); assert.NoError(r, r.group.Close()) }, check: func(r *rank, err error, who int) {
			re := r.rankError(err)
			assert.Contains(r, append(re.Left, re.Missing...), who)
		}},
		{name: "never calls", fails: func(*rank) {}, check: func(r *rank, err error, who int) {
			assert.ErrorIs(r, err, pgroup.ErrTimeout)
			assert.Contains(r, r.rankError(err).Missing, who)
		}},
	} {
		for _, test.who = range []int{2, 3} {
			for _, test.known = range []bool{false, true} {
				cases[fmt.Sprintf("%s/rank %d/known %t", test.name, test.who, test.known)] = test
			}
		}
	}
	testcluster.AtOnce(t, maps.All(cases), func(t *testing.T, test failing) {
		var others sync.WaitGroup // of the list
		others.Add(2)
		way{}.run(t, 4, gather.Options{}, func(r *rank) {
			if r.me() != test.who && r.me() != 1 {
				defer others.Done()
			}
			if test.known && !r.gathers(list, 10, 100) {
				return
			}
			if r.me() == test.who {
				test.fails(r)
				others.Wait()
				return
			}
			if r.me() == 1 {
				return
			}
			timeout := 10 * time.Second
			if test.name == "never calls" || !test.known {
				timeout = 500 * time.Millisecond
			}
			_, err := gather.Tensors(testcluster.Within(r, timeout), r.ga, list, r.tensor(r.me(), 100))
			test.check(r, err, test.who)
			if test.known && test.name == "closes its gatherer" {
				assert.Equal(r, []int{test.who}, r.rankError(err).Left, "%v", err)
			}
		})
	})
}

// flip changes one bit in the middle of a file.
func flip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 1
	return os.WriteFile(path, b, 0o600)
}

// TestModelOpt09HalfAState damages the state that rank 1 has published before the first rank reads it, which still
// waits for rank 2: all ranks get an error that names rank and file, and then continue.
func TestModelOpt09HalfAState(t *testing.T) {
	t.Parallel()
	published := make(chan struct{})
	meet := watch(t, func(req *wire.Request) {
		if offers(req, 1, 2) {
			close(published)
		}
	})
	dir := t.TempDir()
	job{n: 3, meet: meet, o: gather.Options{Dir: dir}}.run(t, func(r *rank) {
		if !r.gathers([]int{0, 1, 2}, 0, 100) {
			return
		}
		if r.me() != 1 {
			<-published
		}
		if r.me() == 2 {
			files := slices.DeleteFunc(filesIn(r.T, dir), func(path string) bool {
				return !strings.HasPrefix(filepath.Base(path), "rank-1.") || !strings.HasSuffix(path, ".safetensors")
			})
			assert.NotEmpty(r, files)
			assert.NoError(r, flip(files[len(files)-1]))
		}
		_, err := gather.Tensors(r.ctx, r.ga, []int{0, 1, 2}, filled(r.me(), 1<<19))
		assert.ErrorIs(r, err, pgroup.ErrFailed)
		assert.Equal(r, 1, r.rankError(err).By)
		assert.ErrorContains(r, err, "/rank-1.")
		r.gathers([]int{0, 1, 2}, 10, 100)
	})
}

// TestModelOptScoped closes a Gatherer before a result is released, as upstream's context managers may.
func TestModelOptScoped(t *testing.T) {
	overAll(t, 2, func(r *rank) {
		late := r.gather([]int{0, 1}, r.tensor(1, 1000))
		assert.NoError(r, r.group.Barrier(r.ctx))
		assert.NoError(r, r.ga.Close())
		if late.First {
			assert.Nil(r, late.Items[1].Value.Data)
		}
		late.Release()
	})
}
