package pickle_test

import (
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/tensor"
)

// values returns the values of testdata/reference.py, by the same names, as Parse returns them.
func values() map[string]any {
	all := plainValues()
	maps.Copy(all, numpyValues())
	maps.Copy(all, torchValues())
	return all
}

// power returns 2 to the n, plus more.
func power(n uint, more int64) *big.Int {
	v := new(big.Int).Lsh(big.NewInt(1), n)
	return v.Add(v, big.NewInt(more))
}

func negative(v *big.Int) *big.Int { return new(big.Int).Neg(v) }

func ints(vs ...int64) []any {
	all := make([]any, len(vs))
	for i, v := range vs {
		all[i] = v
	}
	return all
}

func plainValues() map[string]any {
	var (
		every  [256]byte
		id     pickle.NcclUniqueID
		many   []any
		keys   pickle.Dict
		shared = ints(1)
	)
	for i := range every {
		every[i] = byte(i)
	}
	for i := range id {
		id[i] = byte(7 * i)
	}
	for i := range 1001 {
		many = append(many, int64(i))
		keys = append(keys, pickle.Item{strconv.Itoa(i), int64(i)})
	}
	return map[string]any{
		"none": nil, "true": true, "false": false,
		"ints": ints(0, 1, -1, 255, 256, 65535, 65536, -128, 1<<31-1, 1<<31, -1<<31, -1<<31-1, math.MaxInt64, math.MinInt64),
		"big_ints": []any{
			power(63, 0), power(64, -1), negative(power(63, 1)), power(2100, 0), negative(power(2100, 0)), negative(power(71, 0)), power(71, 0),
		},
		"floats":    []any{0.0, math.Copysign(0, -1), 1.5, -1e300, 5e-324, math.Inf(1), math.Inf(-1)},
		"nan":       math.NaN(),
		"strings":   []any{"", "a", "héllo €", "\n\\\t'\"", "\U0001f600", strings.Repeat("x", 300)},
		"bytes":     []any{[]byte{}, []byte("a"), every[:], []byte(strings.Repeat("y", 300))},
		"bytearray": []any{pickle.ByteArray{}, pickle.ByteArray("ab\xff")},
		"list":      []any{},
		"nested": []any{
			[]any{[]any{}},
			[]any{int64(1), []any{int64(2), ints(3)}},
			pickle.Dict{{"a", []any{pickle.Tuple{}, pickle.Tuple{int64(1)}}}},
		},
		"tuples": []any{
			pickle.Tuple{}, pickle.Tuple(ints(1)), pickle.Tuple(ints(1, 2)), pickle.Tuple(ints(1, 2, 3)), pickle.Tuple(ints(1, 2, 3, 4)),
		},
		"dict": pickle.Dict{
			{"b", int64(1)},
			{"a", int64(2)},
			{int64(3), nil},
			{pickle.Tuple{int64(1), "x"}, []byte("y")},
			{nil, true},
			{1.5, []any{}},
		},
		"same_keys":  pickle.Dict{{int64(1), "a"}, {2.0, "b"}, {power(70, 0), "c"}},
		"empty_dict": pickle.Dict{},
		"ordered":    pickle.Dict{{"z", int64(1)}, {"y", int64(2)}},
		"shared":     []any{shared, shared, pickle.Tuple{shared, shared}},
		"many":       many,
		"many_keys":  keys,
		"nccl":       id,
		"handshake": pickle.Dict{
			{"rank", int64(3)}, {"addresses", []any{pickle.Tuple{"10.0.0.1", int64(29500)}}}, {"ok", true}, {"blob", []byte{0, 1}},
		},
	}
}

// six returns the elements 0 to 5 of a dtype; true is 1 to 5.
func six(dt tensor.DType, shape ...int) *tensor.Tensor {
	t := tensor.New(dt, shape...)
	width := dt.Bits() / 8
	for i := range 6 {
		word := binary.LittleEndian.AppendUint64(nil, bitsOf(dt, i))
		copy(t.Data[i*width:][:width], word)
	}
	return t
}

// bitsOf returns the code of a small number.
func bitsOf(dt tensor.DType, n int) uint64 {
	switch v := float32(n); dt {
	case tensor.Bool:
		return uint64(min(n, 1))
	case tensor.F16:
		return uint64(tensor.Float16From(v))
	case tensor.BF16:
		return uint64(tensor.BFloat16From(v))
	case tensor.F32, tensor.C64: // the real part
		return uint64(math.Float32bits(v))
	case tensor.F64:
		return math.Float64bits(float64(v))
	}
	return uint64(n)
}

func numpyValues() map[string]any {
	array := func(t *tensor.Tensor) pickle.Array { return pickle.Array{Tensor: t} }
	all := map[string]any{
		"np_scalar":  array(tensor.From([]float64{2.5}, []int{}...)),
		"np_empty":   array(tensor.New(tensor.F32, 0, 3)),
		"np_vector":  array(tensor.From([]float32{1.5, -2.5})),
		"np_fortran": array(six(tensor.I32, 2, 3)),
		"np_strided": array(tensor.From([]int64{0, 3, 6, 9})),
		"np_mixed": pickle.Dict{
			{"a", array(tensor.From([]uint8{1, 2}))}, {"b", []any{array(tensor.From([]bool{true}))}},
		},
		"np_readonly": array(tensor.From([]int16{3, 4})),
	}
	all["np_scalar"] = array(&tensor.Tensor{DType: tensor.F64, Shape: []int{}, Data: tensor.From([]float64{2.5}).Data})
	transposed := tensor.New(tensor.I16, 3, 2, 4)
	v, _ := tensor.View[int16](transposed)
	for i := range v {
		v[i] = int16(i/4%2*12 + i/8*4 + i%4)
	}
	all["np_transposed"] = array(transposed)
	for name, dt := range map[string]tensor.DType{
		"b1": tensor.Bool, "i1": tensor.I8, "i2": tensor.I16, "i4": tensor.I32, "i8": tensor.I64, "u1": tensor.U8, "u2": tensor.U16,
		"u4": tensor.U32, "u8": tensor.U64, "f2": tensor.F16, "f4": tensor.F32, "f8": tensor.F64, "c8": tensor.C64,
	} {
		all["np_"+name] = array(six(dt, 2, 3))
	}
	return all
}

