package python_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// given is a view that a worker has received.
type given struct {
	Run        string
	Generation uint64
	Rank       int
	IDs        []string
}

// worker is a worker of a job: in Python, or else in Go.
type worker struct {
	id    string
	py    *rank
	m     *membership.Member
	links testcluster.Links

	mu    sync.Mutex // protects the fields below, of one in Go
	views []given
	last  membership.View
	ended error
}

// seen returns the views that w has received, and the error with which it has ended, or nil.
func (w *worker) seen(t *testing.T) ([]given, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.py == nil {
		return slices.Clone(w.views), w.ended
	}
	b, err := json.Marshal(w.py.must("new", "seen"))
	require.NoError(t, err)
	var seen struct {
		Views []given
		Ended *failure
	}
	require.NoError(t, json.Unmarshal(b, &seen))
	if seen.Ended != nil {
		return seen.Views, seen.Ended
	}
	return seen.Views, nil
}

// take takes each view of a worker in Go until that has ended.
func (w *worker) take(ctx context.Context) {
	for {
		v, err := w.m.Next(ctx)
		w.mu.Lock()
		if err != nil {
			w.ended = err
			w.mu.Unlock()
			return
		}
		g := given{Run: v.Config().Run, Generation: v.Generation, Rank: v.Rank}
		for _, of := range v.Workers {
			g.IDs = append(g.IDs, of.ID)
		}
		w.views, w.last = append(w.views, g), v
		w.mu.Unlock()
	}
}

// mixedJob is a job whose workers come, go and fail.
type mixedJob struct {
	t     *testing.T
	addr  string
	tasks sync.WaitGroup
	live  []*worker // in the order of registration
	spare []*rank   // processes without a member
	views map[string]given
	came  map[string]int
}

const leastWorkers, mostWorkers = 2, 4

func (j *mixedJob) arrive(inPython bool) {
	w := &worker{id: fmt.Sprint("go", len(j.came))}
	if inPython {
		w.id = fmt.Sprint("py", len(j.came))
		if len(j.spare) == 0 {
			p := start(j.t)
			p.must("new", "connect", j.addr, kw{"timeout": 30})
			j.spare = append(j.spare, p)
		}
		w.py, j.spare = j.spare[0], j.spare[1:]
		w.py.must("new", "member", w.id, kw{"least": leastWorkers, "most": mostWorkers, "ttl": 3})
		w.py.must("new", "take")
	} else {
		s := testcluster.Dial(j.t, j.addr, &store.DialOptions{Dial: w.links.Dial})
		m, err := membership.Join(bounded(j.t), s, membership.Config{Job: "train", ID: w.id, Addr: "10.0.0.1:" + w.id, Min: leastWorkers, Max: mostWorkers, TTL: 3 * time.Second})
		require.NoError(j.t, err)
		w.m = m
		j.tasks.Go(func() { w.take(j.t.Context()) })
		j.t.Cleanup(func() { _ = m.Close() })
	}
	j.came[w.id] = len(j.came)
	j.live = append(j.live, w)
}

// end ends a worker in one of three ways, and checks the views that it has received.
func (j *mixedJob) end(i int, how string) {
	w := j.live[i]
	j.live = slices.Delete(j.live, i, i+1)
	j.check(w)
	switch {
	case w.py != nil && how == "kill":
		require.NoError(j.t, w.py.Cmd.Process.Kill())
	case w.py != nil:
		_, err := w.py.do("member", how)
		if err != nil { // a busy machine
			require.True(j.t, err.(*failure).is("Evicted"), err) //nolint:errorlint,forcetypeassert // it is what do returns
		}
		j.check(w)
		j.spare = append(j.spare, w.py)
	case how == "kill":
		w.links.Cut()
	case how == "leave":
		_ = w.m.Leave(bounded(j.t))
	default:
		_ = w.m.Close()
	}
}

// freeze stops a process in Python that is in a view, until the others have one without it. It learns of that,
// and may join again.
func (j *mixedJob) freeze(w *worker) {
	j.settle()
	i := slices.Index(j.live, w)
	if i < 0 || i >= mostWorkers || len(j.live) <= leastWorkers { // a busy machine; a standby; no view follows
		return
	}
	require.NoError(j.t, w.py.Cmd.Process.Signal(syscall.SIGSTOP))
	j.live = slices.Delete(j.live, i, i+1)
	j.settle()
	require.NoError(j.t, w.py.Cmd.Process.Signal(syscall.SIGCONT))
	var ended error
	testcluster.Eventually(j.t, time.Minute, func() bool {
		_, ended = w.seen(j.t)
		return ended != nil
	}, "it does not learn of its eviction")
	_ = outcome(j.t, ended, "Evicted")
	j.check(w)
	w.py.must("member", "close")
	j.spare = append(j.spare, w.py)
}

