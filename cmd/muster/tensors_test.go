package main_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

type tensors = map[string]*tensor.Tensor

// file writes a safetensors file into the desk, and returns its path.
func (d desk) file(t *testing.T, name string, ts tensors, metadata map[string]string) string {
	t.Helper()
	path := d.path(name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
	require.NoError(t, safetensors.WriteFile(path, ts, metadata))
	return path
}

func emptyDesk(t *testing.T) desk {
	t.Helper()
	return desk(t.TempDir())
}

// floats returns a tensor with the values vals.
func floats(t *testing.T, dt tensor.DType, vals []float32, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromFloat32s(dt, vals, shape...)
	require.NoError(t, err)
	return x
}

// normal returns a tensor of normally distributed random values.
func normal(seed uint64, shape ...int) *tensor.Tensor {
	r := rand.New(rand.NewPCG(seed, 7))
	x := tensor.New(tensor.F32, shape...)
	v, _ := tensor.View[float32](x)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return x
}

// everyDType returns a tensor of each dtype, with special values if the dtype has them.
func everyDType(t *testing.T) tensors {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	ts := tensors{
		"bool": floats(t, tensor.Bool, []float32{1, 0, 1, 1}), "c64": tensor.New(tensor.C64, 2),
		"empty": tensor.New(tensor.BF16, 0, 3), "scalar": floats(t, tensor.F32, []float32{-1.5}),
	}
	ts["scalar"].Shape = nil
	for dt := tensor.Bool + 1; dt.Valid(); dt++ {
		vals := []float32{0, 1, 1, 2, 2, 2, 3, 4}
		switch dt {
		case tensor.C64:
			continue
		case tensor.F8E8M0:
			vals = []float32{1, 1, 2, 4, 8, 8, 0.5, nan}
		case tensor.F64, tensor.F32, tensor.F16, tensor.BF16, tensor.F8E5M2:
			vals[0], vals[1], vals[2] = nan, inf, -inf
		case tensor.F8E4M3, tensor.F8E4M3FNUZ, tensor.F8E5M2FNUZ:
			vals[0], vals[7] = nan, -2
		case tensor.I8, tensor.I16, tensor.I32, tensor.I64, tensor.F4, tensor.F6E2M3, tensor.F6E3M2:
			vals[7] = -3
		}
		ts[strings.ToLower(dt.String())] = floats(t, dt, vals, 2, 4)
	}
	return ts
}

func TestTensorsGolden(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	path := d.file(t, "all.safetensors", everyDType(t), map[string]string{"format": "pt", "by": "\x1b[31m"})
	const golden = "testdata/tensors.txt"
	r := run(t, "tensors", path)
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	r.wants(t, 0, string(want), "")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(r.stdout), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// listed is the JSON form of a tensor in tensors --json.
type listed struct {
	File, Name, DType string
	Shape             []int
	Parameters, Bytes int64
	NaN, Inf, Zeros   *int64
	Min, Max          *float64
	Mean, Std         *float64
	Bins              []int64
}

func listJSON(t *testing.T, args ...string) (all []listed) {
	t.Helper()
	r := run(t, append([]string{"tensors", "--json"}, args...)...)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	for line := range strings.Lines(r.stdout) {
		var l listed
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(line, err)
		}
		all = append(all, l)
	}
	return all
}

func TestTensorsJSON(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	w := normal(1, 300, 400) // more than a block
	path := d.file(t, "m.safetensors", tensors{"w": w, "c": tensor.New(tensor.C64, 2), "e": tensor.New(tensor.F32, 0)}, nil)
	for _, l := range listJSON(t, path) {
		assert.Equal(t, path, l.File, "%s is of file %s", l.Name, l.File)
		switch l.Name {
		case "c":
			if l.NaN != nil || l.Min != nil || l.DType != "C64" || l.Bytes != 16 {
				t.Errorf("%+v", l)
			}
		case "e":
			if l.NaN == nil || l.Min != nil || l.Parameters != 0 {
				t.Errorf("%+v", l)
			}
		case "w":
			checkStats(t, w, l)
		}
	}
	for _, l := range listJSON(t, path, "--no-stats", "--match", "w") {
		if l.Min != nil || l.Bins != nil || !slices.Equal(l.Shape, w.Shape) {
			t.Errorf("%+v", l)
		}
	}
}

// checkStats compares the statistics with those of a different algorithm.
func checkStats(t *testing.T, w *tensor.Tensor, l listed) {
	t.Helper()
	v, err := tensor.View[float32](w)
	require.NoError(t, err)
	lo, hi := float64(slices.Min(v)), float64(slices.Max(v))
	var sum, squares float64
	bins := make([]int64, 16)
	for _, x := range v {
		sum += float64(x)
		squares += float64(x) * float64(x)
		bins[min(15, int((float64(x)-lo)/(hi-lo)*16))]++
	}
	n := float64(len(v))
	mean := sum / n
	std := math.Sqrt(squares/n - mean*mean)
	if *l.Min != lo || *l.Max != hi || math.Abs(*l.Mean-mean) > 1e-12 || math.Abs(*l.Std-std) > 1e-12 || *l.Zeros+*l.NaN+*l.Inf != 0 {
		t.Errorf("%v %v %v %v, not %v %v %v %v", *l.Min, *l.Max, *l.Mean, *l.Std, lo, hi, mean, std)
	}
	var total int64
	for i, b := range l.Bins { // a value on a boundary may be rounded to either side
		total += b
		if b-bins[i] > 2 || bins[i]-b > 2 {
			t.Errorf("bins %v, not %v", l.Bins, bins)
			break
		}
	}
	assert.Equal(t, int64(len(v)), total)
}

func names(all []listed) (names []string) {
	for _, l := range all {
		names = append(names, l.Name)
	}
	return names
}

func TestTensorsMatchAndSort(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	path := d.file(t, "m.safetensors", tensors{"b.q.w": tensor.New(tensor.F32, 2), "a.q.w": tensor.New(tensor.F64, 1), "c.k.w": tensor.New(tensor.U8, 100), "q": tensor.New(tensor.U8, 1)}, nil)
	for flags, want := range map[string]string{
		"":                               "a.q.w b.q.w c.k.w q",
		"--sort file":                    "a.q.w b.q.w c.k.w q",
		"--sort name":                    "a.q.w b.q.w c.k.w q",
		"--sort size":                    "c.k.w a.q.w b.q.w q",
		"--match *.q.w":                  "a.q.w b.q.w",
		"--match *.q.w --match q":        "a.q.w b.q.w q",
		"--match *k* --match a.q.w":      "a.q.w c.k.w",
		"--match * --sort size":          "c.k.w a.q.w b.q.w q",
		"--match *q* --match *.w":        "a.q.w b.q.w c.k.w q",
		"--match a*.*w --no-stats":       "a.q.w",
		"--match a.q.w --match a.q.w":    "a.q.w",
		"--match *w*w --match c.k.w":     "",
		"--match q --match Q":            "",
		"--match ??? --sort name":        "",
		"--match [ab].q.w --sort name":   "",
		"--match a.q.w* --sort name":     "a.q.w",
		"--match **.q.** --sort name":    "a.q.w b.q.w",
		"--match a.q.w.* --sort=size -h": "help",
	} {
		if want == "" {
			run(t, append([]string{"tensors", path}, strings.Fields(flags)...)...).wants(t, 1, "", "no tensor has a name")
		} else if want != "help" {
			assert.Equal(t, want, strings.Join(names(listJSON(t, append(strings.Fields(flags), path)...)), " "), flags)
		}
	}
}

func TestTensorsOfModels(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	ts := tensors{"a": tensor.New(tensor.F32, 4), "b": tensor.New(tensor.F32, 4), "c": tensor.New(tensor.F32, 4)}
	require.NoError(t, safetensors.WriteSharded(string(d), "model", 32, ts, map[string]string{"format": "pt"}))
	for _, path := range []string{string(d), d.path("model.safetensors.index.json")} {
		all := listJSON(t, path)
		if len(all) != 3 || all[2].File != d.path("model-00002-of-00002.safetensors") {
			t.Errorf("%+v", all)
		}
	}
	one := d.file(t, "one/x.safetensors", tensors{"x": tensor.New(tensor.U8)}, nil)
	r := run(t, "tensors", "--no-stats", string(d), one)
	r.wants(t, 0, string(d)+`
NAME  DTYPE  SHAPE  BYTES
a     F32    4       16 B
b     F32    4       16 B
c     F32    4       16 B
3 tensors, 12 parameters, 48 bytes
metadata format = pt

`+one+`
NAME  DTYPE  SHAPE   BYTES
x     U8     scalar    1 B
1 tensor, 1 parameter, 1 byte
`, "")
}

func TestTensorsRefuses(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	good := d.file(t, "good.safetensors", tensors{"w": normal(1, 1000)}, nil)
	whole, err := os.ReadFile(good)
	require.NoError(t, err)
	d.write(t, "short.safetensors", string(whole[:2000]))
	d.write(t, "text.safetensors", "this is a text, and no tensors at all")
	d.write(t, "void.safetensors", "")
	d.file(t, "two/a.safetensors", nil, nil)
	d.file(t, "two/b.safetensors", nil, nil)
	d.write(t, "m.safetensors.index.json", `{"weight_map": {"w": "\u001b[2J.safetensors"}}`)
	two := tensors{"flag": {DType: tensor.Bool, Shape: []int{2}, Data: []byte{1, 2}}, "a": normal(1, 5)}
	d.file(t, "bool.safetensors", two, nil)
	for args, want := range map[string]struct {
		code   int
		stderr string
	}{
		"":                            {2, "FILE… is missing"},
		"none.safetensors":            {1, "none.safetensors: no such file"},
		"good.safetensors none":       {1, "none: no such file"},
		"short.safetensors":           {1, `short.safetensors: tensor "w"`},
		"text.safetensors":            {1, "text.safetensors: the header has"},
		"void.safetensors":            {1, "void.safetensors: "},
		"two":                         {1, "say which"},
		"m.safetensors.index.json":    {1, `\x1b[2J.safetensors`},
		"good.safetensors --sort age": {2, "--sort"},
		"good.safetensors --match":    {2, "--match"},
		"bool.safetensors --json":     {1, `bool.safetensors: tensor "flag": `},
	} {
		var argv []string
		for a := range strings.FieldsSeq(args) {
			if !strings.HasPrefix(a, "--") && a != "age" {
				a = d.path(a)
			}
			argv = append(argv, a)
		}
		r := run(t, append([]string{"tensors"}, argv...)...)
		r.stdout = "" // the rows before the wrong one
		r.wants(t, want.code, "", want.stderr)
		assert.False(t, strings.ContainsRune(r.stderr, '\x1b'), r.stderr)
	}
}

func TestTensorsHostileNames(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	ts := tensors{"\x1b]0;title\a": tensor.New(tensor.U8), "two\nlines\r": tensor.New(tensor.U8), "\u202ereversed": tensor.New(tensor.U8), strings.Repeat("long", 1<<18): tensor.New(tensor.U8)}
	path := d.file(t, "\x1b[31mred.safetensors", ts, map[string]string{"\x1b[5m": "\x1b[2J", "k": strings.Repeat("\u009b", 100)})
	r := run(t, "tensors", path, path)
	if r.code != 0 || r.stderr != "" || strings.ContainsAny(r.stdout, "\x1b\a\r\u009b\u202e") || strings.Count(r.stdout, "\n") != 2*(1+1+4+1+2)+1 {
		t.Errorf("%d, %q, %.2000q", r.code, r.stderr, r.stdout)
	}
	assert.LessOrEqual(t, len(r.stdout), 5<<20)
	for _, l := range listJSON(t, path) {
		assert.NotNil(t, ts[l.Name], "no tensor %q", l.Name)
	}
}
