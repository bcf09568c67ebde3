package pickle

import (
	"fmt"
	"slices"

	"github.com/muster-pg/muster/tensor"
)

// array writes numpy.ndarray(shape, dtype, bytearray), which all versions of numpy have.
func (e *encoder) array(a Array) error {
	if err := a.Check(); err != nil {
		return err
	}
	name := numpyName(a.DType)
	if name == "" {
		return fmt.Errorf("numpy has no %v", a.DType)
	}
	e.global("numpy", "ndarray")
	if err := e.shape(a.Shape); err != nil {
		return err
	}
	e.shortText(name)
	e.byteArray(a.Data)
	e.raw(0x87, 'R')
	return nil
}

func (e *encoder) shape(shape []int) error {
	if len(shape) > maxRank {
		return fmt.Errorf("an array of %d axes, the limit is %d: %w", len(shape), maxRank, ErrTooLarge)
	}
	e.raw('(')
	for _, d := range shape {
		e.int(int64(d))
	}
	e.raw('t')
	return nil
}

// tensor writes what torch itself writes: a storage in the format of torch.save, and a view of it.
func (e *encoder) tensor(t *tensor.Tensor) error {
	if err := t.Check(); err != nil {
		return err
	}
	i := slices.IndexFunc(torchTypes, func(it torchType) bool { return it.dtype == t.DType })
	if i < 0 {
		return fmt.Errorf("torch has no %v", t.DType)
	}
	name, class, elements := "", torchTypes[i].storage, t.Len()
	rebuild := "_rebuild_tensor_v2"
	// the storage is untyped bytes: torch 2.15 writes an UntypedStorage, which it cannot read
	if class == "" {
		rebuild, name, class, elements = "_rebuild_tensor_v3", torchTypes[i].name, "ByteStorage", len(t.Data)
	}
	e.global("torch._utils", rebuild)
	e.raw('(')
	e.global("torch.storage", "_load_from_bytes")
	e.bytes(torchBytes(t, class, elements))
	e.raw(0x85, 'R', 'K', 0)
	if err := e.shape(t.Shape); err != nil {
		return err
	}
	if err := e.shape(torchStrides(t.Shape)); err != nil {
		return err
	}
	e.raw(0x89)
	e.global("collections", "OrderedDict")
	e.raw(')', 'R')
	if name != "" {
		e.global("torch", name)
	}
	e.raw('t', 'R')
	return nil
}

// torchStrides returns torch's row-major strides, for which an empty axis counts as one of length
// 1.
func torchStrides(shape []int) []int {
	filled := make([]int, len(shape))
	for i, d := range shape {
		filled[i] = max(d, 1)
	}
	return rowMajor(filled)
}
