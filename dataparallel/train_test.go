package dataparallel_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// The model of these tests is numbers. Each step multiplies them by a constant and adds the sum, over all
// ranks, of a hash of the step and the example. So the result depends on every step and on their order,
// and not on the number of ranks.
const (
	modelSize = 1000
	batchSize = 12
)

func hash(step int64, example, i int) uint64 {
	x := uint64(step)<<40 ^ uint64(example)<<20 ^ uint64(i)
	x = (x ^ x>>31) * 0x9E3779B97F4A7C15
	return x ^ x>>29
}

func update(weights, grads []uint64) {
	for i := range weights {
		weights[i] = weights[i]*6364136223846793005 + grads[i]
	}
}

func gradsOf(step int64, rank, size int) []uint64 {
	grads := make([]uint64, modelSize)
	for example := batchSize * rank / size; example < batchSize*(rank+1)/size; example++ {
		for i := range grads {
			grads[i] += hash(step, example, i)
		}
	}
	return grads
}

// expected has the weights of a single process after each step.
var expected = struct {
	sync.Mutex
	after [][]uint64
}{after: [][]uint64{make([]uint64, modelSize)}}

func expectedAfter(steps int64) []uint64 {
	expected.Lock()
	defer expected.Unlock()
	for n := int64(len(expected.after)); n <= steps; n++ {
		w := append([]uint64{}, expected.after[n-1]...)
		update(w, gradsOf(n-1, 0, 1))
		expected.after = append(expected.after, w)
	}
	return expected.after[steps]
}

// training is the Training of one worker of a test.
type training struct {
	dataparallel.Training
	t       *testing.T
	node    *dataparallel.WorkerNode
	weights []uint64
	after   []int64 // what After was called for
	pause   time.Duration
}

func newTraining(t *testing.T, n *dataparallel.WorkerNode, goal int64) *training {
	x := &training{t: t, node: n, weights: make([]uint64, modelSize)}
	x.Goal, x.Tensors = goal, map[string]*tensor.Tensor{"weights": tensor.From(x.weights)}
	x.Step, x.After = x.step, x.saw
	return x
}

