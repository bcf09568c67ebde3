package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/bits"
	"slices"

	"github.com/muster-pg/muster/tensor"
)

const (
	lengthLen = 8           // bytes of the header's length field
	maxHeader = 100_000_000 // maximum length of a header
	maxInt    = uint64(math.MaxInt)
	reserved  = "__metadata__" // the one name in a header that is not a tensor's
)

// Info is the header's entry for a tensor.
type Info struct {
	DType tensor.DType
	Shape []int
	Begin int64 // offset of its first byte in the file
	End   int64 // offset of its end
}

// Header is a file's header. It is safe for concurrent use as long as it is not modified.
type Header struct {
	Metadata map[string]string // nil if the file has none

	names []string // in the order of the data
	infos []Info
	index map[string]int
	start int64 // offset of the data in the file
}

// Names returns the tensors' names, in the order of their data.
func (h *Header) Names() []string { return slices.Clone(h.names) }

// Len returns the number of tensors.
func (h *Header) Len() int { return len(h.names) }

// Info returns the entry of the tensor called name. Its Shape must not be modified.
func (h *Header) Info(name string) (Info, bool) {
	i, ok := h.index[name]
	if !ok {
		return Info{}, false
	}
	return h.infos[i], true
}

// Infos yields the entries of all tensors, in the order of their data.
func (h *Header) Infos() iter.Seq2[string, Info] {
	return func(yield func(string, Info) bool) {
		for i, name := range h.names {
			if !yield(name, h.infos[i]) {
				return
			}
		}
	}
}

// Size returns the size of the whole file in bytes.
func (h *Header) Size() int64 {
	if len(h.infos) == 0 {
		return h.start
	}
	return h.infos[len(h.infos)-1].End
}

// ReadHeader reads and checks the header of a file of size bytes, and reads nothing else. It is for
// callers that read the data themselves, all or in parts:
//
//	info, _ := h.Info("w")
//	data := io.NewSectionReader(r, info.Begin, info.End-info.Begin)
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	file := io.NewSectionReader(r, 0, size)
	var length [lengthLen]byte
	if got, err := io.ReadFull(file, length[:]); err != nil {
		return nil, cutOff(err, int64(got), "the length of the header, 8 bytes,")
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n > maxHeader:
		return nil, invalid(0, "the header has %d bytes, more than %d: this is no safetensors file", n, maxHeader)
	case int64(n) > size-lengthLen:
		return nil, invalid(0, "the header has %d bytes, but the file ends after %d of them", n, size-lengthLen)
	}
	text := make([]byte, n) // which the file has
	if got, err := io.ReadFull(file, text); err != nil {
		return nil, cutOff(err, lengthLen+int64(got), fmt.Sprintf("the header, %d bytes,", n))
	}
	h, err := parseHeader(string(text))
	if err != nil {
		return nil, err
	}
	if err := h.fits(size); err != nil {
		return nil, err
	}
	return h, nil
}

// cutOff returns the error of a file that ends at offset at, within what.
func cutOff(err error, at int64, what string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid(at, "the file ends in the midst of %s: it is cut off", what)
	}
	return fmt.Errorf("safetensors: read: %w", err)
}

// fits returns an error unless a file of size bytes has exactly the size that the header implies.
func (h *Header) fits(size int64) error {
	want := h.Size()
	switch {
	case size > want:
		return invalid(want, "%d bytes follow after the last tensor", size-want)
	case size < want:
		i := slices.IndexFunc(h.infos, func(info Info) bool { return info.End > size })
		return inTensor(h.names[i], invalid(size, "the file is cut off: it has %d of %d bytes", size, want))
	}
	return nil
}

// parseHeader parses the text of a header.
func parseHeader(text string) (*Header, error) {
	s, err := newScanner(text, lengthLen)
	if err != nil {
		return nil, err
	}
	h := &Header{start: lengthLen + int64(len(text)), index: map[string]int{}}
	if err := s.object("the header", func(name string, at int) error { return h.field(s, name, at) }); err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	h.sort()
	if err := h.cover(); err != nil {
		return nil, err
	}
	return h, nil
}

// field parses the value of a name in the header.
func (h *Header) field(s *scanner, name string, at int) error {
	if name == reserved {
		if h.Metadata != nil {
			return s.fail(at, "%s is there twice", reserved)
		}
		return h.metadata(s)
	}
	if _, twice := h.index[name]; twice {
		return inTensor(name, s.fail(at, "is there twice"))
	}
	info, err := h.entry(s, at)
	if err != nil {
		return inTensor(name, err)
	}
	h.index[name] = len(h.names)
	h.names = append(h.names, name)
	h.infos = append(h.infos, info)
	return nil
}

func (h *Header) metadata(s *scanner) error {
	h.Metadata = map[string]string{}
	return s.object(reserved, func(key string, at int) error {
		if _, twice := h.Metadata[key]; twice {
			return s.fail(at, "%s has %s twice", reserved, quote(key))
		}
		if s.peek() != '"' {
			return s.unexpected(fmt.Sprintf("the value of %s in %s, a string,", quote(key), reserved))
		}
		value, err := s.string(reserved)
		h.Metadata[key] = value
		return err
	})
}

