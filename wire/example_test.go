package wire_test

import (
	"encoding/json"
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// jsonCodec is a Codec for groups whose objects others read as JSON: pgroup.Config.Codec takes it.
type jsonCodec struct{}

func (jsonCodec) Append(b []byte, v any) ([]byte, error) {
	enc, err := json.Marshal(v)
	return append(b, enc...), err
}

func (jsonCodec) Parse(b []byte, v any) error { return json.Unmarshal(b, v) }

func ExampleCodec() {
	type layer struct {
		Name  string `json:"name"`
		Shape []int  `json:"shape"`
	}
	for _, codec := range []wire.Codec{wire.MsgPack, jsonCodec{}} {
		b, err := codec.Append(nil, layer{"mlp.down", []int{4096, 11008}})
		if err != nil {
			fmt.Println(err)
			return
		}
		var l layer
		err = codec.Parse(b, &l)
		fmt.Println(len(b), l, err)
	}
	// Output:
	// 28 {mlp.down [4096 11008]} <nil>
	// 40 {mlp.down [4096 11008]} <nil>
}
