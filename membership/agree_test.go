package membership_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// history is the views that the workers of a job received.
type history struct {
	mu    sync.Mutex
	views map[string]membership.View // by run and generation: when all have left another run begins
	last  map[string][]string        // the workers of the last view of each worker
	came  map[string]int             // when each worker joined: ids are not reused
	wrong []string
	given int
}

// saw checks a view of worker id, whose last one was of generation before.
func (h *history) saw(id string, before uint64, v membership.View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given++
	no := func(format string, args ...any) { h.wrong = append(h.wrong, fmt.Sprintf(format, args...)) }
	if v.Generation <= before {
		no("%s is given generation %d after %d", id, v.Generation, before)
	}
	if v.Workers[v.Rank].ID != id {
		no("%s is rank %d of %v", id, v.Rank, v.Workers)
	}
	ids := idsOf(v.Workers)
	if !slices.IsSortedFunc(ids, func(a, b string) int { return h.came[a] - h.came[b] }) {
		no("%v are not in the order of registration", ids)
	}
	h.last[id] = ids
	key := fmt.Sprint(v.Config().Run, v.Generation)
	if other, ok := h.views[key]; ok && !slices.Equal(other.Workers, v.Workers) {
		no("generation %d is %v to %s, and %v to others", v.Generation, ids, id, idsOf(other.Workers))
	}
	h.views[key] = v
}

// life is a worker that joins every view that it is in.
type life struct {
	id   string
	way  *testcluster.Line
	m    *membership.Member
	done chan struct{}
}

func (h *history) live(t *testing.T, memory *store.Memory, c membership.Config) *life {
	l := &life{id: c.ID, way: testcluster.NewLine(memory), done: make(chan struct{})}
	h.mu.Lock()
	h.came[c.ID] = len(h.came)
	h.mu.Unlock()
	m, err := membership.Join(t.Context(), store.New(l.way), c)
	require.NoError(t, err)
	l.m = m
	t.Cleanup(func() {
		_ = m.Close()
		<-l.done
	})
	go func() {
		defer close(l.done)
		for before := uint64(0); ; {
			v, err := m.Next(context.Background())
			if err != nil {
				return
			}
			h.saw(c.ID, before, v)
			before = v.Generation
		}
	}()
	return l
}

// TestAllAreGivenTheSameViews lets workers join, leave, die and freeze at any moment, including the
// leader: a generation is always the same for all workers, and when nothing changes for a while all
// workers are in the last one.
func TestAllAreGivenTheSameViews(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 20
	}
	given := 0
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { given += agree(t, seed) })
		require.False(t, t.Failed(), "seed %d", seed)
	}
	require.Greater(t, given, int(seeds)*20)
	t.Logf("%d views in %d histories", given, seeds)
}

func agree(t *testing.T, seed uint64) int {
	chance := rand.New(rand.NewPCG(seed, 5))
	// a worker that was frozen may have to read the whole state again
	memory := &store.Memory{Limits: store.Limits{History: 1 << (2 * chance.IntN(8))}}
	t.Cleanup(func() { _ = memory.Close() })
	h := &history{views: map[string]membership.View{}, last: map[string][]string{}, came: map[string]int{}}
	least := 1 + chance.IntN(3)
	config := membership.Config{Job: "train", Min: least, Max: least + chance.IntN(4), TTL: 5 * time.Second}
	if chance.IntN(2) == 0 {
		config.Settle = 300 * time.Millisecond
	}
	var there, frozen, all []*life
	take := func(ls *[]*life) *life {
		i := chance.IntN(len(*ls))
		if chance.IntN(2) == 0 {
			i = 0 // the leader, or the next one
		}
		l := (*ls)[i]
		*ls = slices.Delete(*ls, i, i+1)
		return l
	}
	for n := range 60 {
		switch what := chance.IntN(10); {
		case len(there) == 0 || what < 4:
			config.ID = fmt.Sprint("w", n)
			l := h.live(t, memory, config)
			there, all = append(there, l), append(all, l)
		case what < 6:
			_ = take(&there).m.Leave(t.Context())
		case what < 7:
			_ = take(&there).m.Close()
		case what < 9:
			l := take(&there)
			if chance.IntN(2) == 0 {
				l.way.Freeze()
			} else {
				l.way.FreezeAt(wire.OpSwap) // at the moment of its decision, if it is the leader
			}
			frozen = append(frozen, l)
		case len(frozen) > 0:
			take(&frozen).way.Thaw() // evicted or not
		}
		if chance.IntN(2) == 0 {
			<-time.After(time.Duration(chance.IntN(3000)) * time.Millisecond)
		}
	}
	for _, l := range frozen {
		l.way.Thaw()
	}
	<-time.After(time.Minute)
	synctest.Wait()
	require.Empty(t, h.wrong)
	checkQuiet(t, h, all, config)
	return h.given
}

