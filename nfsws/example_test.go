package nfsws_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

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
	w, err := nfsws.Open(context.Background(), filepath.Join(dir, "export"), 0, &nfsws.Options{Generation: restarts, Keep: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	_, err = nfsws.Open(context.Background(), filepath.Join(dir, "export"), 1, &nfsws.Options{Generation: 2})
	fmt.Println(errors.Is(err, nfsws.ErrSuperseded))
	// Output: true
}

func ExampleWorkspace_Write() {
	w, _, end := workspaces()
	defer end()
	version, err := w.Write(context.Background(), []byte(`{"step":1}`), nil)
	fmt.Println(version.Sequence, err)
	version, err = w.Write(context.Background(), []byte(`{"step":2}`), nil)
	fmt.Println(version.Sequence, err)
	_, err = w.Write(context.Background(), []byte(`{step:3}`), nil)
	fmt.Println(err)
	// Output:
	// 1 <nil>
	// 2 <nil>
	// nfsws: write rank 0 of generation 0: the config is no JSON: invalid character 's' looking for beginning of object key string
}

func ExampleWorkspace_Read() {
	zero, one, end := workspaces()
	defer end()
	_, err := zero.Read(context.Background(), 1)
	fmt.Println(errors.Is(err, nfsws.ErrNotPublished))
	must(one.Write(context.Background(), []byte(`"here"`), nil))
	state, err := zero.Read(context.Background(), 1)
	fmt.Println(string(state.Config), err)
	// Output:
	// true
	// "here" <nil>
}

func ExampleWorkspace_ReadVersion() {
	zero, one, end := workspaces()
	defer end()
	// rank 1 sends this to rank 0, by any means
	version := must(one.Write(context.Background(), []byte(`1`), nil))
	must(one.Write(context.Background(), []byte(`2`), nil))
	state, err := zero.ReadVersion(context.Background(), 1, version)
	fmt.Println(string(state.Config), err)
	// Output: 1 <nil>
}

func ExampleWorkspace_Wait() {
	w, _, end := workspaces()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := w.Wait(ctx, 5)
	e, _ := errors.AsType[*nfsws.Error](err)
	fmt.Println(e.Op, e.Rank, errors.Is(err, context.DeadlineExceeded))
	// Output: wait for 5 true
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

func ExampleView_ReadAt() {
	w, _, end := workspaces()
	defer end()
	must(w.Write(context.Background(), nil, map[string]*tensor.Tensor{"w": tensor.From([]uint8{10, 20, 30, 40})}))
	view := must(w.View(context.Background(), 0, nfsws.Version{})) // the newest
	defer view.Close()
	block := make([]byte, 3)
	n, err := view.ReadAt(context.Background(), "w", block, 2)
	fmt.Printf("%d %v\n", block[:n], err)
	// Output: [30 40] EOF
}

func ExampleWorkspace_Remove() {
	w, _, end := workspaces()
	defer end()
	must(w.Write(context.Background(), []byte(`{}`), nil))
	fmt.Println(w.Remove(context.Background()))
	_, err := w.Read(context.Background(), 0)
	fmt.Println(err)
	// Output:
	// <nil>
	// nfsws: read rank 0 of generation 0: not published
}

func ExampleWorkspace_Close() {
	w, _, end := workspaces()
	defer end()
	fmt.Println(w.Close(), w.Close())
	_, err := w.Read(context.Background(), 0)
	fmt.Println(errors.Is(err, nfsws.ErrClosed))
	// Output:
	// <nil> <nil>
	// true
}

func ExampleWorkspace_Discard() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "nfsws"))
	defer os.RemoveAll(dir)
	w := must(nfsws.Open(context.Background(), dir, 0, &nfsws.Options{Accumulate: true}))
	defer w.Close()

	one := must(w.Write(ctx, []byte(`1`), nil))
	two := must(w.Write(ctx, []byte(`2`), nil))
	fmt.Printf("%s\n", must(w.ReadVersion(ctx, 0, one)).Config)
	if err := w.Discard(ctx, two); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%s\n", must(w.Read(ctx, 0)).Config)
	// Output:
	// 1
	// 1
}
