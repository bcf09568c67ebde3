package strategy

import (
	"context"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/tensor"
)

// reducible reports whether elements of dt are numbers.
func reducible(dt tensor.DType) bool {
	_, ok := reducers[dt]
	return ok
}

// reducers average the data of each dtype of numbers.
var reducers = map[tensor.DType]func(ctx context.Context, c *collective.Comm, t *tensor.Tensor) error{
	tensor.F16: average[tensor.Float16], tensor.BF16: average[tensor.BFloat16], tensor.F32: average[float32], tensor.F64: average[float64],
	tensor.I8: average[int8], tensor.I16: average[int16], tensor.I32: average[int32], tensor.I64: average[int64],
	tensor.U8: average[uint8], tensor.U16: average[uint16], tensor.U32: average[uint32], tensor.U64: average[uint64],
}

func average[T tensor.Number](ctx context.Context, c *collective.Comm, t *tensor.Tensor) error {
	x, err := tensor.View[T](t)
	if err != nil {
		return err
	}
	return collective.AllReduce(ctx, c, collective.Avg, x)
}

func reduceBytes(ctx context.Context, c *collective.Comm, dt tensor.DType, data []byte) error {
	size, _ := tensor.Size(dt, 1)
	return reducers[dt](ctx, c, &tensor.Tensor{DType: dt, Shape: []int{len(data) / size}, Data: data})
}