// checkQuiet checks that the first workers that live are in a view, and have received it.
func checkQuiet(t *testing.T, h *history, all []*life, c membership.Config) {
	var live []string
	for _, l := range all {
		select {
		case <-l.done:
		default:
			live = append(live, l.id)
		}
	}
	if len(live) < c.Min {
		return
	}
	view := live[:min(len(live), c.Max)]
	for _, id := range view {
		require.Equal(t, view, h.last[id], id)
	}
}

// late delays swaps and sets, even if their callers no longer wait.
type late struct {
	store.Engine
	holds atomic.Bool
	freed chan struct{}
}

func (l *late) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if (req.Op == wire.OpSwap || req.Op == wire.OpSet) && l.holds.Load() {
		<-l.freed
	}
	return l.Engine.Do(context.WithoutCancel(ctx), req, rep)
}

// TestLateLeader delays the requests of a leader that renews a view, or decides the next one, until
// it is evicted, and all others have moved on and left: none of the requests has an effect on the
// store, where the next job of the same name begins.
func TestLateLeader(t *testing.T) {
	for name, act := range map[string]func(t *testing.T, s *store.Store){
		"renews":  func(*testing.T, *store.Store) { <-time.After(30 * time.Minute) },
		"decides": func(t *testing.T, s *store.Store) { join(t, s, worker("other", 1, 2)) },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, memory *store.Memory) {
				slow, s := &late{Engine: memory, freed: make(chan struct{})}, store.New(memory)
				a := join(t, store.New(slow), worker("a", 1, 2))
				next(t, a, 0, "a")
				free := sync.OnceFunc(func() { close(slow.freed) })
				t.Cleanup(free) // before a is closed
				synctest.Wait()
				slow.holds.Store(true)
				act(t, s)
				synctest.Wait() // its request is under way
				var workers []string
				for key, err := range s.Keys(t.Context(), "membership/train/roster/worker/") {
					require.NoError(t, err)
					workers = append(workers, key)
				}
				_, err := s.Delete(t.Context(), workers...) // at once: the other one must not lead in between
				require.NoError(t, err)
				b := join(t, s, worker("b", 1, 2))
				require.EqualValues(t, 2, next(t, b, 0, "b").Generation)
				c := join(t, s, worker("c", 1, 2))
				require.EqualValues(t, 3, next(t, c, 1, "b", "c").Generation)
				require.NoError(t, b.Leave(bounded(t)))
				require.EqualValues(t, 4, next(t, c, 0, "c").Generation)
				require.NoError(t, c.Leave(bounded(t)))
				require.Zero(t, memory.Keys())
				free()
				synctest.Wait()
				require.Zero(t, memory.Keys())
				d := join(t, s, worker("d", 1, 2))
				require.EqualValues(t, 1, next(t, d, 0, "d").Generation)
			})
		})
	}
}

// lateList answers the list with which a watch begins only when it is freed: the first one is that of Join.
type lateList struct {
	store.Engine
	lists atomic.Int64
	freed chan struct{}
}

func (l *lateList) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	err := l.Engine.Do(ctx, req, rep)
	if req.Op == wire.OpList && l.lists.Add(1) == 2 {
		<-l.freed
	}
	return err
}

// TestViewThatGoesWhileAWorkerRegisters lets a worker read the view of those before it, decide after the
// last of them has deleted that, and only then take up what it has read: it has to take up its own view.
func TestViewThatGoesWhileAWorkerRegisters(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		s, slow := store.New(memory), &lateList{Engine: memory, freed: make(chan struct{})}
		a := join(t, s, worker("a", 1, 2))
		next(t, a, 0, "a")
		require.NoError(t, a.Close())
		c := worker("b", 1, 2)
		c.Settle = time.Second // it decides after the list
		b := join(t, store.New(slow), c)
		synctest.Wait()
		_, err := s.Delete(t.Context(), "membership/train/roster/view")
		require.NoError(t, err)
		<-time.After(time.Minute)
		close(slow.freed)
		require.EqualValues(t, 2, next(t, b, 0, "b").Generation)
	})
}