func (x *training) step(ctx context.Context, s *dataparallel.Strategy) error {
	if x.pause > 0 { // the backward pass
		select {
		case <-time.After(x.pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	grads := gradsOf(x.Completed, s.Rank(), s.Size())
	if err := collective.AllReduce(ctx, x.node.Comm(), collective.Sum, grads); err != nil {
		return err
	}
	update(x.weights, grads)
	return nil
}

func (x *training) saw(context.Context, *dataparallel.Strategy) error {
	x.after = append(x.after, x.Completed)
	return x.check()
}

// check returns an error if the weights are not those of a single process.
func (x *training) check() error {
	for i, w := range expectedAfter(x.Completed) {
		if x.weights[i] != w {
			return fmt.Errorf("weight %d of worker %s after %d steps is %x, want %x", i, x.node.Worker.ID, x.Completed, x.weights[i], w)
		}
	}
	return nil
}

// done checks that the training reached its goal with the right weights.
func (x *training) done(err error) {
	assert.NoError(x.t, err)
	assert.Equal(x.t, x.Goal, x.Completed)
	assert.NoError(x.t, x.check())
}

// train trains in the background. The function that it returns waits for the error.
func (x *training) train(ctx context.Context) (wait func() error) {
	ended := make(chan error, 1)
	go func() {
		err := x.node.Train(ctx, &x.Training)
		ended <- errors.Join(err, x.node.Close())
	}()
	return sync.OnceValue(func() error { return <-ended })
}

// reaches waits until a worker has completed a step.
func (x *training) reaches(step int64) (when <-chan struct{}) {
	reached := make(chan struct{})
	var once sync.Once
	before := x.After
	x.After = func(ctx context.Context, s *dataparallel.Strategy) error {
		if x.Completed >= step {
			once.Do(func() { close(reached) })
		}
		return before(ctx, s)
	}
	return reached
}

// TestTrainFromACheckpoint checks that the workers go on from the checkpoint of one of them, and that
// each of them saves its part of others.
func TestTrainFromACheckpoint(t *testing.T) {
	at := url(t)
	var all sync.WaitGroup
	for i, id := range []string{"a", "b"} {
		x := newTraining(t, newNode(t, at, id, 2, 0), 60)
		if i == 1 { // the other one has not found it
			x.Completed = 40
			copy(x.weights, expectedAfter(40))
		}
		saved := 0
		before := x.After
		x.After = func(ctx context.Context, s *dataparallel.Strategy) error {
			var err error
			if x.Completed >= 50 && x.Completed%5 == 0 {
				err = x.node.Checkpoint(ctx, x.Completed, "/ckpt", func() error { saved++; return nil })
			}
			return cmp.Or(err, before(ctx, s))
		}
		all.Go(func() {
			x.done(x.train(bounded(t))())
			assert.Equal(t, 3, saved)
			assert.Len(t, x.after, 20)
		})
	}
	all.Wait()
}

// TestStepsWithoutTheStore checks that workers go on with their steps while the store is away, for less than
// their lease, even when one of them is so slow that the others look for the cause.
func TestStepsWithoutTheStore(t *testing.T) {
	t.Parallel()
	memory := new(store.Memory)
	defer memory.Close()
	const goal = 200
	var lines []*testcluster.Line
	var xs []*training
	for _, id := range []string{"a", "b"} {
		line := testcluster.NewLine(memory)
		n := &dataparallel.WorkerNode{Store: store.New(line), Worker: worker(id, 2, 0), Timeout: soon, Host: id, Listen: "127.0.0.1"}
		n.Worker.TTL = 4 * soon
		x := newTraining(t, n, goal)
		lines, xs = append(lines, line), append(xs, x)
	}
	away := sync.OnceFunc(func() {
		for _, l := range lines {
			l.Freeze()
		}
	})
	slow := xs[1].Step
	xs[1].Step = func(ctx context.Context, s *dataparallel.Strategy) error {
		switch xs[1].Completed {
		case 50:
			away()
		case 60:
			xs[1].pause = time.Second
		case 61:
			xs[1].pause = 0
		}
		return slow(ctx, s)
	}
	reached := xs[0].reaches(150)
	waits := []func() error{xs[0].train(bounded(t)), xs[1].train(bounded(t))}
	<-reached
	for _, l := range lines {
		l.Thaw()
	}
	for i, x := range xs {
		x.done(waits[i]())
		require.Len(t, x.after, goal)
	}
}

// TestStandbyOfAFinishedJob checks that a worker that was never in a view does not begin again, and does
// not wait for others, when the job has finished.
func TestStandbyOfAFinishedJob(t *testing.T) {
	t.Run("enough for a view", func(t *testing.T) { standby(t, 1) })
	t.Run("too few for a view", func(t *testing.T) { standby(t, 2) })
}

func standby(t *testing.T, size int) {
	at := url(t)
	a, b := newTraining(t, newNode(t, at, "a", size, 0), 50), newTraining(t, newNode(t, at, "b", size, 0), 50)
	for i := 1; i < size; i++ {
		other := newTraining(t, newNode(t, at, fmt.Sprint("other ", i), size, 0), 50)
		wait := other.train(bounded(t))
		defer func() { other.done(wait()) }()
	}
	a.Step = func(ctx context.Context, s *dataparallel.Strategy) error {
		if a.Completed == 10 {
			if err := waitFor(ctx, func() bool { return b.node.Member() != nil }); err != nil {
				return err
			}
		}
		return a.step(ctx, s)
	}
	started := a.reaches(5)
	waitA := a.train(bounded(t))
	<-started
	waitB := b.train(bounded(t))
	a.done(waitA())
	fails(t, waitB(), dataparallel.ErrFinished, "finished without this worker, which has completed 0 of 50 steps")
	require.Empty(t, b.after)
}

// waitFor polls until ready returns true.
func waitFor(ctx context.Context, ready func() bool) error {
	for !ready() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// TestCutOffWhenTheOthersFinish checks that a worker which has lost its registration learns of the end of
// the job, although too few workers for another view remain. It has the result only if it has completed
// the last step.
func TestCutOffWhenTheOthersFinish(t *testing.T) {
	for _, last := range []int64{20, 40} {
		t.Run(fmt.Sprint("after step ", last), func(t *testing.T) {
			t.Parallel()
			addr := serve(t, &store.Server{Engine: new(store.Memory)})
			wire := testcluster.NewProxy(t, addr)
			var all sync.WaitGroup
			var xs []*training
			cut := make(chan struct{})
			for _, id := range []string{"a", "b", "c"} {
				n := newNode(t, "muster://"+addr, id, 2, 3)
				n.Worker.TTL = 500 * time.Millisecond
				x := newTraining(t, n, 40)
				x.Step = func(ctx context.Context, s *dataparallel.Strategy) error {
					if x.Completed == 20 && s.Size() == 3 {
						<-cut
					}
					if x.Completed == last && id == "c" {
						<-ctx.Done()
						return context.Cause(ctx)
					}
					return x.step(ctx, s)
				}
				xs = append(xs, x)
			}
			xs[2].node.Address = "muster://" + wire.Addr()
			third := xs[2].reaches(20)
			for _, x := range xs[:2] {
				wait := x.train(bounded(t))
				all.Go(func() { x.done(wait()) })
			}
			waitC := xs[2].train(bounded(t))
			<-third
			wire.Blackhole(true)
			close(cut)
			all.Wait()
			wire.Blackhole(false)
			wire.Cut(testcluster.RST)
			err := waitC()
			if last == xs[2].Goal {
				xs[2].done(err)
				return
			}
			fails(t, err, dataparallel.ErrFinished, "finished without this worker, which has completed 20 of 40 steps")
		})
	}
}

// TestTrainReturnsOtherErrors checks errors that the end of a view has not caused.
func TestTrainReturnsOtherErrors(t *testing.T) {
	at := url(t)
	diverged := errors.New("the loss is NaN")
	for says, change := range map[string]func(x *training){
		"the loss is NaN":           func(x *training) { x.Step = func(context.Context, *dataparallel.Strategy) error { return diverged } },
		"after step 0":              func(x *training) { x.After = func(context.Context, *dataparallel.Strategy) error { return diverged } },
		"Training.Step is nil":      func(x *training) { x.Step = nil },
		"Training.Completed is 9":   func(x *training) { x.Completed = 9 },
		`tensor "weights" is nil`:   func(x *training) { x.Tensors["weights"] = nil },
		"Training.Completed is -1,": func(x *training) { x.Completed = -1 },
	} {
		x := newTraining(t, newNode(t, at, "a", 1, 1), 5)
		change(x)
		err := x.train(bounded(t))()
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, `dataparallel: train of worker "a": `)
		require.Equal(t, says == "the loss is NaN" || says == "after step 0", errors.Is(err, diverged), says)
	}
}

// TestTrainIsCalledTwice checks that a second Train takes no steps, and that the first one goes on.
func TestTrainIsCalledTwice(t *testing.T) {
	x := newTraining(t, newNode(t, url(t), "a", 1, 1), 5)
	inStep, proceed := make(chan struct{}), make(chan struct{})
	x.Step = func(ctx context.Context, s *dataparallel.Strategy) error {
		if x.Completed == 0 {
			close(inStep)
			<-proceed
		}
		return x.step(ctx, s)
	}
	wait := x.train(bounded(t))
	<-inStep
	second := newTraining(t, x.node, 5)
	require.ErrorIs(t, x.node.Train(bounded(t), &second.Training), pgroup.ErrBusy)
	require.Zero(t, second.Completed)
	close(proceed)
	x.done(wait())
}

// TestGrowthThatFails lets a job of two workers grow by one that makes it impossible for the view to
// form. The two go on without it, and lose no step.
func TestGrowthThatFails(t *testing.T) {
	for name, grow := range map[string]func(t *testing.T, at string) (gone func()){
		"registers, and does not connect": func(t *testing.T, at string) func() {
			_, m := register(t, at, "c", 2, 3)
			return func() {
				_, err := m.Next(bounded(t))
				for err == nil {
					_, err = m.Next(bounded(t))
				}
				assert.ErrorIs(t, err, membership.ErrExcluded)
			}
		},
		"is killed while the view forms": func(t *testing.T, at string) func() {
			s, m := register(t, at, "c", 2, 3)
			_, err := m.Next(bounded(t))
			require.NoError(t, err)
			_ = s.Close()
			return func() {}
		},
		"has another algorithm": func(t *testing.T, at string) func() {
			c := newTraining(t, newNode(t, at, "c", 2, 3), 200)
			c.node.Algorithm = collective.RecursiveDoubling
			wait := c.train(bounded(t))
			return func() {
				err := wait()
				assert.Error(t, err)
				assert.Empty(t, c.after)
			}
		},
		"has other tensors": func(t *testing.T, at string) func() {
			c := newTraining(t, newNode(t, at, "c", 2, 3), 200)
			c.Tensors["bias"] = tensor.New(tensor.F32, 3)
			wait := c.train(bounded(t))
			return func() { fails(t, wait(), pgroup.ErrMismatch, "Training.Tensors have other names") }
		},
		"has another goal": func(t *testing.T, at string) func() {
			wait := newTraining(t, newNode(t, at, "c", 2, 3), 201).train(bounded(t))
			return func() { assert.ErrorContains(t, wait(), "Training.Goal is 201 here, and 200 on rank 0") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := "muster://" + serve(t, &store.Server{Engine: new(store.Memory)})
			var all sync.WaitGroup
			var xs []*training
			grown := make(chan struct{})
			for _, id := range []string{"a", "b"} {
				x := newTraining(t, newNode(t, at, id, 2, 3), 200)
				x.node.JoinTimeout = time.Second
				xs = append(xs, x)
				x.Step = func(ctx context.Context, s *dataparallel.Strategy) error {
					if x.Completed == 100 {
						select {
						case <-grown: // the view has ended at least once
						case <-ctx.Done():
							return context.Cause(ctx)
						}
					}
					return x.step(ctx, s)
				}
			}
			middle := xs[0].reaches(100)
			for _, x := range xs {
				wait := x.train(bounded(t))
				all.Go(func() { x.done(wait()) })
			}
			<-middle
			before := xs[0].node.Group()
			gone := grow(t, at)
			assert.NoError(t, waitFor(bounded(t), func() bool { g := xs[0].node.Group(); return g != nil && g != before && g.Size() == 2 }))
			close(grown)
			all.Wait()
			gone()
			require.Len(t, xs[0].after, 200)
			require.Len(t, xs[1].after, 200)
		})
	}
}

func TestWorkerFromEnv(t *testing.T) {
	set := func(store, job, worker, elastic string) {
		for name, v := range map[string]string{"MUSTER_STORE": store, "MUSTER_JOB": job, "MUSTER_WORKER": worker, "MUSTER_ELASTIC": elastic} {
			t.Setenv(name, v)
		}
	}
	set("", "train", "", "2:4")
	_, err := dataparallel.WorkerFromEnv()
	fails(t, err, dataparallel.ErrNoLauncher, "MUSTER_STORE and MUSTER_WORKER not set: start the program with muster run --elastic")
	for _, bad := range []string{"2", "a:b", "2:", "0:4", "4:2", "2:4:6"} {
		set("muster://127.0.0.1:1", "train", "w1", bad)
		_, err = dataparallel.WorkerFromEnv()
		fails(t, err, membership.ErrInvalid, fmt.Sprintf("MUSTER_ELASTIC is %q: set MIN:MAX", bad))
	}
	set(url(t), "train", "w1", "1:4")
	n, err := dataparallel.WorkerFromEnv()
	require.NoError(t, err)
	require.Equal(t, membership.Config{Job: "train", ID: "w1", Min: 1, Max: 4}, n.Worker)
	for _, bad := range []string{"0s", "-1s", "10"} {
		t.Setenv("MUSTER_LEASE", bad)
		_, err = dataparallel.WorkerFromEnv()
		require.ErrorContains(t, err, fmt.Sprintf("MUSTER_LEASE is %q: set a duration, as 30s", bad))
	}
	t.Setenv("MUSTER_UNIT_SIZE", "2")
	_, err = dataparallel.WorkerFromEnv()
	fails(t, err, membership.ErrInvalid, `MUSTER_UNIT_SIZE is "2", and a WorkerNode is a worker of one process`)
	t.Setenv("MUSTER_UNIT_SIZE", "1")
	t.Setenv("MUSTER_LEASE", "1m30s")
	n, err = dataparallel.WorkerFromEnv()
	require.NoError(t, err)
	require.Equal(t, membership.Config{Job: "train", ID: "w1", Min: 1, Max: 4, TTL: 90 * time.Second}, n.Worker)
	x := newTraining(t, n, 10)
	x.done(x.train(bounded(t))())
	require.Nil(t, n.Comm())
	require.Nil(t, n.Group())
}
