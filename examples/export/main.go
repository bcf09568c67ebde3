// Command export writes a model whose layers are on several ranks into files that safetensors, torch and
// transformers read.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"path/filepath"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Layer is the config of a layer, with tensors in its fields.
type Layer struct {
	Name   string
	Weight *tensor.Tensor
}

func main() {
	out := flag.String("out", ".", "`directory` for layers.safetensors and the directory model")
	shared := flag.String("shared", "", "`directory` that all hosts share, through which tensors go between hosts; empty: TCP")
	flag.Parse()
	if err := export(context.Background(), *out, *shared); err != nil {
		log.Fatal(err)
	}
}

func export(ctx context.Context, out, shared string) error {
	cfg, err := pgroup.FromEnv()
	if err != nil {
		return err
	}
	g, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.Close()
	ga, err := gather.Open(ctx, g, &gather.Options{Dir: shared})
	if err != nil {
		return err
	}
	defer ga.Close()
	ranks := make([]int, g.Size()) // rank 0 receives from all, itself included
	for i := range ranks {
		ranks[i] = i
	}
	if err := writeLayers(ctx, g, ga, ranks, filepath.Join(out, "layers.safetensors")); err != nil {
		return err
	}
	if err := writeModel(ctx, g, ga, filepath.Join(out, "model")); err != nil {
		return err
	}
	return g.Shutdown(ctx)
}

// writeLayers writes the layers of all ranks into a file, on rank 0.
func writeLayers(
	ctx context.Context, g *pgroup.Group, ga *gather.Gatherer, ranks []int, path string,
) error {
	me := g.Rank()
	weight := tensor.From([]float32{float32(me), 1, 2})
	mine := &Layer{Name: fmt.Sprintf("layers.%d.q_proj", me), Weight: weight}
	res, err := gather.Configs(ctx, ga, ranks, mine)
	if err != nil {
		return err // the same error on every rank
	}
	defer res.Release()
	if me != 0 {
		return nil
	}
	file := map[string]*tensor.Tensor{}
	for rank, layer := range res.Present() {
		fmt.Println(rank, layer.Name, layer.Weight)
		file[layer.Name+".weight"] = layer.Weight
	}
	return safetensors.WriteFile(path, file, map[string]string{"format": "pt"})
}

// writeModel writes a weight, of which each rank has some rows, as a model of one file or several: each
// tensor is written by one of the ranks, a block at a time. The model may be larger than memory.
func writeModel(ctx context.Context, g *pgroup.Group, ga *gather.Gatherer, dir string) error {
	me := g.Rank()
	rows, err := tensor.From([]float32{float32(me), float32(me)}).Reshape(1, 2)
	if err != nil {
		return err
	}
	part := gather.Part{Tensor: rows, Start: []int{me, 0}, Shape: []int{g.Size(), 2}}
	return gather.Export(ctx, ga, dir, map[string]gather.Part{"o_proj.weight": part}, nil)
}
