package checkpoint

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/tensor"
)

// tensorNames are those in what torch.save writes for a tensor.
var tensorNames = namesOf("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter", float4Pair)

// part finds a tensor's part in its file: torch.save wrote a zip for it, whose entries are not compressed.
func (d *saved) part(s stored, dt tensor.DType, b blocks.Box) (blocks.Part, error) {
	f, err := d.file(s.file)
	if err != nil {
		return blocks.Part{}, err
	}
	p := savedPart{Box: b, file: f}
	if err = p.inZip(s, dt); err != nil {
		err = &Error{File: f.name, Err: fmt.Errorf("the part %v, at offset %d: %w", b, s.offset, err)}
	}
	part := newPart(f, b, p.from)
	part.Strides = p.strides
	return part, err
}

// savedPart is a part that is looked for in its file.
type savedPart struct {
	blocks.Box
	file    *file
	from    int64 // offset of its first byte
	strides []int // of its elements; nil: row-major
}

func (p *savedPart) inZip(s stored, dt tensor.DType) error {
	if s.offset+s.size > p.file.size() {
		return fmt.Errorf("the file ends after %d bytes: it is cut off", p.file.size())
	}
	z, err := zip.NewReader(io.NewSectionReader(p.file, s.offset, s.size), s.size)
	if err != nil {
		return err
	}
	entries := map[string]*zip.File{} // without the folder, whose name differs
	for _, e := range z.File {
		_, name, _ := strings.Cut(e.Name, "/")
		if e.Method != zip.Store || e.UncompressedSize64 != e.CompressedSize64 {
			return fmt.Errorf("its %.40q is compressed", name)
		}
		if entries[name] != nil {
			return fmt.Errorf("its %.40q is there twice", name)
		}
		entries[name] = e
	}
	for name, want := range map[string]string{"byteorder": "little", "data.pkl": ""} {
		e := entries[name]
		if e == nil {
			return fmt.Errorf("it has no %s: no tensor that torch.save wrote", name)
		}
		if want == "" {
			continue
		}
		if got, err := contents(e); err != nil || string(got) != want {
			return fmt.Errorf("its %s is %.20q, not %s", name, got, want)
		}
	}
	b, err := contents(entries["data.pkl"])
	if err != nil {
		return err
	}
	v, err := pickle.ParseObjects(b, tensorNames)
	if err != nil {
		return err
	}
	return p.inStorage(v, dt, s, entries)
}

// contents reads an entry. Its size is that of bytes which the file has.
func contents(e *zip.File) ([]byte, error) {
	r, err := e.Open()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, maxPickle))
}

// inStorage sets where the bytes of p are, from the pickle of its tensor.
func (p *savedPart) inStorage(v any, dt tensor.DType, s stored, entries map[string]*zip.File) error {
	t, err := savedTensorOf(v)
	if err != nil {
		return err
	}
	if t.dtype != dt || !slices.Equal(t.shape, p.Shape) {
		return fmt.Errorf("it is %v[%s], not %v[%s]", t.dtype, blocks.Numbers(t.shape), dt, blocks.Numbers(p.Shape))
	}
	e := entries["data/"+t.storage]
	if e == nil {
		return fmt.Errorf("its storage %.40q is missing", t.storage)
	}
	at, err := e.DataOffset()
	if err != nil {
		return err
	}
	size := e.UncompressedSize64
	if at > s.size || size > uint64(s.size-at) || t.elements > math.MaxInt64/t.width || uint64(t.elements*t.width) != size {
		return fmt.Errorf("its storage has %d bytes of %d elements of %d bytes, in an item of %d bytes", size, t.elements, t.width, s.size)
	}
	unit := dt
	if dt == tensor.F4 {
		unit = tensor.U8 // a pair
	}
	if n, err := tensor.Size(unit, p.Shape...); err != nil || n == 0 {
		return err
	}
	width := unit.Bits() / 8
	last, ok := t.last()
	switch {
	case !ok || t.offset > (math.MaxInt-1)/width-1-last || uint64(t.offset+last+1)*uint64(width) > size:
		return fmt.Errorf("[%s] with strides [%s] from element %d is not within its storage of %d bytes", blocks.Numbers(p.Shape), blocks.Numbers(t.strides), t.offset, size)
	case last+1 < p.Size():
		return fmt.Errorf("[%s] with strides [%s] has elements that share their bytes", blocks.Numbers(p.Shape), blocks.Numbers(t.strides))
	}
	p.from = s.offset + at + int64(t.offset)*int64(width)
	if !slices.Equal(t.strides, blocks.RowMajor(p.Box).Strides) {
		p.strides = t.strides
	}
	return nil
}

// last returns the offset of the last element from the first, in elements, if it is a number. No axis is
// empty.
func (t *savedTensor) last() (n int, ok bool) {
	for i, d := range t.shape {
		if d > 1 && t.strides[i] > (math.MaxInt-1-n)/(d-1) {
			return 0, false
		}
		n += (d - 1) * t.strides[i]
	}
	return n, true
}

// savedTensor is the layout of a tensor that torch.save wrote.
type savedTensor struct {
	dtype          tensor.DType
	storage        string // its name
	elements       int64  // of the storage
	width          int64  // bytes of one
	offset         int    // of the first element, in elements
	shape, strides []int
}

// savedTensorOf reads the arguments of _rebuild_tensor_v2: storage, offset, size, strides, whether it
// needs a gradient, hooks, and metadata. V3 has a dtype before the metadata.
func savedTensorOf(v any) (t savedTensor, err error) {
	o, ok := v.(*pickle.Object)
	if ok && o.Name == "torch._utils._rebuild_parameter" && len(o.Args) > 0 {
		o, ok = o.Args[0].(*pickle.Object)
	}
	if !ok || len(o.Args) < 6 || !strings.HasPrefix(o.Name, "torch._utils._rebuild_tensor_v") {
		return t, errors.New("its value is no tensor")
	}
	id, ok := o.Args[0].(*pickle.Object)
	if !ok || len(id.Args) != 1 {
		return t, errors.New("it has no storage")
	}
	storage, ok := id.Args[0].(pickle.Tuple) // "storage", class, name, device, number of elements
	if !ok || len(storage) != 5 {
		return t, errors.New("its storage is unknown")
	}
	t.dtype = dtypeOfClass(storage[1])
	if strings.HasSuffix(o.Name, "v3") && len(o.Args) > 6 {
		t.dtype = dtypeOfClass(o.Args[6])
	}
	if !t.dtype.Valid() {
		return t, errors.New("its dtype is unknown")
	}
	t.storage, _ = storage[2].(string)
	class, _ := storage[1].(pickle.Class)
	t.width = max(1, int64(class.DType.Bits()/8)) // 1 if it has no dtype
	if t.elements, ok = storage[4].(int64); !ok || t.elements < 0 {
		return t, errors.New("its storage has no size")
	}
	if flags, ok := o.Args[len(o.Args)-1].(pickle.Dict); ok && len(o.Args) > 6 && len(flags) > 0 {
		return t, fmt.Errorf("it is a view whose elements are not those of its storage (%v)", flags[0].Key)
	}
	offset, ok := o.Args[1].(int64)
	if t.offset = int(offset); !ok || offset < 0 || offset > math.MaxInt {
		return t, errors.New("its offset is no number")
	}
	if t.shape, err = sizesOf(o.Args[2]); err == nil {
		t.strides, err = sizesOf(o.Args[3])
	}
	if err == nil && len(t.strides) != len(t.shape) {
		err = errors.New("its strides are not those of its shape")
	}
	return t, err
}
