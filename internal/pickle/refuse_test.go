package pickle_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
)

// global is STACK_GLOBAL with its names.
func global(module, name string) string { return text(module) + text(name) + "\x93" }

// text is a short str.
func text(s string) string { return "\x8c" + string(byte(len(s))) + s }

// u32 and u64 are little-endian.
func u32(n uint32) string { return string(binary.LittleEndian.AppendUint32(nil, n)) }
func u64(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) }

// torchSaved returns a storage of two floats as torch.save writes it, behind the opcodes load.
func torchSaved(load string) string {
	const floatStorage = "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02NtQ."
	b := "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\x00\x00\x00little_endian\x88s." + load + floatStorage + "].\x02\x00\x00\x00\x00\x00\x00\x0012345678"
	return global("torch.storage", "_load_from_bytes") + "B" + u32(uint32(len(b))) + b + "\x85R"
}

// cases returns the lines of a file of pickles by their columns, of which the second is the pickle.
func cases(t *testing.T, file string) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		c := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		c[1], err = strconv.Unquote(c[1])
		require.NoError(t, err, line)
		all = append(all, c)
	}
	return all
}

// TestRefused checks that each opcode that would import, call or make an object is refused with its
// name and position, which is that of the outer one for a pickle within a pickle.
func TestRefused(t *testing.T) {
	for _, c := range cases(t, "testdata/refused.txt") {
		what, op, name, offset := c[0], c[2], c[3], c[4]
		_, err := pickle.Parse([]byte(c[1]))
		require.ErrorIs(t, err, pickle.ErrRefused, what)
		e, ok := errors.AsType[*pickle.Error](err)
		require.True(t, ok)
		require.Equal(t, name, e.Name, "%s: %v", what, err)
		require.Equal(t, op, e.Op, "%s: %v", what, err)
		require.Contains(t, err.Error(), fmt.Sprintf("(%s at offset %d)", e.Op, e.Offset))
		require.Contains(t, err.Error(), name)
		if offset != "-1" {
			require.Equal(t, offset, strconv.Itoa(e.Offset), "%s: %v", what, err)
		}
	}
}

func TestMalformed(t *testing.T) {
	for _, c := range cases(t, "testdata/malformed.txt") {
		_, err := pickle.Parse([]byte(c[1]))
		require.ErrorIs(t, err, pickle.ErrMalformed, c[0])
		_, ok := errors.AsType[*pickle.Error](err)
		require.True(t, ok)
	}
}

// TestOldOpcodes checks old opcodes that today's picklers read but do not write.
func TestOldOpcodes(t *testing.T) {
	for p, want := range map[string]any{
		"NK\x010.":                  nil,
		"N(K\x011.":                 nil,
		"N(0.":                      nil,
		"K\x012\x86.":               pickle.Tuple(ints(1, 1)),
		"\x8b\x01\x00\x00\x00\xff.": int64(-1),
		"\x8a\x00.":                 int64(0),
		"\x8d" + u64(1) + "a.":      "a",
		"\x8e" + u64(1) + "a.":      []byte("a"),
		"K\x01r\x00\x00\x00\x00j" + u32(0) + "\x86.":                     pickle.Tuple(ints(1, 1)),
		"}K\x01K\x02s\x88K\x03sG\x3f\xf0\x00\x00\x00\x00\x00\x00K\x04s.": pickle.Dict{{int64(1), int64(4)}}, // 1 == True == 1.0
		"ccollections\nOrderedDict\n)R.":                                 pickle.Dict{},
	} {
		got, err := pickle.Parse([]byte(p))
		require.NoError(t, err, "%q", p)
		require.Equal(t, want, got, "%q", p)
	}
}

// TestShared checks that a list which occurs in two places is one slice, as it is one list in
// Python.
func TestShared(t *testing.T) {
	got, err := pickle.Parse([]byte("]q\x00(]q\x01K\x01ah\x01e."))
	require.NoError(t, err)
	both := got.([]any)
	require.Equal(t, []any{ints(1), ints(1)}, both)
	both[0].([]any)[0] = "changed"
	require.Equal(t, []any{"changed"}, both[1])
}

// TestEachOpcode checks that any opcode at any position gives a value or an error with a position.
func TestEachOpcode(t *testing.T) {
	arguments := []string{"", "(", "N", "NN", "NNN", "(N", "]", "](", "}", "}(", "\x8f(", ")", "ccollections\nOrderedDict\n", "ccollections\nOrderedDict\n)", "cnumpy\ndtype\n)"}
	for code := range 256 {
		for _, before := range arguments {
			for _, after := range []string{"", "\xff", "1", "1\n", "1\n.", "\x00\x00.", "\x01."} {
				p := before + string([]byte{byte(code)}) + after
				_, err := pickle.Parse([]byte(p))
				if err == nil {
					continue
				}
				e, ok := errors.AsType[*pickle.Error](err)
				require.True(t, ok, "%q: %v", p, err)
				require.LessOrEqual(t, e.Offset, len(p))
				require.NotEmpty(t, e.Op)
			}
		}
	}
}
