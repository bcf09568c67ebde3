package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// TestHistories trains while workers come, leave, are killed, freeze, flap, and are cut off from the
// store or from each other, at random: with an all-reduce, and with one of reduced precision. Each of them checks its weights after each step against those of a single process;
// steps never go back; a generation has the same workers for all of them; and when the faults end, all
// workers that live reach the goal.
func TestHistories(t *testing.T) {
	t.Parallel()
	seeds := testcluster.Form(12, 500)
	views, again := 0, int64(0)
	var mu sync.Mutex
	next := make(chan uint64)
	var all sync.WaitGroup
	for range 6 { // at once: they wait for most of the time
		all.Go(func() {
			for seed := range next {
				h := newHistory(t, seed)
				n := h.run()
				mu.Lock()
				views += n
				again += h.again.Load()
				mu.Unlock()
			}
		})
	}
	for seed := range seeds {
		if t.Failed() {
			break
		}
		next <- uint64(seed)
	}
	close(next)
	all.Wait()
	enough, most := 2*seeds, 4*seeds
	for ; views <= enough && seeds < most && !t.Failed(); seeds++ { // on a busy machine a history has fewer
		h := newHistory(t, uint64(seeds))
		views += h.run()
		again += h.again.Load()
	}
	t.Logf("%d views in %d histories; %d times a worker began again", views, seeds, again)
	require.Greater(t, views, enough)
}

// history is one job.
type history struct {
	*testing.T
	seed   uint64
	chance *rand.Rand
	memory *store.Memory
	host   func(rank int) string
	goal   int64
	model  func(*life)   // sets the tensors and the step of a worker
	calm   chan struct{} // closed when there are no more faults: the last step waits for it
	least  int
	lives  []*life // that have not been ended
	all    sync.WaitGroup

	mu       sync.Mutex          // protects the fields below
	views    map[string][]string // the IDs of the workers of each view
	finished int

	again atomic.Int64 // how often a worker has begun again, because connections to others broke
}

// life is a worker.
type life struct {
	*training
	h      *history
	line   *testcluster.Line
	links  testcluster.Links
	end    context.CancelFunc
	last   int64 // the most steps that it had completed
	reduce func(ctx context.Context, s *dataparallel.Strategy) error
	verify func() error // checks the weights
}

// models are the ways in which a history trains.
var models = []func(*life){sums, reduced}

// sums is the model of the other tests.
func sums(l *life) { l.reduce, l.verify = l.step, l.check }

// gradAt is the gradient of a weight in a step: a small number, so that sums and averages are exact in all
// types, and the same for any number of ranks.
func gradAt(step int64, i int) float32 { return float32(hash(step, 0, i)%32) - 16 }

// reduced has gradients averaged in BF16. Its weights are the sums of all gradients.
func reduced(l *life) {
	weights := make([]float32, modelSize)
	l.Tensors = map[string]*tensor.Tensor{"weights": tensor.From(weights)}
	l.verify = func() error {
		for i := int(l.Completed) % 97; i < len(weights); i += 97 { // not all of them: there are many steps
			var want float32
			for step := range l.Completed {
				want += gradAt(step, i)
			}
			if w := weights[i]; w != want {
				return fmt.Errorf("weight of worker %s after %d steps is %v, want %v", l.node.Worker.ID, l.Completed, w, want)
			}
		}
		return nil
	}
	l.reduce = func(ctx context.Context, s *dataparallel.Strategy) error {
		c := l.node.Comm()
		if c == nil {
			return dataparallel.ErrNotStarted
		}
		g := make([]float32, modelSize)
		for i := range g {
			if (int(l.Completed)+i)%s.Size() == s.Rank() {
				g[i] = float32(s.Size()) * gradAt(l.Completed, i)
			}
		}
		err := dataparallel.New(c, &dataparallel.Options{Wire: tensor.BF16}).AllReduceGradients(ctx, map[string]*tensor.Tensor{"weights": tensor.From(g)})
		if err == nil {
			for i, x := range g {
				weights[i] += x
			}
		}
		return err
	}
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{T: t, seed: seed, chance: rand.New(rand.NewPCG(seed, 7)), memory: new(store.Memory), host: together, calm: make(chan struct{}), views: map[string][]string{}}
	if h.chance.IntN(2) == 0 {
		h.host = apart // their collectives use TCP
	}
	h.model = models[seed%uint64(len(models))]
	h.least, h.goal = 1+h.chance.IntN(2), int64(50+h.chance.IntN(300))
	return h
}

// ttl is the time after which a worker that is cut off is evicted.
const ttl = 300 * time.Millisecond

