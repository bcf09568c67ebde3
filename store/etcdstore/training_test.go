package etcdstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/strategy"
	"github.com/muster-pg/muster/tensor"
)

// TestTrainingUnderFaults trains with three ranks whose group is at etcd and whose gradients go over connections, while members fail: it
// goes on meanwhile, and all ranks end with the bits of a run over a store in memory.
func TestTrainingUnderFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			c := threeMembers(t)
			leader := c.leader(t)
			o := &etcdstore.Options{Root: newRoot(), Session: 10 * time.Second, Mend: patience}
			var steps atomic.Int64
			var over atomic.Bool
			trained := make(chan []model, 1)
			go func() {
				defer over.Store(true)
				trained <- train(t, func() *store.Store { return store.New(dial(t, c.addrs(), o)) }, func(int) bool {
					steps.Add(1)
					return over.Load()
				})
			}()
			waitFor(t, &steps, &over, 20)
			undo := f.do(t, c, leader)
			waitFor(t, &steps, &over, 20) // while it is away
			undo()
			waitFor(t, &steps, &over, 20)
			over.Store(true)

			ranks := <-trained
			memory := store.New(new(store.Memory))
			defer memory.Close()
			same := train(t, func() *store.Store { return memory }, func(step int) bool { return step == ranks[0].steps })
			require.Equal(t, same, ranks)
			require.NotZero(t, ranks[0].weights)
		})
	}
}

// model is what a rank has trained.
type model struct {
	steps   int
	weights []float32
}

// train has three ranks descend a gradient, of which each knows a part, until rank 0 says that a step was the last one. After each step
// they compare what they have.
func train(t *testing.T, open func() *store.Store, last func(step int) bool) []model {
	const n = 3
	models := make([]model, n)
	each(n, func(rank int) {
		err := trainRank(bounded(t), pgroup.Config{Rank: rank, Size: n, Store: open(), Host: fmt.Sprint("node ", rank), Timeout: 2 * patience}, &models[rank], last)
		assert.NoError(t, err, "rank %d", rank)
	})
	return models
}

func trainRank(ctx context.Context, cfg pgroup.Config, m *model, last func(step int) bool) error {
	g, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.Close()
	c, err := collective.Open(ctx, g, nil)
	if err != nil {
		return err
	}
	s := strategy.New(c, nil)
	m.weights = make([]float32, 1000)
	grads := make([]float32, len(m.weights))
	for ends := false; !ends; {
		for i, w := range m.weights {
			grads[i] = w - float32(i*(cfg.Rank+1))/7
		}
		if err := s.AllReduceGradients(ctx, map[string]*tensor.Tensor{"w": tensor.From(grads)}); err != nil {
			return err
		}
		for i, by := range grads {
			m.weights[i] -= by / 16
		}
		m.steps++
		mine := state{Weights: m.weights, Last: cfg.Rank == 0 && last(m.steps)}
		all, err := pgroup.AllGather(ctx, g, mine)
		if err != nil {
			return err
		}
		for rank, of := range all {
			if !slices.Equal(of.Weights, m.weights) {
				return fmt.Errorf("step %d: rank %d has other weights than rank %d", m.steps, rank, cfg.Rank)
			}
		}
		ends = all[0].Last
	}
	return s.Shutdown(ctx)
}

// state is what ranks tell each other after a step.
type state struct {
	Weights []float32
	Last    bool
}
