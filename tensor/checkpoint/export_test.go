package checkpoint

import (
	"archive/zip"
	"bytes"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/tensor"
)

// InStorage looks for a tensor of float32 in an item whose storage has so many bytes and, as its pickle
// says, elements.
func InStorage(size int, elements, offset int64, shape, strides []int64, flags pickle.Dict) error {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: "a/data/0", Method: zip.Store})
	if err != nil {
		return err
	}
	_, _ = w.Write(make([]byte, size)) // to memory
	if err := z.Close(); err != nil {
		return err
	}
	r, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		return err
	}
	numbers := func(ns []int64) (t pickle.Tuple) {
		for _, n := range ns {
			t = append(t, n)
		}
		return t
	}
	id := pickle.Tuple{"storage", pickle.Class{Name: "torch.FloatStorage", DType: tensor.F32}, "0", "cpu", elements}
	v := &pickle.Object{Name: "torch._utils._rebuild_tensor_v2", Args: pickle.Tuple{
		&pickle.Object{Args: pickle.Tuple{id}}, offset, numbers(shape), numbers(strides), false, pickle.Dict{}, flags,
	}}
	var p savedPart
	for _, n := range shape {
		p.Start, p.Shape = append(p.Start, 0), append(p.Shape, int(n))
	}
	return p.inStorage(v, tensor.F32, stored{size: int64(b.Len())}, map[string]*zip.File{"data/0": r.File[0]})
}