// check checks the views that a worker has received.
func (j *mixedJob) check(w *worker) {
	views, _ := w.seen(j.t)
	for i, v := range views {
		require.Equal(j.t, w.id, v.IDs[v.Rank])
		require.True(j.t, i == 0 || views[i-1].Generation < v.Generation)
		require.True(j.t, slices.IsSortedFunc(v.IDs, func(a, b string) int { return j.came[a] - j.came[b] }), "%v", v.IDs)
		key := fmt.Sprint(v.Run, v.Generation)
		if other, ok := j.views[key]; ok {
			require.Equal(j.t, other.IDs, v.IDs, "generation %d", v.Generation)
		}
		j.views[key] = v
	}
}

// settle waits until the first workers have a view of all of them, and forms its group.
func (j *mixedJob) settle() {
	var in []*worker
	testcluster.Eventually(j.t, time.Minute, func() bool {
		j.live = slices.DeleteFunc(j.live, func(w *worker) bool { // a busy machine
			_, ended := w.seen(j.t)
			return ended != nil
		})
		in = j.live[:min(len(j.live), mostWorkers)]
		return len(in) < leastWorkers || !slices.ContainsFunc(in, func(w *worker) bool {
			views, _ := w.seen(j.t)
			return len(views) == 0 || !slices.Equal(views[len(views)-1].IDs, ids(in))
		})
	}, "the live workers have no view")
	if len(in) < leastWorkers {
		return
	}
	m := &mixed{t: j.t, gs: make([]*pgroup.Group, len(in)), ps: make([]*rank, len(in))}
	for r, w := range in {
		m.ps[r] = w.py
		j.check(w)
	}
	m.each(func(r int) error {
		g, err := pgroup.Create(bounded(j.t), in[r].last.Config())
		if err != nil {
			return err
		}
		every, err := pgroup.AllGather(bounded(j.t), g, in[r].id)
		assert.Equal(j.t, ids(in), every)
		if err == nil {
			err = g.Shutdown(bounded(j.t))
		}
		_ = g.Close()
		return err
	}, func(r int, p *rank) error {
		every, err := p.do("new", "form", in[r].id)
		if err == nil {
			assert.Equal(j.t, fmt.Sprint(ids(in)), fmt.Sprint(every))
		}
		return err
	})
}

func ids(ws []*worker) (names []string) {
	for _, w := range ws {
		names = append(names, w.id)
	}
	return names
}

// TestElasticJobOfBothLanguages lets workers in Go and Python arrive, leave, close, die and freeze: a
// generation is the same for all of them, and its group forms.
func TestElasticJobOfBothLanguages(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 1))
	j := &mixedJob{t: t, addr: testcluster.Serve(t, new(store.Server)), views: map[string]given{}, came: map[string]int{}}
	j.arrive(false)
	j.arrive(true)
	for range testcluster.Form(25, 500) {
		if len(j.live) <= leastWorkers || chance.IntN(10) < 4 && len(j.live) < mostWorkers+2 {
			j.arrive(chance.IntN(2) == 0)
		} else if i := chance.IntN(len(j.live)) * chance.IntN(2); chance.IntN(5) == 0 && j.live[i].py != nil { // half of the time the one that decides
			j.freeze(j.live[i])
		} else {
			j.end(i, []string{"leave", "close", "kill"}[chance.IntN(3)])
		}
		if chance.IntN(3) == 0 {
			j.settle()
		}
	}
	for _, inPython := range []bool{true, false} { // each decides once more
		for len(j.live) < leastWorkers || (j.live[0].py != nil) != inPython {
			j.arrive(inPython)
			if (j.live[0].py != nil) != inPython {
				j.end(0, "leave")
			}
		}
		j.settle()
	}
	for len(j.live) > 0 {
		j.end(0, "leave")
	}
	j.tasks.Wait()
	by := map[bool]int{}
	for _, v := range j.views {
		by[strings.HasPrefix(v.IDs[0], "py")]++
	}
	t.Logf("%d views decided in Python, %d in Go", by[true], by[false])
	require.NotZero(t, by[true])
	require.NotZero(t, by[false])
}

// couple is a worker in Go and one in Python, in this order, who are in view 1 of their job.
type couple struct {
	t  *testing.T
	m  *membership.Member
	v  membership.View
	py *rank
}

