package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/muster-pg/muster/tensor"
)

// plan returns the header for tensors of these dtypes and shapes, in the reference's order, and its
// bytes.
func plan(infos map[string]Info, metadata map[string]string) (*Header, []byte, error) {
	h := &Header{Metadata: maps.Clone(metadata), names: inOrder(infos), infos: make([]Info, len(infos)), index: map[string]int{}}
	if err := checkMetadata(metadata); err != nil {
		return nil, nil, err
	}
	end := uint64(0)
	for i, name := range h.names {
		size, err := checkInfo(name, infos[name])
		if err != nil {
			return nil, nil, err
		}
		info := Info{DType: infos[name].DType, Shape: slices.Clone(infos[name].Shape), Begin: int64(end)}
		if end += size; size > math.MaxInt64 || end > math.MaxInt64-maxHeader-lengthLen {
			return nil, nil, &WriteError{Tensor: name, Err: errors.New("the file would be larger than files can be")}
		}
		info.End = int64(end)
		h.infos[i], h.index[name] = info, i
	}
	b := h.append(make([]byte, lengthLen, 256+128*len(infos)))
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	if n := len(b) - lengthLen; n > maxHeader {
		err := fmt.Errorf("the header would have %d bytes, more than %d: write several files", n, maxHeader)
		return nil, nil, &WriteError{Err: err}
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-lengthLen))
	h.move(int64(len(b)))
	return h, b, nil
}

// inOrder returns the names, ordered by decreasing alignment, then by name.
func inOrder(infos map[string]Info) []string {
	return slices.SortedFunc(maps.Keys(infos), func(a, b string) int {
		return cmp.Or(cmp.Compare(infos[b].DType, infos[a].DType), cmp.Compare(a, b))
	})
}

// checkInfo returns the size of a tensor, or an error if it cannot be in a file.
func checkInfo(name string, info Info) (size uint64, err error) {
	switch {
	case name == reserved:
		err = errors.New("the name is reserved")
	case !utf8.ValidString(name):
		err = errors.New("the name is not UTF-8")
	case !info.DType.Valid():
		err = fmt.Errorf("%v is not a dtype", info.DType)
	default:
		size, err = sizeOf(info.DType, info.Shape)
	}
	if err != nil {
		return 0, &WriteError{Tensor: name, Err: err}
	}
	return size, nil
}

func checkMetadata(metadata map[string]string) error {
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return &WriteError{Err: fmt.Errorf("metadata %s: key or value is not UTF-8", quote(key))}
		}
	}
	return nil
}

// move sets the offset of the data, which was 0.
func (h *Header) move(start int64) {
	h.start = start
	for i := range h.infos {
		h.infos[i].Begin += start
		h.infos[i].End += start
	}
}

// append appends the header's JSON, in the format of the reference.
func (h *Header) append(b []byte) []byte {
	b = append(b, '{')
	if h.Metadata != nil {
		b = appendString(b, reserved)
		b = appendMetadata(append(b, ':'), h.Metadata)
	}
	for i, name := range h.names {
		if i > 0 || h.Metadata != nil {
			b = append(b, ',')
		}
		b = appendString(b, name)
		b = appendEntry(append(b, ':'), h.infos[i])
	}
	return append(b, '}')
}

func appendMetadata(b []byte, metadata map[string]string) []byte {
	b = append(b, '{')
	for i, key := range slices.Sorted(maps.Keys(metadata)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, key)
		b = appendString(append(b, ':'), metadata[key])
	}
	return append(b, '}')
}

func appendEntry(b []byte, info Info) []byte {
	b = append(b, `{"dtype":"`...)
	b = append(b, info.DType.String()...)
	b = append(b, `","shape":[`...)
	for i, d := range info.Shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(d), 10)
	}
	b = append(b, `],"data_offsets":[`...)
	b = strconv.AppendInt(b, info.Begin, 10)
	b = strconv.AppendInt(append(b, ','), info.End, 10)
	return append(b, `]}`...)
}

// appendString appends a JSON string. It escapes only what JSON requires, as serde_json does.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			if c >= ' ' {
				b = append(b, c)
			} else {
				b = fmt.Appendf(b, `\u%04x`, c)
			}
		}
	}
	return append(b, '"')
}

// infosOf returns the dtypes and shapes of tensors, and checks the tensors.
func infosOf(ts map[string]*tensor.Tensor) (map[string]Info, error) {
	infos := make(map[string]Info, len(ts))
	for name, t := range ts {
		if err := t.Check(); err != nil {
			return nil, &WriteError{Tensor: name, Err: err}
		}
		infos[name] = Info{DType: t.DType, Shape: t.Shape}
	}
	return infos, nil
}
