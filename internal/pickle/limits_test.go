package pickle_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/tensor"
)

// TestTooLarge parses pickles that ask for more memory than they contain data for: each is refused,
// without much memory.
func TestTooLarge(t *testing.T) {
	var laughs strings.Builder
	laughs.WriteString("]q\x00(" + strings.Repeat("K\x01", 10) + "e0")
	for i := range 30 {
		laughs.WriteString("]q" + string(byte(i+1)) + "(" + strings.Repeat("h"+string(byte(i)), 10) + "e0")
	}
	var keys strings.Builder
	keys.WriteString("K\x00\x85q\x000")
	for i := range 60 {
		keys.WriteString("h" + string(byte(i)) + "h" + string(byte(i)) + "\x86q" + string(byte(i+1)) + "0")
	}
	saved := torchSaved(strings.Repeat("\x80\x02", 1<<19))
	load := strings.Index(saved, "B")
	often := saved[:load] + "q\x000" + strings.TrimSuffix(saved[load:], "\x85R") + "q\x010" + strings.Repeat("h\x00h\x01\x85R0", 200)
	expanded := global("torch._utils", "_rebuild_tensor_v2") + "(" + torchSaved("") +
		"K\x00J\x00\x00\x00\x7f\x85K\x00\x85\x89}tR."
	for what, p := range map[string]string{
		"lists in lists":          strings.Repeat("]", 2000) + strings.Repeat("a", 1999) + ".",
		"tuples in tuples":        ")" + strings.Repeat("\x85", 100_000) + ".",
		"dicts in dicts":          strings.Repeat("}K\x01", 1001) + "N" + strings.Repeat("s", 1001) + ".",
		"a deep key":              "}" + ")" + strings.Repeat("\x85", 100_000) + "Ns.",
		"deep, in two parts":      ")" + strings.Repeat("\x85", 600) + "q\x000}h\x00Ns0h\x00" + strings.Repeat("\x85", 600) + ".",
		"ten times ten times ten": laughs.String() + "h\x1e.",
		"a key of pairs of pairs": keys.String() + "}h\x3cNs.",
		"a billion floats of one": expanded,
		"many empty dicts":        strings.Repeat("}", 1<<21) + ".",
		"many empty lists":        strings.Repeat("]", 1<<21) + ".",
		"many copies":             "\x8e" + u64(100_000) + strings.Repeat("x", 100_000) + "q\x000cbuiltins\nbytearray\nq\x010](" + strings.Repeat("h\x01h\x00\x85R", 2000) + "e.",
		"a storage, often":        often + "N.",
		"a long key, often":       "\x8d" + u64(1<<20) + strings.Repeat("k", 1<<20) + "q\x000" + strings.Repeat("}h\x00Ns0", 100) + "N.",
		"an array of many axes":   global("numpy", "ndarray") + "(" + strings.Repeat("K\x01", 65) + "t" + text("<f4") + "C\x041234\x87R.",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := pickle.Parse([]byte(p))
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, pickle.ErrTooLarge, what)
		made := after.TotalAlloc - before.TotalAlloc
		require.Less(t, made, uint64(3*(64<<20+32*len(p))), "%s made %d MiB", what, made>>20)
	}
}

// TestHugeLengths checks that a length is accepted only if its bytes are there.
func TestHugeLengths(t *testing.T) {
	for _, p := range []string{
		"X\xff\xff\xff\xff", "\x8d" + u64(1<<63), "\x8d" + u64(1<<40), "B\xff\xff\xff\xff", "\x8e" + u64(1<<64-1), "\x96" + u64(1<<40),
		"\x8b\xff\xff\xff\x7f", "\x8b\xff\xff\xff\xff", "\x8c\xff", "C\xff", "\x8a\xff",
	} {
		allocated := testing.AllocsPerRun(1, func() {
			_, err := pickle.Parse([]byte(p + "a."))
			require.ErrorIs(t, err, pickle.ErrMalformed, "%q", p)
			require.ErrorContains(t, err, "bytes early")
		})
		require.Less(t, allocated, 200.0)
	}
}

// TestManyAxesOfOne checks that a pickle of a few bytes takes little work: the cost of axes of one
// element is not multiplied by the number of axes.
func TestManyAxesOfOne(t *testing.T) {
	p := global("torch._utils", "_rebuild_tensor_v2") + "(" + torchSaved("") +
		"K\x00(M\xe8\x03" + strings.Repeat("K\x01", 63) + "t(K\x00" + strings.Repeat("K\x03", 63) + "t\x89}tR."
	allocated := testing.AllocsPerRun(1, func() {
		v, err := pickle.Parse([]byte(p))
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("1234", 1000), string(v.(*tensor.Tensor).Data))
	})
	require.Less(t, allocated, 1000.0)
}

// TestShortErrors checks that errors about a pickle are short, and that large numbers are not
// converted to decimal for them.
func TestShortErrors(t *testing.T) {
	huge := "\x8b" + u32(1<<20) + strings.Repeat("\x7f", 1<<20)
	for _, p := range []string{
		global("numpy", "ndarray") + "(" + huge + "t" + text("<f4") + "C\x041234\x87R.",
		global("torch._utils", "_rebuild_tensor_v2") + "(" + torchSaved("") +
			huge + "))\x89}tR.",
		"c" + strings.Repeat("x", 1<<20) + "\ny\n.",
	} {
		_, err := pickle.Parse([]byte(p))
		require.Error(t, err)
		require.Less(t, len(err.Error()), 400)
	}
}

// TestLarge checks that values that are really large can be read.
func TestLarge(t *testing.T) {
	long := []byte(strings.Repeat("x", 3<<20))
	list := make([]any, 1<<18)
	for i := range list {
		list[i] = int64(i)
	}
	for _, v := range []any{long, string(long), list, pickle.Array{Tensor: bytesTensor(long)}, bytesTensor(long)} {
		b, err := pickle.Append(nil, v)
		require.NoError(t, err)
		got, err := pickle.Parse(b)
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
}

// TestDeep checks values as deep as Python's pickler can make them, both ways.
func TestDeep(t *testing.T) {
	var v any = []any{}
	for range 999 {
		v = []any{v}
	}
	b, err := pickle.Append(nil, v)
	require.NoError(t, err)
	got, err := pickle.Parse(b)
	require.NoError(t, err)
	require.Equal(t, v, got)
	_, err = pickle.Append(nil, []any{v})
	require.ErrorIs(t, err, pickle.ErrTooLarge)
}
