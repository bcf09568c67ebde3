package pickle_test

import (
	"errors"
	"fmt"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/tensor"
)

// dumped is pickle.dumps((1, "a", [None]), 2) of Python.
const dumped = "\x80\x02K\x01X\x01\x00\x00\x00aq\x00]q\x01Na\x87q\x02."

func ExampleParse() {
	v, err := pickle.Parse([]byte(dumped))
	fmt.Printf("%#v %v\n", v, err)

	_, err = pickle.Parse([]byte("cos\nsystem\nX\x08\x00\x00\x00rm -rf /\x85R."))
	fmt.Println(err, errors.Is(err, pickle.ErrRefused))
	// Output:
	// pickle.Tuple{1, "a", []interface {}{interface {}(nil)}} <nil>
	// pickle: no plain value: "os.system": it would be imported (GLOBAL at offset 0) true
}

func ExampleAppend() {
	b, err := pickle.Append(nil, pickle.Tuple{"weights", pickle.Array{Tensor: tensor.From([]float32{1, 2})}})
	fmt.Printf("%q %v\n", b[:11], err)
	v, err := pickle.Parse(b)
	fmt.Println(v, err)
	// Output:
	// "\x80\x04\x8c\aweights" <nil>
	// [weights F32[2]] <nil>
}

func ExampleDict_Get() {
	d := pickle.Dict{{Key: "rank", Value: 3}}
	fmt.Println(d.Get("rank"))
	// Output:
	// 3 true
}
