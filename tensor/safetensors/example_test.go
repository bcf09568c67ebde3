package safetensors_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// example is a file in a separate directory.
func example() (name string, remove func()) {
	dir, _ := os.MkdirTemp("", "example")
	w, _ := tensor.Wrap([]byte{1, 2, 3, 4, 5, 6}, tensor.U8, 2, 3)
	b, _ := tensor.Wrap([]byte{7, 0, 8, 0}, tensor.I16, 2)
	name = filepath.Join(dir, "model.safetensors")
	_ = safetensors.WriteFile(name, map[string]*tensor.Tensor{"weight": w, "bias": b}, map[string]string{"format": "pt"})
	return name, func() { os.RemoveAll(dir) }
}

func Example() {
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "model.safetensors")

	w := tensor.New(tensor.F32, 2, 3)
	err := safetensors.WriteFile(name, map[string]*tensor.Tensor{"weight": w}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := safetensors.Open(name)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	got, err := f.Tensor("weight")
	fmt.Println(got, err)
	// Output: F32[2,3] <nil>
}

func ExampleOpen() {
	name, remove := example()
	defer remove()
	f, err := safetensors.Open(name)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	for name, t := range f.All() {
		fmt.Printf("%v %v %v\n", name, t, t.Data)
	}
	fmt.Println(f.Len(), f.Metadata)
	// Output:
	// bias I16[2] [7 0 8 0]
	// weight U8[2,3] [1 2 3 4 5 6]
	// 2 map[format:pt]
}

func ExampleWriteFile() {
	name, remove := example()
	defer remove()
	err := safetensors.WriteFile(name, map[string]*tensor.Tensor{"w": {DType: tensor.F32, Shape: []int{2}}}, nil)
	fmt.Println(strings.ReplaceAll(err.Error(), name, "model.safetensors"))
	_, err = safetensors.Open(name) // is still what it was
	fmt.Println(err)
	// Output:
	// safetensors: write model.safetensors: tensor "w": tensor: F32 of shape [2] has 8 bytes, not 0
	// <nil>
}

// Two halves of a tensor become one, without being in memory together.
func ExampleNewWriter() {
	halves := map[string][]io.Reader{
		"w": {strings.NewReader("abc"), strings.NewReader("def")},
		"b": {strings.NewReader("12"), strings.NewReader("34")},
	}
	infos := map[string]safetensors.Info{
		"w": {DType: tensor.U8, Shape: []int{2, 3}},
		"b": {DType: tensor.U8, Shape: []int{4}},
	}
	var file bytes.Buffer
	w, err := safetensors.NewWriter(&file, infos, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range w.Names() {
		for _, half := range halves[name] {
			if _, err := io.Copy(w, half); err != nil {
				fmt.Println(err)
				return
			}
		}
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
		return
	}
	f, err := safetensors.Parse(file.Bytes())
	if err != nil {
		fmt.Println(err)
		return
	}
	for name, t := range f.All() {
		fmt.Printf("%s %v %s\n", name, t, t.Data)
	}
	// Output:
	// b U8[4] 1234
	// w U8[2,3] abcdef
}

func ExampleOpenModel() {
	name, remove := example()
	defer remove()
	m, err := safetensors.OpenModel(filepath.Dir(name)) // of one file, or of shards with an index
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	bias, err := m.Tensor("bias")
	fmt.Println(m.Names(), bias, err)
	// Output: [bias weight] I16[2] <nil>
}
