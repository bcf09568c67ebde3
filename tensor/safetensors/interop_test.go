package safetensors_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

var update = flag.Bool("update", false, "write testdata/*.safetensors anew, by the reference")

// contents are what a file holds.
type contents struct {
	tensors  map[string]*tensor.Tensor
	metadata map[string]string
}

// filled is a tensor whose bytes are 1, 2, 3…
func filled(dt tensor.DType, shape ...int) *tensor.Tensor {
	t := tensor.New(dt, shape...)
	for i := range t.Data {
		t.Data[i] = byte(i + 1)
	}
	return t
}

// golden are the files in testdata, written by the reference. It cannot write F6.
var golden = map[string]contents{
	"dtypes": {tensors: map[string]*tensor.Tensor{
		"bool": filled(tensor.Bool, 3), "f4": filled(tensor.F4, 3, 2), "u8": filled(tensor.U8, 1), "i8": filled(tensor.I8, 1),
		"f8a": filled(tensor.F8E5M2, 1), "f8b": filled(tensor.F8E4M3, 1), "f8c": filled(tensor.F8E8M0, 1),
		"f8d": filled(tensor.F8E4M3FNUZ, 1), "f8e": filled(tensor.F8E5M2FNUZ, 1), "i16": filled(tensor.I16, 2),
		"u16": filled(tensor.U16, 2), "f16": filled(tensor.F16, 2), "bf16": filled(tensor.BF16, 2), "i32": filled(tensor.I32, 1),
		"u32": filled(tensor.U32, 1), "f32": filled(tensor.F32, 2, 3), "c64": filled(tensor.C64, 2), "f64": filled(tensor.F64, 1),
		"i64": filled(tensor.I64, 1), "u64": filled(tensor.U64, 2, 1, 1),
	}},
	"names": {tensors: map[string]*tensor.Tensor{
		"": filled(tensor.U8, 1), "a": filled(tensor.U8, 2), "B": filled(tensor.U8, 1), "ä": filled(tensor.U8, 1),
		"層.0": filled(tensor.U8, 1), "😀": filled(tensor.U8, 1), "\uffff": filled(tensor.U8, 1), "\"\\/": filled(tensor.U8, 1),
		"\x00\x01\b\t\n\v\f\r\x1b\x1f\x7f\u0080\u2028": filled(tensor.U8, 1), "<&>'": filled(tensor.U8, 1),
	}},
	"shapes": {tensors: map[string]*tensor.Tensor{
		"scalar": filled(tensor.F32), "none": filled(tensor.F32, 0), "none.5": filled(tensor.F32, 5, 0, 7),
		"one": filled(tensor.F32, 1, 1, 1, 1, 1, 1), "odd": filled(tensor.I8, 3, 5),
	}, metadata: map[string]string{"for\"mat\n": "p\tt é😀\x02"}},
	"metadata":       {metadata: map[string]string{"format": "pt"}},
	"empty":          {},
	"empty metadata": {tensors: map[string]*tensor.Tensor{"a": filled(tensor.F16, 2)}, metadata: map[string]string{}},
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// written is c as we write it.
func written(t testing.TB, c contents) []byte {
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, c.tensors, c.metadata))
	return b.Bytes()
}

// parsed is what a file holds.
func parsed(t testing.TB, file []byte) contents {
	f, err := safetensors.Parse(file)
	require.NoError(t, err)
	return contents{maps.Collect(f.All()), f.Metadata}
}

func requireSame(t testing.TB, want, got contents) {
	t.Helper()
	require.Equal(t, want.metadata, got.metadata)
	require.Len(t, got.tensors, len(want.tensors))
	for name, w := range want.tensors {
		g := got.tensors[name]
		require.NotNil(t, g, name)
		require.Equal(t, w.String(), g.String(), name)
		require.True(t, bytes.Equal(w.Data, g.Data), name)
	}
}

