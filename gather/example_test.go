package gather_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// inGroup runs body on each of n ranks, here in one process. A real program calls pgroup.FromEnv
// and Create instead.
func inGroup(n int, o *gather.Options, body func(ctx context.Context, rank int, ga *gather.Gatherer) error) {
	s := store.New(new(store.Memory))
	defer s.Close()
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() {
			ctx := context.Background()
			g, err := pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: n, Store: s})
			if err != nil {
				log.Print(err)
				return
			}
			ga, err := gather.Open(ctx, g, o)
			if err != nil {
				log.Print(err)
				return
			}
			if err := body(ctx, rank, ga); err != nil {
				log.Print(err)
			}
			_ = g.Barrier(ctx)
			_ = ga.Close()
			_ = g.Close()
		})
	}
	wg.Wait()
}

// shard returns a rank's tensor: two numbers that identify the rank.
func shard(rank int) *tensor.Tensor {
	return tensor.From([]float32{float32(rank), float32(rank) + 0.5})
}

func numbers(t *tensor.Tensor) []float32 {
	v, err := tensor.View[float32](t)
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// Of ranks 2 and 0, rank 2 is the first and receives. Rank 1 is not in the list, and need not call.
func ExampleTensors() {
	inGroup(3, nil, func(ctx context.Context, rank int, ga *gather.Gatherer) error {
		res, err := gather.Tensors(ctx, ga, []int{2, 0}, shard(rank))
		if err != nil {
			return err
		}
		defer res.Release()
		for from, t := range res.Present() {
			fmt.Println("rank", rank, "has of rank", from, t, numbers(t))
		}
		return nil
	})
	// Output:
	// rank 2 has of rank 2 F32[2] [2 2.5]
	// rank 2 has of rank 0 F32[2] [0 0.5]
}

// Thousands of tensors take one gather.
func ExampleTensorMaps() {
	inGroup(2, nil, func(ctx context.Context, rank int, ga *gather.Gatherer) error {
		weights := map[string]*tensor.Tensor{}
		for layer := range 1000 {
			weights[fmt.Sprintf("layers.%d.weight", layer)] = shard(rank)
		}
		res, err := gather.TensorMaps(ctx, ga, []int{0, 1}, weights)
		if err != nil {
			return err
		}
		defer res.Release()
		for from, ts := range res.Present() {
			fmt.Println(from, len(ts), numbers(ts["layers.999.weight"]))
		}
		return nil
	})
	// Output:
	// 0 1000 [0 0.5]
	// 1 1000 [1 1.5]
}

// A config is any value with tensors in its leaves.
func ExampleConfigs() {
	type layer struct {
		Name   string
		Weight *tensor.Tensor
		Bias   *tensor.Tensor `json:",omitempty"`
	}
	inGroup(2, nil, func(ctx context.Context, rank int, ga *gather.Gatherer) error {
		mine := &layer{Name: fmt.Sprint("block.", rank), Weight: shard(rank)}
		res, err := gather.Configs(ctx, ga, []int{0, 1}, mine)
		if err != nil {
			return err // the same error on every rank
		}
		defer res.Release()
		for _, l := range res.Present() { // on rank 0
			fmt.Println(l.Name, numbers(l.Weight), l.Bias == nil)
		}
		return nil
	})
	// Output:
	// block.0 [0 0.5] true
	// block.1 [1 1.5] true
}

func ExampleConcat() {
	inGroup(3, nil, func(ctx context.Context, rank int, ga *gather.Gatherer) error {
		rows, err := shard(rank).Reshape(1, 2)
		if err != nil {
			return err
		}
		whole, err := gather.Concat(ctx, ga, []int{0, 1, 2}, 0, rows)
		if whole != nil { // on rank 0
			fmt.Println(whole, numbers(whole))
		}
		return err
	})
	// Output: F32[3,2] [0 0.5 1 1.5 2 2.5]
}

// Ranks write the tensors of which they have parts, each a file of the model.
func ExampleExport() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	inGroup(2, nil, func(ctx context.Context, rank int, ga *gather.Gatherer) error {
		return gather.Export(ctx, ga, dir, map[string]gather.Part{
			// a part of it on each rank
			"mlp.weight": {Tensor: shard(rank), Start: []int{2 * rank}, Shape: []int{4}},
			// the same everywhere
			"norm.weight": {Tensor: tensor.From([]float32{1})},
			// of this rank alone
			fmt.Sprint("layers.", rank, ".bias"): {Tensor: tensor.From([]float32{0})},
		}, nil)
	})
	model, err := safetensors.OpenModel(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	for _, name := range slices.Sorted(slices.Values(model.Names())) {
		t, err := model.Tensor(name)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name, t, numbers(t))
	}
	// Output:
	// layers.0.bias F32[1] [0]
	// layers.1.bias F32[1] [0]
	// mlp.weight F32[4] [0 0.5 1 1.5]
	// norm.weight F32[1] [1]
}

// A tensor that was allocated in an arena is not copied: the first rank reads it in place, and its
// owner waits before it changes it.
func ExampleResult_WaitReleased() {
	arena, err := shm.NewArena(nil)
	if err != nil { // not available on this system: tensors are copied
		fmt.Println("1 2")
		return
	}
	defer arena.Close()
	inGroup(2, &gather.Options{Arena: arena}, func(ctx context.Context, rank int, ga *gather.Gatherer) error {
		t, err := tensor.NewIn(arena, tensor.F32, 1)
		if err != nil {
			return err
		}
		defer arena.Free(t.Data)
		for step := range 2 {
			numbers(t)[0] = float32(step + 1)
			res, err := gather.Tensors(ctx, ga, []int{0, 1}, t)
			if err != nil {
				return err
			}
			if res.First {
				fmt.Print(numbers(res.Items[1].Value)[0], " ")
			}
			res.Release()
			if err := res.WaitReleased(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	// Output: 1 2
}
