package safetensors_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// unwritable are tensors that no file can have.
var unwritable = map[string]struct {
	ts       map[string]*tensor.Tensor
	metadata map[string]string
	tensor   string
	reason   string
}{
	"nil":            {ts: map[string]*tensor.Tensor{"a": nil}, tensor: "a", reason: "nil"},
	"no dtype":       {ts: map[string]*tensor.Tensor{"a": {}}, tensor: "a", reason: "not a dtype"},
	"too few bytes":  {ts: map[string]*tensor.Tensor{"a": {DType: tensor.F32, Shape: []int{1}}}, tensor: "a", reason: "has 4 bytes, not 0"},
	"negative axis":  {ts: map[string]*tensor.Tensor{"a": {DType: tensor.F32, Shape: []int{-1}}}, tensor: "a", reason: "negative"},
	"overflow, 0":    {ts: map[string]*tensor.Tensor{"a": {DType: tensor.F32, Shape: []int{1 << 40, 1 << 40, 0}}}, tensor: "a", reason: "more bits than can be counted"},
	"reserved name":  {ts: map[string]*tensor.Tensor{"__metadata__": tensor.New(tensor.U8, 1)}, tensor: "__metadata__", reason: "the name is reserved"},
	"name no UTF-8":  {ts: map[string]*tensor.Tensor{"\xff": tensor.New(tensor.U8, 1)}, tensor: "\xff", reason: "the name is not UTF-8"},
	"key no UTF-8":   {metadata: map[string]string{"\xff": ""}, reason: `metadata "\xff": key or value is not UTF-8`},
	"value no UTF-8": {metadata: map[string]string{"k": "\xff"}, reason: `metadata "k": key or value is not UTF-8`},
	"huge header":    {metadata: map[string]string{"k": strings.Repeat("x", 100_000_000)}, reason: "the header would have"},
}

// TestUnwritable wants an error that names the tensor, and nothing written.
func TestUnwritable(t *testing.T) {
	for name, tc := range unwritable {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			dir := t.TempDir()
			for _, err := range []error{
				safetensors.Write(&b, tc.ts, tc.metadata),
				safetensors.WriteFile(filepath.Join(dir, "m"), tc.ts, tc.metadata),
			} {
				var bad *safetensors.WriteError
				require.ErrorAs(t, err, &bad)
				assert.Equal(t, tc.tensor, bad.Tensor)
				assert.ErrorContains(t, err, tc.reason)
			}
			assert.Zero(t, b.Len())
			assert.Empty(t, must(os.ReadDir(dir)))
		})
	}
}

// limited writes n bytes, and then fails: with an error, or by writing less without one.
type limited struct {
	n   int
	err error
}

func (l *limited) Write(p []byte) (int, error) {
	if n := l.n; n < len(p) {
		l.n = 0
		return n, l.err
	}
	l.n -= len(p)
	return len(p), nil
}

// TestWriteFails has the disk fill up after each byte.
func TestWriteFails(t *testing.T) {
	c := golden["shapes"]
	full := errors.New("full")
	for n := range len(written(t, c)) {
		for err, want := range map[error]error{full: full, nil: io.ErrShortWrite} {
			require.ErrorIs(t, safetensors.Write(&limited{n, err}, c.tensors, c.metadata), want)
		}
	}
}

// addresses remembers where what is written lies.
type addresses []*byte

func (a *addresses) Write(p []byte) (int, error) {
	*a = append(*a, unsafe.SliceData(p))
	return len(p), nil
}

// TestWriteDoesNotCopy wants large tensors to be written from where they are.
func TestWriteDoesNotCopy(t *testing.T) {
	w := tensor.New(tensor.F32, 1<<20)
	var a addresses
	require.NoError(t, safetensors.Write(&a, map[string]*tensor.Tensor{"w": w}, nil))
	last := unsafe.Pointer(a[len(a)-1])
	begin := unsafe.Pointer(unsafe.SliceData(w.Data))
	require.GreaterOrEqual(t, uintptr(last), uintptr(begin))
	require.Less(t, uintptr(last), uintptr(begin)+uintptr(len(w.Data)))
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "m.safetensors")
	for _, want := range []contents{golden["dtypes"], golden["names"]} { // the second replaces the first
		require.NoError(t, safetensors.WriteFile(name, want.tensors, want.metadata))
		file := must(os.ReadFile(name))
		require.Equal(t, written(t, want), file)
		require.Len(t, must(os.ReadDir(dir)), 1)
	}
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o666))
	a := must(os.Stat(name))
	b := must(os.Stat(plain))
	require.Equal(t, b.Mode(), a.Mode(), "others may read it as they may any new file")
}

