package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// raw is a file with this header and these data.
func raw(header, data string) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

// one is a header with one tensor, whose entry has these fields.
func one(fields string) string { return `{"a":{` + fields + `}}` }

const byteFields = `"dtype":"U8","shape":[1],"data_offsets":[0,1]`

// two is a header with tensors of bytes at these offsets.
func two(a, b [2]int) string {
	entry := func(o [2]int) string {
		return fmt.Sprintf(`{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}`, o[1]-o[0], o[0], o[1])
	}
	return `{"a":` + entry(a) + `,"b":` + entry(b) + `}`
}

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// refusal is a file that is refused.
type refusal struct {
	file   []byte
	tensor string // at fault
	offset int64
	reason string
	other  bool // the reference reader accepts it
}

// lines returns the lines of a file by their columns, of which the second is a string of Go.
func lines(file string) (all [][]string) {
	for line := range strings.Lines(string(must(os.ReadFile(file)))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		c := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		c[1] = must(strconv.Unquote(c[1]))
		all = append(all, c)
	}
	return all
}

// refused has a file for each rule that it breaks: those of testdata/refused.txt, and those that are large,
// or that end in their header.
var refused = func() map[string]refusal {
	all := map[string]refusal{
		"no bytes":                {file: nil, reason: "cut off"},
		"half a length":           {file: make([]byte, 5), offset: 5, reason: "cut off"},
		"length over the limit":   {file: binary.LittleEndian.AppendUint64(nil, 100_000_001), reason: "more than 100000000"},
		"length beyond any file":  {file: binary.LittleEndian.AppendUint64(nil, 1<<63), reason: "more than 100000000"},
		"length longer than file": {file: raw("{}", "")[:9], reason: "the file ends after 1 of them"},
		"axis of many digits":     {file: raw(one(`"dtype":"U8","shape":[`+strings.Repeat("9", 99)+`],"data_offsets":[0,0]`), ""), tensor: "a", offset: 36, reason: strings.Repeat("9", 40) + "…, which"},
		"nested too deep":         {file: raw(one(byteFields+`,"x":`+nested(126)), "x"), tensor: "a", offset: 189, reason: "nested deeper than 127"},
		"depth bomb":              {file: raw(one(byteFields+`,"x":`+strings.Repeat("[", 1<<20)), "x"), tensor: "a", offset: 189, reason: "nested deeper than 127"},
		"depth bomb of objects":   {file: raw(strings.Repeat(`{"a":`, 1<<18), "x"), tensor: "a", reason: "nested deeper than 127"},
	}
	for _, c := range lines("testdata/refused.txt") {
		offset, _ := strconv.ParseInt(c[4], 10, 64)
		all[c[0]] = refusal{raw(c[1], c[2]), c[3], offset, c[5], len(c) > 6}
	}
	return all
}()

// TestRefused has each rule broken once.
func TestRefused(t *testing.T) {
	for name, tc := range refused {
		t.Run(name, func(t *testing.T) {
			f, err := safetensors.Parse(tc.file)
			require.Nil(t, f)
			require.ErrorIs(t, err, safetensors.ErrFormat)
			var bad *safetensors.FormatError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, tc.tensor, bad.Tensor)
			assert.Contains(t, bad.Reason, tc.reason)
			if tc.offset > 0 {
				assert.Equal(t, tc.offset, bad.Offset)
			}
			assert.LessOrEqual(t, len(err.Error()), 600)
		})
	}
}

// TestAccepted has what looks odd and is right.
func TestAccepted(t *testing.T) {
	for name, tc := range accepted {
		t.Run(name, func(t *testing.T) {
			f, err := safetensors.Parse(tc.file)
			require.NoError(t, err)
			var got []string
			for name, t := range f.All() {
				got = append(got, fmt.Sprintf("%s %v %q", name, t, t.Data))
			}
			assert.Equal(t, tc.want, got)
			assert.Equal(t, len(tc.want), f.Len())
			assert.Equal(t, int64(len(tc.file)), f.Size())
		})
	}
}

