package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
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

var refused = map[string]struct {
	file   []byte
	tensor string // at fault
	offset int64
	reason string
	other  bool // the reference reader accepts it
}{
	"no bytes":                  {file: nil, reason: "cut off"},
	"half a length":             {file: make([]byte, 5), offset: 5, reason: "cut off"},
	"length over the limit":     {file: binary.LittleEndian.AppendUint64(nil, 100_000_001), reason: "more than 100000000"},
	"length beyond any file":    {file: binary.LittleEndian.AppendUint64(nil, 1<<63), reason: "more than 100000000"},
	"length longer than file":   {file: raw("{}", "")[:9], reason: "the file ends after 1 of them"},
	"no header":                 {file: raw("", ""), offset: 8, reason: "ends where the header should be"},
	"white space only":          {file: raw("   ", ""), offset: 11, reason: "ends where the header should be"},
	"array":                     {file: raw("[]", ""), offset: 8, reason: `'[' is where the header should be`},
	"null":                      {file: raw("null", ""), offset: 8, reason: `'n' is where the header should be`},
	"byte order mark":           {file: raw("\ufeff{}", ""), offset: 8, reason: `'\ufeff' is where`},
	"nul as padding":            {file: raw("{}\x00", ""), offset: 10, reason: `'\x00' is where the end should be`},
	"second value":              {file: raw("{}{}", ""), offset: 10, reason: "the end"},
	"no end":                    {file: raw(`{"a":`, ""), tensor: "a", offset: 13, reason: "ends where"},
	"comma at the end":          {file: raw(`{"__metadata__":{},}`, ""), offset: 27, reason: "a name in the header"},
	"no comma":                  {file: raw(`{"__metadata__":{} "a":{}}`, ""), offset: 27, reason: "a comma"},
	"no colon":                  {file: raw(`{"a" {}}`, ""), offset: 13, reason: "the : after a name"},
	"name is a number":          {file: raw(`{1:{}}`, ""), offset: 9, reason: "a string"},
	"comment":                   {file: raw(`{/**/}`, ""), offset: 9, reason: "a string"},
	"not UTF-8":                 {file: raw("{\"\xff\":{"+byteFields+"}}", "x"), offset: 10, reason: "byte 0xff is not UTF-8"},
	"surrogate in UTF-8":        {file: raw("{\"\xed\xa0\x80\":{"+byteFields+"}}", "x"), offset: 10, reason: "not UTF-8"},
	"control character":         {file: raw("{\"\n\":{"+byteFields+"}}", "x"), offset: 10, reason: "control character 0x0a"},
	"control after an escape":   {file: raw("{\"\\n\n\":{"+byteFields+"}}", "x"), offset: 12, reason: "control character 0x0a"},
	"half a pair":               {file: raw(`{"\ud800":{`+byteFields+`}}`, "x"), offset: 10, reason: "no character"},
	"second half of a pair":     {file: raw(`{"\udc00":{`+byteFields+`}}`, "x"), offset: 10, reason: "no character"},
	"pair with no second":       {file: raw(`{"\ud800\u0041":{`+byteFields+`}}`, "x"), offset: 10, reason: "no character"},
	"escape that is none":       {file: raw(`{"\x":{`+byteFields+`}}`, "x"), offset: 10, reason: "an escape that JSON does not have"},
	"escape that is no hex":     {file: raw(`{"\u00g0":{`+byteFields+`}}`, "x"), offset: 10, reason: "no character"},
	"escape cut off":            {file: raw(`{"\u00`, ""), offset: 10, reason: "no character"},
	"backslash cut off":         {file: raw(`{"\`, ""), offset: 10, reason: "no character"},
	"string cut off":            {file: raw(`{"abc`, ""), offset: 10, reason: "a string has no end"},
	"string cut off after \\n":  {file: raw(`{"\nabc`, ""), offset: 10, reason: "a string has no end"},
	"tensor twice":              {file: raw(`{"a":{`+byteFields+`},"a":{`+byteFields+`}}`, "x"), tensor: "a", offset: 61, reason: "there twice", other: true},
	"tensor twice, escaped":     {file: raw(`{"a":{`+byteFields+`},"\u0061":{`+byteFields+`}}`, "x"), tensor: "a", offset: 61, reason: "there twice", other: true},
	"dtype twice":               {file: raw(one(byteFields+`,"dtype":"U8"`), "x"), tensor: "a", offset: 60, reason: "dtype is there twice"},
	"shape twice":               {file: raw(one(`"shape":[],`+byteFields), "x"), tensor: "a", offset: 38, reason: "shape is there twice"},
	"data_offsets twice":        {file: raw(one(byteFields+`,"data_offsets":[0,1]`), "x"), tensor: "a", offset: 60, reason: "data_offsets is there twice"},
	"metadata twice":            {file: raw(`{"__metadata__":{},"__metadata__":{}}`, ""), offset: 27, reason: "__metadata__ is there twice"},
	"metadata's key twice":      {file: raw(`{"__metadata__":{"k":"","k":""}}`, ""), offset: 32, reason: `__metadata__ has "k" twice`, other: true},
	"metadata with a number":    {file: raw(`{"__metadata__":{"k":1}}`, ""), offset: 29, reason: `the value of "k" in __metadata__, a string, should be`},
	"metadata with null":        {file: raw(`{"__metadata__":{"k":null}}`, ""), offset: 29, reason: "a string"},
	"metadata with an object":   {file: raw(`{"__metadata__":{"k":{}}}`, ""), offset: 29, reason: "a string"},
	"metadata is null":          {file: raw(`{"__metadata__":null}`, ""), offset: 24, reason: "__metadata__ should be", other: true},
	"metadata is a tensor":      {file: raw(`{"__metadata__":{`+byteFields+`}}`, "x"), offset: 46, reason: "a string"},
	"entry is null":             {file: raw(`{"a":null}`, ""), tensor: "a", offset: 13, reason: "entry should be"},
	"entry is an array":         {file: raw(`{"a":["U8",[1],[0,1]]}`, "x"), tensor: "a", offset: 13, reason: "entry should be", other: true},
	"no dtype":                  {file: raw(one(`"shape":[1],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 9, reason: "has no dtype"},
	"no shape":                  {file: raw(one(`"dtype":"U8","data_offsets":[0,1]`), "x"), tensor: "a", offset: 9, reason: "has no shape"},
	"no data_offsets":           {file: raw(one(`"dtype":"U8","shape":[1]`), "x"), tensor: "a", offset: 9, reason: "has no data_offsets"},
	"empty entry":               {file: raw(one(``), ""), tensor: "a", offset: 9, reason: "has no dtype"},
	"dtype unknown":             {file: raw(one(`"dtype":"F128","shape":[1],"data_offsets":[0,16]`), ""), tensor: "a", offset: 27, reason: `dtype "F128" is not known`},
	"dtype in small letters":    {file: raw(one(`"dtype":"u8","shape":[1],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 25, reason: "not known"},
	"dtype invalid":             {file: raw(one(`"dtype":"invalid","shape":[1],"data_offsets":[0,0]`), ""), tensor: "a", offset: 30, reason: "not known"},
	"dtype is a number":         {file: raw(one(`"dtype":8,"shape":[1],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 22, reason: "a string"},
	"dtype is an object":        {file: raw(one(`"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 22, reason: "a string", other: true},
	"shape is null":             {file: raw(one(`"dtype":"U8","shape":null,"data_offsets":[0,1]`), "x"), tensor: "a", offset: 35, reason: "shape should be"},
	"shape is a number":         {file: raw(one(`"dtype":"U8","shape":1,"data_offsets":[0,1]`), "x"), tensor: "a", offset: 35, reason: "shape should be"},
	"axis negative":             {file: raw(one(`"dtype":"U8","shape":[-1],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 36, reason: "is -1, which is no integer"},
	"axis minus zero":           {file: raw(one(`"dtype":"U8","shape":[-0],"data_offsets":[0,0]`), ""), tensor: "a", offset: 36, reason: "is -0, which is no integer"},
	"axis float":                {file: raw(one(`"dtype":"U8","shape":[1.0],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 36, reason: "is 1.0, which is no integer"},
	"axis with exponent":        {file: raw(one(`"dtype":"U8","shape":[1e0],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 36, reason: "is 1e0, which is no integer"},
	"axis with a zero before":   {file: raw(one(`"dtype":"U8","shape":[01],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 36, reason: "a number that JSON does not have"},
	"axis minus":                {file: raw(one(`"dtype":"U8","shape":[-],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 36, reason: "a number that JSON does not have"},
	"axis a string":             {file: raw(one(`"dtype":"U8","shape":["1"],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 36, reason: "a number, should be"},
	"axis beyond an int":        {file: raw(one(`"dtype":"U8","shape":[0,9223372036854775808],"data_offsets":[0,0]`), ""), tensor: "a", offset: 38, reason: "no integer from 0 to 9223372036854775807", other: true},
	"axis beyond 64 bits":       {file: raw(one(`"dtype":"U8","shape":[0,18446744073709551616],"data_offsets":[0,0]`), ""), tensor: "a", offset: 38, reason: "no integer"},
	"axis of many digits":       {file: raw(one(`"dtype":"U8","shape":[`+strings.Repeat("9", 99)+`],"data_offsets":[0,0]`), ""), tensor: "a", offset: 36, reason: strings.Repeat("9", 40) + "…, which"},
	"product overflows":         {file: raw(one(`"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]`), ""), tensor: "a", offset: 9, reason: "more bits than can be counted"},
	"product overflows at bits": {file: raw(one(`"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,0]`), ""), tensor: "a", offset: 9, reason: "more bits than can be counted"},
	"product overflows, then 0": {file: raw(one(`"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]`), ""), tensor: "a", offset: 9, reason: "more bits than can be counted"},
	"half a byte":               {file: raw(one(`"dtype":"F4","shape":[3],"data_offsets":[0,2]`), "xx"), tensor: "a", offset: 9, reason: "F4[3] has 12 bits, which is no whole number of bytes"},
	"three quarters of a byte":  {file: raw(one(`"dtype":"F6_E2M3","shape":[],"data_offsets":[0,1]`), "x"), tensor: "a", offset: 9, reason: "F6_E2M3[] has 6 bits"},
	"size too small":            {file: raw(one(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), "xxxx"), tensor: "a", offset: 9, reason: "are 4 bytes, but F32[2] has 8"},
	"size too large":            {file: raw(one(`"dtype":"F32","shape":[1],"data_offsets":[0,5]`), "xxxxx"), tensor: "a", offset: 9, reason: "are 5 bytes, but F32[1] has 4"},
	"scalar without bytes":      {file: raw(one(`"dtype":"F32","shape":[],"data_offsets":[0,0]`), ""), tensor: "a", offset: 9, reason: "are 0 bytes, but F32[] has 4"},
	"offsets null":              {file: raw(one(`"dtype":"U8","shape":[1],"data_offsets":null`), "x"), tensor: "a", offset: 54, reason: "data_offsets should be"},
	"offsets none":              {file: raw(one(`"dtype":"U8","shape":[0],"data_offsets":[]`), ""), tensor: "a", offset: 54, reason: "has 0 numbers, not two"},
	"offsets one":               {file: raw(one(`"dtype":"U8","shape":[0],"data_offsets":[0]`), ""), tensor: "a", offset: 54, reason: "has 1 numbers, not two"},
	"offsets three":             {file: raw(one(`"dtype":"U8","shape":[0],"data_offsets":[0,0,0]`), ""), tensor: "a", offset: 54, reason: "more than two numbers"},
	"offset negative":           {file: raw(one(`"dtype":"U8","shape":[1],"data_offsets":[-1,0]`), "x"), tensor: "a", offset: 55, reason: "is -1, which is no integer"},
	"offset float":              {file: raw(one(`"dtype":"U8","shape":[1],"data_offsets":[0,1.0]`), "x"), tensor: "a", offset: 57, reason: "is 1.0, which is no integer"},
	"offset huge":               {file: raw(one(`"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]`), "x"), tensor: "a", offset: 55, reason: "no integer from 0 to"},
	"offset beyond 64 bits":     {file: raw(one(`"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551617]`), "x"), tensor: "a", offset: 57, reason: "no integer from 0 to"},
	"end before begin":          {file: raw(one(`"dtype":"U8","shape":[1],"data_offsets":[1,0]`), "x"), tensor: "a", offset: 9, reason: "[1,0] end before they begin"},
	"not from 0":                {file: raw(two([2]int{1, 2}, [2]int{2, 3}), "xyz"), tensor: "a", reason: "begins at 1 of the data, but the bytes from 0 on are in no tensor"},
	"hole":                      {file: raw(two([2]int{0, 1}, [2]int{2, 3}), "xyz"), tensor: "b", reason: "begins at 2 of the data, but the bytes from 1 on are in no tensor"},
	"overlap":                   {file: raw(two([2]int{0, 2}, [2]int{1, 3}), "xyz"), tensor: "b", reason: `begins at 1 of the data, but "a" before it ends at 2`},
	"the same bytes":            {file: raw(two([2]int{0, 2}, [2]int{0, 2}), "xy"), tensor: "b", reason: `begins at 0 of the data, but "a" before it ends at 2`},
	"empty tensor in another":   {file: raw(two([2]int{0, 2}, [2]int{1, 1}), "xy"), tensor: "b", reason: `begins at 1 of the data, but "a" before it ends at 2`},
	"data cut off":              {file: raw(two([2]int{0, 2}, [2]int{2, 4}), "xyz"), tensor: "b", reason: "the file is cut off: it has 116 of 117 bytes"},
	"no data":                   {file: raw(two([2]int{0, 2}, [2]int{2, 4}), ""), tensor: "a", reason: "cut off"},
	"data beyond":               {file: raw(two([2]int{0, 1}, [2]int{1, 2}), "xyz"), reason: "1 bytes follow after the last tensor"},
	"data without tensors":      {file: raw("{}", "x"), offset: 10, reason: "1 bytes follow"},
	"unknown field half":        {file: raw(one(byteFields+`,"x":[1`), "x"), tensor: "a", offset: 66, reason: "a comma or the end of an array"},
	"unknown field no value":    {file: raw(one(byteFields+`,"x":nul`), "x"), tensor: "a", offset: 64, reason: "a value"},
	"unknown number no float":   {file: raw(one(byteFields+`,"x":1e999`), "x"), tensor: "a", offset: 64, reason: "number 1e999 is out of range"},
	"unknown number half":       {file: raw(one(byteFields+`,"x":1.`), "x"), tensor: "a", offset: 64, reason: "a number that JSON does not have"},
	"unknown exponent half":     {file: raw(one(byteFields+`,"x":1e+`), "x"), tensor: "a", offset: 64, reason: "a number that JSON does not have"},
	"unknown string bad":        {file: raw(one(byteFields+`,"x":"\ud800"`), "x"), tensor: "a", offset: 65, reason: "no character"},
	"unknown object bad":        {file: raw(one(byteFields+`,"x":{1}`), "x"), tensor: "a", offset: 65, reason: "a name in an object"},
	"nested too deep":           {file: raw(one(byteFields+`,"x":`+nested(126)), "x"), tensor: "a", offset: 189, reason: "nested deeper than 127"},
	"depth bomb":                {file: raw(one(byteFields+`,"x":`+strings.Repeat("[", 1<<20)), "x"), tensor: "a", offset: 189, reason: "nested deeper than 127"},
	"depth bomb of objects":     {file: raw(strings.Repeat(`{"a":`, 1<<18), "x"), tensor: "a", reason: "nested deeper than 127"},
}

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