// TestWriteFileFails wants nothing left of a file that cannot be renamed.
func TestWriteFileFails(t *testing.T) {
	dir := t.TempDir()
	err := safetensors.WriteFile(filepath.Join(dir, "no", "m"), nil, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	taken := filepath.Join(dir, "taken") // a rename onto it fails, when all is written
	require.NoError(t, os.MkdirAll(filepath.Join(taken, "x"), 0o700))
	err = safetensors.WriteFile(taken, nil, nil)
	require.ErrorContains(t, err, "safetensors: write "+taken)
	require.Len(t, must(os.ReadDir(dir)), 1)
}

// infos are the dtypes and shapes of c.
func infos(c contents) map[string]safetensors.Info {
	m := map[string]safetensors.Info{}
	for name, w := range c.tensors {
		m[name] = safetensors.Info{DType: w.DType, Shape: w.Shape}
	}
	return m
}

func inPieces(t *testing.T, w io.Writer, p []byte, n int) {
	for len(p) > 0 {
		k := min(n, len(p))
		done := must(w.Write(p[:k]))
		require.Equal(t, k, done)
		p = p[k:]
	}
}

// TestWriterMisused checks that each mistake is reported at once, with the tensor's name, and for good. The order is b, a, z.
func TestWriterMisused(t *testing.T) {
	all := map[string]safetensors.Info{
		"a": {DType: tensor.U8, Shape: []int{4}}, "b": {DType: tensor.F32, Shape: []int{1}}, "z": {DType: tensor.U8, Shape: []int{0}},
	}
	write := func(w *safetensors.Writer, n int) error {
		_, err := w.Write(make([]byte, n))
		return err
	}
	for name, tc := range map[string]struct {
		misuse func(w *safetensors.Writer) error
		want   string
	}{
		"nothing":  {misuse: (*safetensors.Writer).Close, want: ` tensor "b": 4 of its 4 bytes are missing`},
		"some":     {misuse: func(w *safetensors.Writer) error { return errors.Join(write(w, 5), w.Close()) }, want: ` tensor "a": 3 of its 4 bytes are missing`},
		"too many": {misuse: func(w *safetensors.Writer) error { return write(w, 9) }, want: `: 1 bytes more than the tensors have`},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			w := must(safetensors.NewWriter(&b, all, nil))
			require.Equal(t, []string{"b", "a", "z"}, w.Names())
			err := tc.misuse(w)
			require.EqualError(t, err, "safetensors: write"+tc.want)
			n := b.Len()
			require.EqualError(t, w.Close(), err.Error(), "it stays")
			require.EqualError(t, write(w, 1), err.Error())
			require.Equal(t, n, b.Len(), "and nothing more is written")
		})
	}
}

// TestWriterFails checks that a failed write is reported with the tensor's name.
func TestWriterFails(t *testing.T) {
	full := errors.New("full")
	c := contents{tensors: map[string]*tensor.Tensor{"a": filled(tensor.U8, 4), "b": filled(tensor.F32, 1)}}
	_, err := safetensors.NewWriter(&limited{n: 7, err: full}, infos(c), nil)
	require.ErrorIs(t, err, full)
	w := must(safetensors.NewWriter(&limited{n: len(written(t, c)) - 1, err: full}, infos(c), nil))
	n, err := w.Write(make([]byte, 8))
	require.Equal(t, 7, n)
	require.EqualError(t, err, `safetensors: write tensor "a": full`)
	require.ErrorIs(t, w.Close(), full)

	_, err = safetensors.NewWriter(io.Discard, map[string]safetensors.Info{"a": {}}, nil)
	require.ErrorContains(t, err, `tensor "a": invalid is not a dtype`)
	_, err = safetensors.NewWriter(io.Discard, map[string]safetensors.Info{"a": {DType: tensor.U8, Shape: []int{-1, 0}}}, nil)
	require.ErrorContains(t, err, `tensor "a": U8[-1,0] has a negative axis`)
	huge := safetensors.Info{DType: tensor.U8, Shape: []int{1 << 60}}
	_, err = safetensors.NewWriter(io.Discard, map[string]safetensors.Info{"a": huge, "b": huge, "c": huge, "d": huge, "e": huge, "f": huge, "g": huge, "h": huge}, nil)
	require.ErrorContains(t, err, `tensor "h": the file would be larger than files can be`)
}