// TestGolden compares with files that the reference has written.
func TestGolden(t *testing.T) {
	if *update {
		names := slices.Sorted(maps.Keys(golden))
		var all []contents
		for _, name := range names {
			all = append(all, golden[name])
		}
		for i, file := range referenceWrites(t, all) {
			require.NoError(t, os.WriteFile(goldenName(names[i]), file, 0o644))
		}
	}
	for name, want := range golden {
		t.Run(name, func(t *testing.T) {
			file, err := os.ReadFile(goldenName(name))
			require.NoError(t, err)
			requireSame(t, want, parsed(t, file))
			require.Equal(t, file, written(t, want))
		})
	}
}

func goldenName(name string) string {
	return filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".safetensors")
}

// TestGoldenCoversDTypes wants no dtype forgotten.
func TestGoldenCoversDTypes(t *testing.T) {
	seen := map[tensor.DType]bool{tensor.F6E2M3: true, tensor.F6E3M2: true}
	for _, w := range golden["dtypes"].tensors {
		seen[w.DType] = true
	}
	for dt := tensor.Bool; dt.Valid(); dt++ {
		assert.True(t, seen[dt], dt)
	}
}

// TestReferenceWrites compares bytes with what the reference writes of the golden and of many random contents.
func TestReferenceWrites(t *testing.T) {
	cases := slices.Collect(maps.Values(golden))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		cases = append(cases, random(rng))
	}
	for i, file := range referenceWrites(t, cases) {
		requireSame(t, cases[i], parsed(t, file))
		require.Equal(t, file, written(t, cases[i]))
	}
}

// TestReferenceAcceptsWhatWeAccept has both read files that we have written, also with F6 and with several keys of
// metadata, and thousands that are nearly right. What we accept, it accepts, and reads the same.
func TestReferenceAcceptsWhatWeAccept(t *testing.T) {
	var files, seeds [][]byte
	theirs := map[int]bool{}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		tc := refused[name]
		if strings.HasPrefix(name, "depth bomb") {
			continue // large
		}
		theirs[len(files)] = tc.other
		files = append(files, tc.file)
		if !tc.other {
			seeds = append(seeds, tc.file)
		}
	}
	listed := len(files)
	for _, name := range slices.Sorted(maps.Keys(accepted)) {
		files = append(files, accepted[name].file)
		seeds = append(seeds, slices.Repeat([][]byte{accepted[name].file}, 10)...)
	}
	for _, c := range append(slices.Collect(maps.Values(golden)), contents{
		tensors:  map[string]*tensor.Tensor{"a": filled(tensor.F6E2M3, 4), "b": filled(tensor.F6E3M2, 8), "c": filled(tensor.U8, 1)},
		metadata: map[string]string{"a": "1", "b": "2", "ä\n": "3"},
	}, contents{metadata: map[string]string{}}) { // of which its writer makes a broken file
		files = append(files, written(t, c))
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 10_000 {
		files = append(files, damaged(rng, seeds[rng.IntN(len(seeds))]))
	}
	both, more := 0, 0
	for i, got := range referenceReads(t, files) {
		f, err := safetensors.Parse(files[i])
		switch {
		case err == nil:
			require.NotNil(t, got, "we accept, it refuses: %q", files[i])
			requireSame(t, contents{maps.Collect(f.All()), f.Metadata}, *got)
			both++
		case i < listed:
			require.Equal(t, theirs[i], got != nil, "%q: %v", files[i], err)
		case got != nil:
			more++
			require.True(t, deliberate(err), "it accepts, we refuse: %q: %v", files[i], err)
		}
	}
	t.Logf("%d files: both accept %d, only the reference %d", len(files), both, more)
	require.Greater(t, both, 200)
}

// deliberate reports whether err is one of the few refusals that the package's comment lists.
func deliberate(err error) bool {
	return slices.ContainsFunc([]string{
		"is there twice", "twice", "the tensor's entry should be", "dtype, a string, should be", "__metadata__ should be",
		"no integer from 0 to 9223372036854775807",
	}, func(s string) bool { return strings.Contains(err.Error(), s) })
}

