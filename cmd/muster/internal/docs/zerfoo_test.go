package docs_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// ZerfooTensor is *tensor.TensorNumeric[float32] of github.com/zerfoo/ztensor, on the CPU.
type ZerfooTensor interface {
	Data() []float32
	Shape() []int
}

// ZerfooStrategy[*ztensor.TensorNumeric[float32]] is a distributed.InternalStrategy[float32].
type ZerfooStrategy[T ZerfooTensor] struct {
	*dataparallel.Strategy // Rank and Size
	group                  *pgroup.Group
}

// Init connects the ranks, which meet in a store at muster://host:port, or which rank 0 hosts at
// host:port.
func (s *ZerfooStrategy[T]) Init(rank, size int, address string) error {
	ctx := context.Background()
	g, err := pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: size, Address: address})
	if err != nil {
		return err
	}
	c, err := collective.Open(ctx, g, nil)
	if err != nil {
		return errors.Join(err, g.Close())
	}
	s.Strategy, s.group = dataparallel.New(c, nil), g
	return nil
}

func (s *ZerfooStrategy[T]) AllReduceGradients(gradients map[string]T) error {
	views := make(map[string]*tensor.Tensor, len(gradients))
	for name, g := range gradients {
		views[name] = tensor.From(g.Data(), g.Shape()...) // the same memory
	}
	return s.Strategy.AllReduceGradients(context.Background(), views)
}

func (s *ZerfooStrategy[T]) Barrier() error { return s.Strategy.Barrier(context.Background()) }

func (s *ZerfooStrategy[T]) BroadcastTensor(t T, rootRank int) error {
	x := tensor.From(t.Data(), t.Shape()...)
	return s.Strategy.BroadcastTensor(context.Background(), rootRank, x)
}

func (s *ZerfooStrategy[T]) Shutdown() {
	_ = s.Strategy.Shutdown(context.Background()) // waits for the other ranks
	_ = s.group.Close()
}

// internalStrategy is Zerfoo's interface.
type internalStrategy[T any] interface {
	Init(rank, size int, coordinatorAddress string) error
	AllReduceGradients(gradients map[string]T) error
	Barrier() error
	BroadcastTensor(t T, rootRank int) error
	Rank() int
	Size() int
	Shutdown()
}

// zerfooTensor stands for a tensor of Zerfoo's.
type zerfooTensor struct{ data []float32 }

func (z *zerfooTensor) Data() []float32 { return z.data }
func (z *zerfooTensor) Shape() []int    { return []int{len(z.data)} }

func TestZerfooStrategy(t *testing.T) {
	at := "muster://" + testcluster.Serve(t, new(store.Server))
	var all sync.WaitGroup
	for rank := range 2 {
		all.Go(func() {
			var s internalStrategy[*zerfooTensor] = new(ZerfooStrategy[*zerfooTensor])
			if !assert.NoError(t, s.Init(rank, 2, at)) {
				return
			}
			defer s.Shutdown()
			assert.Equal(t, [...]int{rank, 2}, [...]int{s.Rank(), s.Size()})
			g := &zerfooTensor{[]float32{float32(rank), 10}}
			assert.NoError(t, s.AllReduceGradients(map[string]*zerfooTensor{"w": g}))
			assert.Equal(t, []float32{0.5, 10}, g.data)
			b := &zerfooTensor{[]float32{float32(rank)}}
			assert.NoError(t, s.BroadcastTensor(b, 1))
			assert.Equal(t, []float32{1}, b.data)
			assert.NoError(t, s.Barrier())
		})
	}
	all.Wait()
}
