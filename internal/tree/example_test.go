package tree_test

import (
	"fmt"
	"log"

	"github.com/muster-pg/muster/internal/tree"
	"github.com/muster-pg/muster/tensor"
)

type Layer struct {
	Name   string
	Heads  int
	Weight *tensor.Tensor
	Scales map[string]*tensor.Tensor
}

func Example() {
	l := Layer{
		Name: "attention", Heads: 8, Weight: tensor.New(tensor.BF16, 4, 4),
		Scales: map[string]*tensor.Tensor{"in": tensor.From([]float32{0.5}), "out": nil},
	}
	config, tensors, err := tree.Split(l)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(config))
	fmt.Println(tensors)

	var again Layer
	err = tree.Join(config, tensors, &again)
	fmt.Println(again.Name, again.Weight, again.Scales, err)
	// Output:
	// {"Name":"attention","Heads":8,"Weight":{"$tensor":"Weight"},"Scales":{"in":{"$tensor":"Scales.in"},"out":null}}
	// map[Scales.in:F32[1] Weight:BF16[4,4]]
	// attention BF16[4,4] map[in:F32[1] out:none] <nil>
}

func ExampleSplit() {
	_, _, err := tree.Split(map[string]any{"layers": []any{func() {}}})
	fmt.Println(err)
	// Output: tree: layers.0: a func() cannot be split
}

// A config without a Go type.
func ExampleJoin() {
	tensors := map[string]*tensor.Tensor{"layers.0": tensor.New(tensor.I8, 2)}
	var config any
	err := tree.Join([]byte(`{"layers":[{"$tensor":"layers.0"}],"eps":1e-5,"heads":8}`), tensors, &config)
	fmt.Println(config, err)
	// Output: map[eps:1e-05 heads:8 layers:[I8[2]]] <nil>
}
