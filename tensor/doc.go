// Package tensor provides dense tensors: a dtype, a shape and little-endian bytes, with typed views
// that do not copy.
//
//	w := tensor.New(tensor.F32, 2, 3)
//	v, err := tensor.View[float32](w) // the same memory, as a []float32
//	row, err := w.Reshape(6)          // of one axis, the same memory too
//
// A Tensor is dense and row-major: the last axis varies fastest. The dtypes and their names are
// those of the safetensors format. Elements smaller than a byte (F4, F6) are packed, the first one
// in the lowest bits, and a tensor of them fills whole bytes.
//
// Tensors alias the memory that they are made of: From, Wrap, View and Reshape share
// memory, as slices do. The documentation of a function that copies says so.
package tensor