// entry parses a tensor's entry, which is at offset at.
func (h *Header) entry(s *scanner, at int) (info Info, err error) {
	var offsets []uint64
	err = s.object("the tensor's entry", func(key string, at int) error {
		switch {
		case key == "dtype" && info.DType == tensor.Invalid:
			return readDType(s, &info.DType)
		case key == "shape" && info.Shape == nil:
			return readShape(s, &info.Shape)
		case key == "data_offsets" && offsets == nil:
			return readOffsets(s, &offsets)
		case key == "dtype" || key == "shape" || key == "data_offsets":
			return s.fail(at, "%s is there twice", key)
		}
		return s.skip()
	})
	switch {
	case err != nil:
		return info, err
	case info.DType == tensor.Invalid:
		return info, s.fail(at, "has no dtype")
	case info.Shape == nil:
		return info, s.fail(at, "has no shape")
	case offsets == nil:
		return info, s.fail(at, "has no data_offsets")
	}
	return info, h.place(&info, offsets[0], offsets[1], s.base+int64(at))
}

func readDType(s *scanner, dt *tensor.DType) error {
	name, err := s.string("dtype")
	if err != nil {
		return err
	}
	*dt, err = tensor.ParseDType(name)
	if err != nil {
		return s.fail(s.pos-1, "dtype %s is not known", quote(name))
	}
	return nil
}

func readShape(s *scanner, shape *[]int) error {
	*shape = make([]int, 0, 4)
	return s.array("shape", func() error {
		n, err := s.natural("an axis of shape", maxInt)
		*shape = append(*shape, int(n))
		return err
	})
}

func readOffsets(s *scanner, offsets *[]uint64) error {
	begin := s.pos
	*offsets = make([]uint64, 0, 2)
	err := s.array("data_offsets", func() error {
		n, err := s.natural("one of data_offsets", math.MaxInt64-lengthLen-maxHeader)
		*offsets = append(*offsets, n)
		if len(*offsets) > 2 {
			return s.fail(begin, "data_offsets has more than two numbers")
		}
		return err
	})
	if err == nil && len(*offsets) < 2 {
		return s.fail(begin, "data_offsets has %d numbers, not two", len(*offsets))
	}
	return err
}

// place sets the range of a tensor's bytes, if its length matches the dtype and shape. The entry is
// at offset at.
func (h *Header) place(info *Info, begin, end uint64, at int64) error {
	size, err := sizeOf(info.DType, info.Shape)
	switch {
	case err != nil:
		return invalid(at, "%v", err)
	case end < begin:
		return invalid(at, "data_offsets [%d,%d] end before they begin", begin, end)
	case end-begin != size:
		return invalid(at, "data_offsets [%d,%d] are %d bytes, but %s has %d", begin, end, end-begin, *info, size)
	}
	info.Begin, info.End = h.start+int64(begin), h.start+int64(end)
	return nil
}

// String returns the dtype and the shape, such as "BF16[4096,4096]".
func (i Info) String() string { return (&tensor.Tensor{DType: i.DType, Shape: i.Shape}).String() }

// sizeOf returns the number of bytes of a tensor. It multiplies from the left, as the reference
// does: a shape whose product overflows before a 0 is rejected.
func sizeOf(dt tensor.DType, shape []int) (uint64, error) {
	n, ok := uint64(1), true
	times := func(d int) {
		hi, lo := bits.Mul64(n, uint64(d))
		n, ok = lo, ok && d >= 0 && hi == 0
	}
	for _, d := range shape {
		times(d)
	}
	if times(dt.Bits()); !ok {
		return 0, fmt.Errorf("%v has a negative axis, or more bits than can be counted", Info{DType: dt, Shape: shape})
	}
	if n%8 != 0 {
		return 0, fmt.Errorf("%v has %d bits, which is no whole number of bytes", Info{DType: dt, Shape: shape}, n)
	}
	return n / 8, nil
}

// sort sorts the tensors by the offset of their data, since headers may have any order.
func (h *Header) sort() {
	order := make([]int, len(h.infos))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := h.infos[a], h.infos[b]
		return cmp.Or(cmp.Compare(x.Begin, y.Begin), cmp.Compare(x.End, y.End))
	})
	if slices.IsSorted(order) {
		return
	}
	names, infos := make([]string, len(order)), make([]Info, len(order))
	for i, from := range order {
		names[i], infos[i] = h.names[from], h.infos[from]
		h.index[names[i]] = i
	}
	h.names, h.infos = names, infos
}

// cover returns an error unless each byte of the data belongs to exactly one tensor.
func (h *Header) cover() error {
	last := h.start
	for i, info := range h.infos {
		begin, end := info.Begin-h.start, last-h.start
		switch {
		case info.Begin > last:
			return inTensor(h.names[i], invalid(last, "begins at %d of the data, but the bytes from %d on are in no tensor", begin, end))
		case info.Begin < last:
			return inTensor(h.names[i], invalid(info.Begin, "begins at %d of the data, but %s before it ends at %d", begin, quote(h.names[i-1]), end))
		}
		last = info.End
	}
	return nil
}