// damaged changes a few bytes of a header, with a length that is right.
func damaged(rng *rand.Rand, file []byte) []byte {
	if len(file) < 10 {
		return file
	}
	n := min(int(file[0])|int(file[1])<<8, len(file)-8)
	header, data := slices.Clone(file[8:8+n]), string(file[8+n:])
	alphabet := []string{`"`, `\`, `{`, `}`, `[`, `]`, `,`, `:`, `0`, `1`, `9`, `-`, `.`, `e`, ` `, "\n", "a", "b", "\x00", "\xff", "é", `\u00e9`, "null", `"a"`, `"U8"`, `"x":1,`}
	for range 1 + rng.IntN(2) {
		if len(header) == 0 {
			break
		}
		at := rng.IntN(len(header))
		if c := header[at]; rng.IntN(2) == 0 && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9') {
			header[at] ^= 1
			continue
		}
		end := min(len(header), at+rng.IntN(3))
		header = slices.Replace(header, at, end, []byte(alphabet[rng.IntN(len(alphabet))])...)
	}
	return raw(string(header), data)
}

// random is a file's contents, with at most one key of metadata, and without F6.
func random(rng *rand.Rand) contents {
	c := contents{tensors: map[string]*tensor.Tensor{}}
	word := func() string {
		runes := []rune("abcdefgh.._019 \"\\/\n\t\x00\x1f\x7fäß層😀\u2028\uffff")
		b := make([]rune, rng.IntN(8))
		for i := range b {
			b[i] = runes[rng.IntN(len(runes))]
		}
		return string(b)
	}
	for range rng.IntN(12) {
		dt := tensor.DType(1 + rng.IntN(int(tensor.U64)))
		if dt == tensor.F6E2M3 || dt == tensor.F6E3M2 {
			continue
		}
		shape := make([]int, rng.IntN(4))
		for i := range shape {
			shape[i] = rng.IntN(5)
		}
		if dt == tensor.F4 {
			shape = append(shape, 2*rng.IntN(3))
		}
		c.tensors[word()] = filled(dt, shape...)
	}
	if rng.IntN(2) == 0 && len(c.tensors) > 0 {
		c.metadata = map[string]string{}
		if rng.IntN(4) > 0 {
			c.metadata[word()] = word()
		}
	}
	return c
}

type jsonTensor struct {
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Data  []byte `json:"data"`
}

type jsonContents struct {
	Tensors  map[string]jsonTensor `json:"tensors"`
	Metadata map[string]string     `json:"metadata"`
}

// referenceWrites has the reference write cases.
func referenceWrites(t *testing.T, cases []contents) (files [][]byte) {
	in := make([]jsonContents, len(cases))
	for i, c := range cases {
		in[i] = jsonContents{map[string]jsonTensor{}, c.metadata}
		for name, w := range c.tensors {
			in[i].Tensors[name] = jsonTensor{w.DType.String(), append([]int{}, w.Shape...), w.Data}
		}
	}
	reference(t, "write", in, &files)
	require.Len(t, files, len(cases))
	return files
}

// referenceReads has the reference read files; nil are those that it refuses.
func referenceReads(t *testing.T, files [][]byte) []*contents {
	var out []*struct {
		Tensors  [][4]json.RawMessage `json:"tensors"`
		Metadata map[string]string    `json:"metadata"`
	}
	reference(t, "read", files, &out)
	require.Len(t, out, len(files))
	read := make([]*contents, len(files))
	for i, c := range out {
		if c == nil {
			continue
		}
		read[i] = &contents{map[string]*tensor.Tensor{}, c.Metadata}
		for _, fields := range c.Tensors {
			var name string
			var j jsonTensor
			for k, to := range []any{&name, &j.DType, &j.Shape, &j.Data} {
				if k == 2 { // sizes beyond an int only where there are no elements
					_ = json.Unmarshal(fields[k], to)
					continue
				}
				require.NoError(t, json.Unmarshal(fields[k], to))
			}
			dt, err := tensor.ParseDType(j.DType)
			require.NoError(t, err)
			read[i].tensors[name] = &tensor.Tensor{DType: dt, Shape: j.Shape, Data: j.Data}
		}
	}
	return read
}

// reference runs testdata/reference.py.
func reference(t *testing.T, command string, in, out any) {
	t.Helper()
	stdin, err := json.Marshal(in)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), testcluster.Python(t, "numpy", "safetensors"), "testdata/reference.py", command)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	require.NoError(t, json.Unmarshal(stdout, out))
}