func torchValues() map[string]any {
	all := map[string]any{
		"torch_scalar":     &tensor.Tensor{DType: tensor.F32, Shape: []int{}, Data: tensor.From([]float32{2.5}).Data},
		"torch_empty":      tensor.New(tensor.F32, 0, 3),
		"torch_view":       tensor.From([]int32{2, 3, 4, 5}),
		"torch_transposed": tensor.From([]int32{0, 3, 1, 4, 2, 5}, 3, 2),
		"torch_expanded":   tensor.From([]float32{7, 7, 7}),
		"torch_mixed":      pickle.Dict{{"w", tensor.From([]float32{1})}, {"n", ints(1)}},
	}
	for name, dt := range map[string]tensor.DType{
		"bool": tensor.Bool, "uint8": tensor.U8, "int8": tensor.I8, "int16": tensor.I16, "int32": tensor.I32, "int64": tensor.I64,
		"float16": tensor.F16, "bfloat16": tensor.BF16, "float32": tensor.F32, "float64": tensor.F64, "complex64": tensor.C64,
		"uint16": tensor.U16, "uint32": tensor.U32, "uint64": tensor.U64,
	} {
		all["torch_"+name] = six(dt, 2, 3)
	}
	for name, dt := range map[string]tensor.DType{
		"float8_e4m3fn": tensor.F8E4M3, "float8_e5m2": tensor.F8E5M2, "float8_e4m3fnuz": tensor.F8E4M3FNUZ,
		"float8_e5m2fnuz": tensor.F8E5M2FNUZ, "float8_e8m0fnu": tensor.F8E8M0,
	} {
		all["torch_"+name] = &tensor.Tensor{DType: dt, Shape: []int{2}, Data: []byte{0x38, 0x40}}
	}
	return all
}

// requireSame is require.Equal, except that NaN equals NaN.
func requireSame(t testing.TB, want, got any, what string) {
	t.Helper()
	if f, ok := want.(float64); ok && math.IsNaN(f) {
		g, ok := got.(float64)
		require.True(t, ok && math.IsNaN(g), "%s: %v", what, got)
		return
	}
	require.Equal(t, want, got, what)
}

// golden is the pickle of a value by a real Python.
type golden struct {
	name     string
	protocol int
	b        []byte
}

var goldenFiles = []string{"plain.txt", "numpy-1.txt", "numpy-2.txt", "torch-1.txt", "torch-2.txt"}

func goldens(t testing.TB, file string) []golden {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	return parseGoldens(t, string(text))
}

func parseGoldens(t testing.TB, text string) []golden {
	t.Helper()
	var all []golden
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if words[0] == "#" {
			continue
		}
		protocol, err := strconv.Atoi(words[1])
		require.NoError(t, err)
		b, err := hex.DecodeString(words[2])
		require.NoError(t, err)
		all = append(all, golden{words[0], protocol, b})
	}
	return all
}

// TestGoldens checks that the pickles of real Pythons parse to the expected values, in every
// protocol, and that these do not alias the bytes that they were parsed from.
func TestGoldens(t *testing.T) {
	want := values()
	seen := map[string]bool{}
	for _, file := range goldenFiles {
		for _, g := range goldens(t, file) {
			got, err := pickle.Parse(g.b)
			require.NoError(t, err, "%s %s %d", file, g.name, g.protocol)
			require.Contains(t, want, g.name)
			clear(g.b)
			requireSame(t, want[g.name], got, g.name)
			seen[g.name] = true
		}
	}
	require.Len(t, seen, len(want))
}

// TestRoundTrip checks that a value that is written is read again as the same value, and always has
// the same bytes.
func TestRoundTrip(t *testing.T) {
	for name, v := range values() {
		b, err := pickle.Append([]byte("front"), v)
		require.NoError(t, err, name)
		require.Equal(t, "front\x80\x04", string(b[:7]))
		again, err := pickle.Append([]byte("front"), v)
		require.NoError(t, err)
		require.Equal(t, b, again, name)
		got, err := pickle.Parse(b[5:])
		require.NoError(t, err, name)
		requireSame(t, v, got, name)
	}
}

// TestTruncated checks that a pickle that is cut off at any position is an error.
func TestTruncated(t *testing.T) {
	for _, file := range goldenFiles {
		for _, g := range goldens(t, file) {
			if len(g.b) > 2000 {
				continue
			}
			for n := range len(g.b) {
				_, err := pickle.Parse(g.b[:n])
				require.ErrorIs(t, err, pickle.ErrMalformed, "%s %d: %d of %d bytes", g.name, g.protocol, n, len(g.b))
			}
			_, err := pickle.Parse(append(g.b, '.'))
			require.ErrorContains(t, err, "1 bytes after the end")
		}
	}
}