func (h *history) live(id int) {
	ctx, end := context.WithTimeout(h.Context(), 4*soon)
	l := &life{h: h, line: testcluster.NewLine(h.memory), end: end}
	n := &dataparallel.WorkerNode{Store: store.New(l.line), Worker: worker(fmt.Sprint(id), h.least, 4), Timeout: soon, JoinTimeout: 2 * time.Second, Host: h.host(id), Listen: "127.0.0.1", Dial: l.links.Dial}
	n.Worker.Job, n.Worker.TTL = fmt.Sprint("history ", h.seed), ttl
	l.training = newTraining(h.T, n, h.goal)
	h.model(l)
	l.Step, l.After = l.checked, l.record
	h.lives = append(h.lives, l)
	h.all.Go(func() {
		defer end()
		err := n.Train(ctx, &l.Training)
		// It was cut off while a view formed, or from workers that reach the store: it tries again with its state.
		for ctx.Err() == nil && (errors.Is(err, membership.ErrExcluded) || errors.Is(err, pgroup.ErrFailed)) {
			h.again.Add(1)
			assert.NoError(h, n.Close())
			err = n.Train(ctx, &l.Training)
		}
		switch {
		case err == nil:
			assert.NoError(h, l.verify(), "seed %d", h.seed)
			assert.Equal(h, h.goal, l.Completed)
			h.mu.Lock()
			h.finished++
			h.mu.Unlock()
		case errors.Is(err, dataparallel.ErrFinished):
		case errors.Is(ctx.Err(), context.Canceled): // it left or was killed; cut off, it does not know what came of its last call
		default:
			h.Errorf("seed %d, worker %d: %v", h.seed, id, err)
		}
		assert.NoError(h, n.Close())
	})
}

// checked is Step: it checks that no step of this worker is lost.
func (l *life) checked(ctx context.Context, s *dataparallel.Strategy) error {
	if l.Completed < l.last {
		l.h.Errorf("seed %d: worker %s had completed %d steps, and begins step %d", l.h.seed, l.node.Worker.ID, l.last, l.Completed)
	}
	if err := l.verify(); err != nil { // also what it has received
		l.h.Errorf("seed %d: %v", l.h.seed, err)
	}
	if l.Completed == l.Goal-1 {
		select {
		case <-l.h.calm:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	select {
	case <-time.After(2 * time.Millisecond): // the backward pass
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return l.reduce(ctx, s)
}

// record is After.
func (l *life) record(context.Context, *dataparallel.Strategy) error {
	l.last = l.Completed
	v := l.node.View()
	if v.Workers == nil { // its end was asked for
		return nil
	}
	var ids []string
	for _, w := range v.Workers {
		ids = append(ids, w.ID)
	}
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	key := fmt.Sprint(v.Config().Run, " ", v.Generation)
	if before, ok := l.h.views[key]; ok && !slices.Equal(before, ids) {
		l.h.Errorf("seed %d: view %s has workers %v on one worker, and %v on another", l.h.seed, key, before, ids)
	}
	l.h.views[key] = ids
	return l.verify()
}

// take removes one of those that live, at random.
func (h *history) take() *life {
	i := h.chance.IntN(len(h.lives))
	l := h.lives[i]
	h.lives = slices.Delete(h.lives, i, i+1)
	return l
}

// run returns the number of views.
func (h *history) run() int {
	defer h.memory.Close()
	for id := range h.least + h.chance.IntN(3) {
		h.live(id)
	}
	var frozen []*life // that live, and are cut off
	for id := 10; id < 20+h.chance.IntN(10); id++ {
		switch what := h.chance.IntN(12); {
		case len(h.lives) < 2 || what < 3:
			h.live(id)
		case what < 5: // it leaves
			h.take().end()
		case what < 6: // it is killed
			l := h.take()
			l.line.Freeze()
			l.end()
		case what < 8: // it is cut off: evicted or not
			l := h.lives[h.chance.IntN(len(h.lives))]
			l.line.Freeze()
			frozen = append(frozen, l)
		case what < 10: // it is cut off from the other workers, and not from the store
			l := h.lives[h.chance.IntN(len(h.lives))]
			l.links.Cut()
			frozen = append(frozen, l)
		default: // it flaps
			heal(frozen)
			frozen = nil
		}
		select {
		case <-time.After(time.Duration(h.chance.IntN(int(ttl) / 2))):
		case <-h.Context().Done():
		}
	}
	for len(h.lives) < h.least {
		h.live(30 + len(h.lives))
	}
	heal(frozen)
	for _, l := range h.lives { // a worker that registers after the end would begin another job
		assert.NoError(h, waitFor(bounded(h.T), func() bool { return l.node.Member() != nil }), "seed %d", h.seed)
	}
	close(h.calm)
	h.all.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Positive(h, h.finished, "seed %d", h.seed)
	return len(h.views)
}

// heal ends the faults of workers that are cut off.
func heal(ls []*life) {
	for _, l := range ls {
		l.line.Thaw()
		l.links.Mend()
	}
}