var accepted = map[string]struct {
	file []byte
	want []string
}{
	"empty":             {file: raw("{}", "")},
	"white space":       {file: raw(" \t\r\n{ \"a\" :\n{\t\"dtype\" : \"U8\" , \"shape\" : [ 1 ] ,\"data_offsets\":[ 0 , 1 ] } } \t\r\n", "x"), want: []string{`a U8[1] "x"`}},
	"scalar":            {file: raw(one(`"dtype":"F32","shape":[],"data_offsets":[0,4]`), "abcd"), want: []string{`a F32[] "abcd"`}},
	"zero size":         {file: raw(one(`"dtype":"F32","shape":[2,0],"data_offsets":[0,0]`), ""), want: []string{`a F32[2,0] ""`}},
	"0, then huge":      {file: raw(one(`"dtype":"F32","shape":[0,9223372036854775807,9],"data_offsets":[0,0]`), ""), want: []string{`a F32[0,9223372036854775807,9] ""`}},
	"fields in order":   {file: raw(one(`"data_offsets":[0,1],"shape":[1],"dtype":"U8"`), "x"), want: []string{`a U8[1] "x"`}},
	"tensors in order":  {file: raw(two([2]int{2, 4}, [2]int{0, 2}), "abcd"), want: []string{`b U8[2] "ab"`, `a U8[2] "cd"`}},
	"zero size between": {file: raw(two([2]int{0, 2}, [2]int{2, 2}), "ab"), want: []string{`a U8[2] "ab"`, `b U8[0] ""`}},
	"zero sizes alike":  {file: raw(two([2]int{0, 0}, [2]int{0, 0}), ""), want: []string{`a U8[0] ""`, `b U8[0] ""`}},
	"zero size later":   {file: raw(two([2]int{0, 2}, [2]int{0, 0}), "ab"), want: []string{`b U8[0] ""`, `a U8[2] "ab"`}},
	"packed":            {file: raw(one(`"dtype":"F6_E3M2","shape":[4],"data_offsets":[0,3]`), "abc"), want: []string{`a F6_E3M2[4] "abc"`}},
	"no name":           {file: raw(`{"":{`+byteFields+`}}`, "x"), want: []string{` U8[1] "x"`}},
	"escapes":           {file: raw(`{"\"\\\/\b\f\n\r\tz\u00e9\ud83d\ude00\u0000":{`+byteFields+`}}`, "x"), want: []string{"\"\\/\b\f\n\r\tzé😀\x00 U8[1] \"x\""}},
	"no escapes":        {file: raw("{\"é😀\x7f\u2028\ufffd\":{"+byteFields+`}}`, "x"), want: []string{"é😀\x7f\u2028\ufffd U8[1] \"x\""}},
	"fields unknown":    {file: raw(one(`"x":[1,-0.5e-3,0E+1,"\u0000",{"y":null,"y":[true,false,{}]}],"x":[],`+byteFields), "x"), want: []string{`a U8[1] "x"`}},
	"deep":              {file: raw(one(byteFields+`,"x":`+nested(125)), "x"), want: []string{`a U8[1] "x"`}},
	"many axes":         {file: raw(one(`"dtype":"U8","shape":[1`+strings.Repeat(",1", 70)+`],"data_offsets":[0,1]`), "x"), want: []string{`a U8[1` + strings.Repeat(",1", 70) + `] "x"`}},
}

// TestErrorNames wants the text alone to say what is wrong, and where.
func TestErrorNames(t *testing.T) {
	name := saved(t, raw(two([2]int{0, 2}, [2]int{1, 3}), "xyz"))
	want := "safetensors: " + name + `: tensor "b": begins at 1 of the data, but "a" before it ends at 2 (at byte 114)`
	_, err := safetensors.Open(name)
	require.EqualError(t, err, want)
}

