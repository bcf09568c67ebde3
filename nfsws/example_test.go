package nfsws_test

import (
	"context"
	"fmt"
	"os"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
)

// workspaces returns the workspaces of two ranks, and a function that closes them.
func workspaces() (zero, one *nfsws.Workspace, end func()) {
	dir := must(os.MkdirTemp("", "nfsws"))
	zero, one = must(nfsws.Open(context.Background(), dir, 0, nil)), must(nfsws.Open(context.Background(), dir, 1, nil))
	return zero, one, func() {
		zero.Close()
		one.Close()
		os.RemoveAll(dir)
	}
}

func Example() {
	ctx := context.Background()
	zero, one, end := workspaces() // in reality two processes
	defer end()

	_, err := one.Write(ctx, []byte(`{"layers":[4,5]}`), map[string]*tensor.Tensor{"bias": tensor.From([]float32{1, 2})})
	if err != nil {
		fmt.Println(err)
	}
	state, err := zero.Wait(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	bias, _ := state.Weights.Tensor("bias")
	fmt.Printf("%s %v\n", state.Config, bias)
	// Output: {"layers":[4,5]} F32[2]
}

func ExampleWorkspace_View() {
	zero, one, end := workspaces()
	defer end()
	ctx := context.Background()
	version := must(one.Write(ctx, nil, map[string]*tensor.Tensor{"w": tensor.From([]uint8{10, 20, 30, 40})}))
	view, err := zero.View(ctx, 1, version)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer view.Close()
	for name, info := range view.Header.Infos() {
		fmt.Println(name, info)
	}
	block := make([]byte, 2)
	_, err = view.ReadAt(context.Background(), "w", block, 1)
	fmt.Printf("%d %v\n", block, err)
	// Output:
	// w U8[4]
	// [20 30] <nil>
}
