package nfsws_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

func ExampleOpen() {
	dir := must(os.MkdirTemp("", "nfsws"))
	defer os.RemoveAll(dir)
	restarts := uint64(3) // changes with each run of the job
	w, err := nfsws.Open(context.Background(), filepath.Join(dir, "export"), 0, &nfsws.Options{Generation: restarts})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	_, err = nfsws.Open(context.Background(), filepath.Join(dir, "export"), 1, &nfsws.Options{Generation: 2})
	fmt.Println(errors.Is(err, nfsws.ErrSuperseded))
	// Output: true
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

func ExampleWorkspace_Discard() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "nfsws"))
	defer os.RemoveAll(dir)
	w := must(nfsws.Open(context.Background(), dir, 0, &nfsws.Options{Accumulate: true}))
	defer w.Close()

	one := must(w.Write(ctx, []byte(`1`), nil))
	two := must(w.Write(ctx, []byte(`2`), nil))
	fmt.Printf("%s\n", must(w.Read(ctx, 0, one)).Config)
	if err := w.Discard(ctx, two); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%s\n", must(w.Read(ctx, 0, nfsws.Version{})).Config)
	// Output:
	// 1
	// 1
}
