package tensor_test

import (
	"fmt"
	"log"

	"github.com/muster-pg/muster/tensor"
)

func Example() {
	w := tensor.New(tensor.F32, 2, 3)
	v, err := tensor.View[float32](w) // the same memory, as a []float32
	if err != nil {
		log.Fatal(err)
	}
	for i := range v {
		v[i] = float32(i)
	}
	bottom, err := tensor.Wrap(w.Data[4*3:], tensor.F32, 1, 3) // its second row, the same memory too
	if err != nil {
		log.Fatal(err)
	}
	vals, err := tensor.View[float32](bottom)
	fmt.Println(bottom, vals, err)
	// Output: F32[1,3] [3 4 5] <nil>
}

func ExampleFrom() {
	data := []int32{1, 2, 3, 4}
	t := tensor.From(data, 2, 2)
	data[0] = 7
	fmt.Printf("%v %d\n", t, t.Data[:4])
	// Output: I32[2,2] [7 0 0 0]
}

func ExampleView() {
	t := tensor.New(tensor.BF16, 2)
	v, err := tensor.View[tensor.BFloat16](t)
	if err != nil {
		log.Fatal(err)
	}
	v[1] = tensor.BFloat16From(0.5)
	fmt.Printf("%d %v\n", t.Data, v[1].Float32())

	_, err = tensor.View[float32](t)
	fmt.Println(err)
	// Output:
	// [0 0 0 63] 0.5
	// tensor: BF16[2] cannot be viewed as F32
}

func ExampleWrap() {
	t, err := tensor.Wrap([]byte{0x21, 0x43}, tensor.F4, 4) // two elements in a byte, the first in the lower half
	fmt.Println(t, err)
	// Output: F4[4] <nil>
}

func ExampleTensor_Reshape() {
	t, err := tensor.From([]uint8{1, 2, 3, 4, 5, 6}, 2, 3).Reshape(3, 2)
	fmt.Println(t, err)
	// Output: U8[3,2] <nil>
}