// TestHostileHeaders wants memory in proportion to the bytes that are there.
func TestHostileHeaders(t *testing.T) {
	const size = 2 << 20
	for name, header := range map[string]string{
		"axes":     one(`"dtype":"U8","shape":[0` + strings.Repeat(",0", size/2) + `],"data_offsets":[0,0]`),
		"metadata": `{"__metadata__":{` + many(size/10, `"%06x":""`) + `}}`,
		"tensors":  `{` + many(size/60, `"%06x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`) + `}`,
		"depth":    one(`"x":` + strings.Repeat("[", size)),
		"name":     `{"` + strings.Repeat("x", size) + `":1}`,
		"escapes":  `{"` + strings.Repeat(`\u0000`, size/6) + `":1}`,
		"number":   one(`"x":` + strings.Repeat("9", size)),
	} {
		t.Run(name, func(t *testing.T) {
			file := raw(header, "")
			var err error
			assert.Less(t, allocated(func() { _, err = safetensors.Parse(file) }), uint64(40*len(file)))
			if err != nil {
				assert.Less(t, len(err.Error()), 2000, "errors do not repeat what is huge")
			}
		})
	}
	t.Run("length without bytes", func(t *testing.T) {
		file := binary.LittleEndian.AppendUint64(nil, 100_000_000)
		assert.Less(t, allocated(func() {
			_, err := safetensors.Parse(file)
			assert.ErrorIs(t, err, safetensors.ErrFormat)
		}), uint64(1<<20))
	})
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// many joins n of what format makes of a number.
func many(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(parts, ",")
}

func TestReadHeader(t *testing.T) {
	file := raw(`{"__metadata__":{"k":"v"},`+two([2]int{2, 4}, [2]int{0, 2})[1:], "abcd")
	r := bytes.NewReader(file)
	h := must(safetensors.ReadHeader(r, int64(len(file))))
	assert.Equal(t, []string{"b", "a"}, h.Names())
	assert.Equal(t, map[string]string{"k": "v"}, h.Metadata)
	assert.Equal(t, int64(len(file)), h.Size())
	for name, want := range map[string]string{"a": "cd", "b": "ab"} {
		info, ok := h.Info(name)
		require.True(t, ok)
		assert.Equal(t, tensor.U8, info.DType)
		assert.Equal(t, []int{2}, info.Shape)
		assert.Equal(t, "U8[2]", info.String())
		got := must(io.ReadAll(io.NewSectionReader(r, info.Begin, info.End-info.Begin)))
		assert.Equal(t, want, string(got), name)
	}
	_, ok := h.Info("c")
	assert.False(t, ok)
	for range h.Infos() {
		break // and is not called again
	}

	_, err := safetensors.ReadHeader(r, int64(len(file))-1)
	require.ErrorContains(t, err, `tensor "a": the file is cut off`)
	_, err = safetensors.ReadHeader(r, int64(len(file))+1)
	require.ErrorContains(t, err, "1 bytes follow")
}

// broken is a file that cannot be read from its end on.
type broken struct {
	file []byte
	err  error
}

func (b broken) ReadAt(p []byte, off int64) (n int, err error) {
	if off < int64(len(b.file)) {
		n = copy(p, b.file[off:])
	}
	if n < len(p) {
		err = b.err
	}
	return n, err
}

// TestReaderFails wants the reader's own error, wherever it comes, and another one of a file that is cut off.
func TestReaderFails(t *testing.T) {
	file := raw(two([2]int{0, 2}, [2]int{2, 4}), "abcd")
	cause := errors.New("broken")
	for n := range len(file) - 4 {
		_, err := safetensors.ReadHeader(broken{file[:n], cause}, int64(len(file)))
		require.ErrorIs(t, err, cause, n)
		require.NotErrorIs(t, err, safetensors.ErrFormat, n)
		_, err = safetensors.ReadHeader(broken{file[:n], io.EOF}, int64(len(file)))
		require.ErrorIs(t, err, safetensors.ErrFormat, n)
	}
}
