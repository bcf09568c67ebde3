package checkpoint_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/muster-pg/muster/tensor/checkpoint"
)

// The tensors of a checkpoint of four ranks.
func ExampleOpen() {
	s, err := checkpoint.Open(nil, "testdata/torch-2.6/dcp")
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for _, name := range s.Names() {
		info, _ := s.Info(name)
		fmt.Println(name, info)
	}
	fmt.Println("no tensors:", s.Others)
	// Output:
	// bias F32[5]
	// empty F32[0,3]
	// f8 F8_E4M3[6,2]
	// flags BOOL[3]
	// ids I64[10]
	// o F32[6,10]
	// parameter F32[2]
	// q F32[8,6]
	// step I64[]
	// t F32[6,8]
	// three F16[4,5,6]
	// two BF16[7,9]
	// no tensors: [options.betas options.lr]
}

// rows returns the bytes of this rank's rows of a tensor.
func rows(ctx context.Context, dir, name string, rank, size int) ([]byte, error) {
	s, err := checkpoint.Open(nil, dir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	info, ok := s.Info(name)
	if !ok || len(info.Shape) != 2 || info.Shape[0]%size != 0 {
		return nil, fmt.Errorf("no %s whose rows %d ranks can share", name, size)
	}
	n := info.Shape[0] / size
	mine := make([]byte, info.End/int64(size))
	err = s.Read(ctx, name, []int{rank * n, 0}, []int{n, info.Shape[1]}, mine)
	return mine, err
}

// A rank of two reads its rows of a tensor that four ranks have written.
func ExampleSet_Read() {
	mine, err := rows(context.Background(), "testdata/torch-2.15/hf", "o", 1, 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(mine), "bytes")
	// Output:
	// 120 bytes
}

// Several tensors, one after the other, that may be larger than memory.
func ExampleSet_Stream() {
	s, err := checkpoint.Open(nil, "testdata/torch-2.15/hf")
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	var w bytes.Buffer
	if err := s.Stream(context.Background(), &w, []string{"ids", "step"}, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(w.Bytes()), s.CheckUnchanged())
	// Output:
	// 88 <nil>
}