// newCouple joins both. One that does not read the settings of the other would be refused.
func newCouple(t *testing.T) *couple {
	addr := testcluster.Serve(t, new(store.Server))
	c := &couple{t: t, py: start(t)}
	m, err := membership.Join(bounded(t), testcluster.Dial(t, addr, nil), membership.Config{Job: "train", ID: "go", Min: 2, Max: 3, Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	c.m = m
	c.py.must("new", "connect", addr, kw{"timeout": 30})
	c.join("py", 10)
	c.next(1, "go", "py")
	c.py.must("new", "next")
	return c
}

// settings are those of both workers.
const settings = "--batch 32"

// join joins the worker in Python, with a lease of so many seconds.
func (c *couple) join(id string, ttl int) {
	c.py.must("new", "member", id, kw{"least": 2, "most": 3, "settings": settings, "ttl": ttl})
}

// next takes the next view of the worker in Go, which has these workers.
func (c *couple) next(generation uint64, names ...string) {
	c.t.Helper()
	v, err := c.m.Next(bounded(c.t))
	require.NoError(c.t, err)
	require.Equal(c.t, generation, v.Generation)
	for rank, name := range names {
		require.Equal(c.t, name, v.Workers[rank].ID)
	}
	require.Equal(c.t, len(names), v.Size())
	c.v = v
}

// over waits for the end of the view in Go.
func (c *couple) over() *membership.ViewError {
	ctx := c.v.Context(bounded(c.t))
	<-ctx.Done()
	why, ok := errors.AsType[*membership.ViewError](context.Cause(ctx))
	require.True(c.t, ok, "%v", context.Cause(ctx))
	return why
}

// TestElasticAcrossLanguages checks what a worker of one language does, and one of the other sees.
func TestElasticAcrossLanguages(t *testing.T) {
	tests := map[string]func(t *testing.T, c *couple){
		"checkpoint": func(t *testing.T, c *couple) {
			begun, err := c.m.StartCheckpoint(bounded(t), 7, "/ckpt")
			require.NoError(t, err)
			c.py.must("new", "checkpoint", begun.ID)
			require.Equal(t, false, c.py.must("checkpoint", "end"))
			complete, err := begun.End(bounded(t))
			require.NoError(t, err)
			require.True(t, complete)
			c.py.must("checkpoint", "wait")

			id := c.py.must("new", "checkpoint", "", 8).(string)
			theirs, err := c.m.Checkpoint(bounded(t), id)
			require.NoError(t, err)
			require.Equal(t, c.v.Workers, theirs.Workers)
			complete, err = theirs.End(bounded(t))
			require.NoError(t, err)
			require.False(t, complete)
			require.Equal(t, true, c.py.must("checkpoint", "end"))
			newest, err := c.m.NewestCheckpoint(bounded(t))
			require.NoError(t, err)
			require.Equal(t, id, newest.ID)
		},
		"finish in Go": func(t *testing.T, c *couple) {
			require.NoError(t, c.v.Finish(bounded(t)))
			require.NoError(t, c.m.Leave(bounded(t)))
			require.Contains(t, c.py.fails("Finished", "new", "next").Text, `(rank 1) in job "train": finished without this worker`)
		},
		"finish in Python": func(t *testing.T, c *couple) {
			c.py.must("view", "finish")
			require.NoError(t, c.m.WaitFinished(bounded(t), c.v))
		},
		"remove": func(t *testing.T, c *couple) {
			require.NoError(t, membership.Remove(bounded(t), c.v.Store, "train", "py"))
			require.Equal(t, []int{1}, c.over().Lost)
			_ = c.py.fails("Evicted", "new", "next")
			c.join("py", 10)
			c.next(2, "go", "py")
			c.py.must("new", "next")
			require.NoError(t, membership.Remove(bounded(t), c.v.Store, "train", "go"))
			require.Contains(t, fmt.Sprint(c.py.must("new", "over")), `view 2 of job "train" ended on rank 1 of 2, worker "py": lost rank 0, worker "go"`)
		},
		"a lock that is held": func(t *testing.T, c *couple) {
			c.py.must("member", "leave")
			require.Equal(t, []int{1}, c.over().Left)
			c.join("held", 1)
			c.next(2, "go", "held")
			c.py.must("new", "next")
			c.py.must("new", "hold", 4000)
			require.Equal(t, []int{1}, c.over().Lost)
			_ = c.py.fails("Evicted", "new", "next")
		},
	}
	testcluster.AtOnce(t, maps.All(tests), func(t *testing.T, f func(*testing.T, *couple)) {
		f(t, newCouple(t))
	})
}
