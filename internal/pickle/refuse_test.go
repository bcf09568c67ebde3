package pickle_test

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// torchSaved returns a storage as torch.save writes it, with the opcodes that load it.
func torchSaved(load, rest string) string {
	b := "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\x00\x00\x00little_endian\x88s." + load + rest
	return global("torch.storage", "_load_from_bytes") + "B" + u32(uint32(len(b))) + b + "\x85R"
}

const floatStorage = "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02NtQ."

// TestRefused checks that each opcode that would import, call or make an object is refused with its
// name and position, which is that of the outer one for a pickle within a pickle.
func TestRefused(t *testing.T) {
	for what, c := range map[string]struct {
		pickle, op, name string
		offset           int
	}{
		"os.system, protocol 0":        {"cos\nsystem\n(S'ls'\ntR.", "GLOBAL", "os.system", 0},
		"posix.system":                 {"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.", "GLOBAL", "posix.system", 2},
		"os.system, protocol 4":        {"\x80\x04" + global("os", "system") + text("ls") + "\x85R.", "STACK_GLOBAL", "os.system", 14},
		"eval":                         {"\x80\x04" + global("builtins", "eval") + text("1") + "\x85R.", "STACK_GLOBAL", "builtins.eval", 18},
		"exec, of Python 2":            {"c__builtin__\nexec\n.", "GLOBAL", "__builtin__.exec", 0},
		"getattr":                      {"cbuiltins\ngetattr\n.", "GLOBAL", "builtins.getattr", 0},
		"subprocess.Popen":             {"N0csubprocess\nPopen\n.", "GLOBAL", "subprocess.Popen", 2},
		"a name with dots":             {global("os", "path.join") + ".", "STACK_GLOBAL", "os.path.join", 15},
		"a module that is known":       {"cnumpy\nload\n.", "GLOBAL", "numpy.load", 0},
		"torch.load":                   {"ctorch\nload\n.", "GLOBAL", "torch.load", 0},
		"copyreg":                      {"ccopyreg\n_reconstructor\n(cmy\nThing\nc__builtin__\nobject\nNtR.", "GLOBAL", "copyreg._reconstructor", 0},
		"copyreg, of Python 2":         {"ccopy_reg\n_reconstructor\n.", "GLOBAL", "copy_reg._reconstructor", 0},
		"a class of a user":            {"\x80\x04" + global("my.module", "Config") + ")\x81.", "STACK_GLOBAL", "my.module.Config", 21},
		"complex":                      {"cbuiltins\ncomplex\nK\x01K\x02\x86R.", "GLOBAL", "builtins.complex", 0},
		"NEWOBJ":                       {"cnumpy\nndarray\n)\x81.", "NEWOBJ", "numpy.ndarray", 16},
		"NEWOBJ of a value":            {"K\x01)\x81.", "NEWOBJ", "", 3},
		"NEWOBJ_EX":                    {"ccollections\nOrderedDict\n)}\x92.", "NEWOBJ_EX", "collections.OrderedDict", 27},
		"EXT1":                         {"\x82\x05.", "EXT1", "", 0},
		"EXT2":                         {"\x83\x05\x00.", "EXT2", "", 0},
		"EXT4":                         {"\x84\x05\x00\x00\x00.", "EXT4", "", 0},
		"BINPERSID":                    {"K\x01Q.", "BINPERSID", "", 2},
		"NEXT_BUFFER":                  {"\x80\x05\x97.", "NEXT_BUFFER", "", 2},
		"READONLY_BUFFER":              {"\x80\x05N\x98.", "READONLY_BUFFER", "", 3},
		"a set":                        {"\x80\x04\x8f.", "EMPTY_SET", "builtins.set", 2},
		"a frozenset":                  {"\x80\x04(\x91.", "FROZENSET", "builtins.frozenset", 3},
		"a set, protocol 2":            {"\x80\x02c__builtin__\nset\n.", "GLOBAL", "__builtin__.set", 2},
		"bytes, protocol 2":            {"\x80\x02c_codecs\nencode\n.", "GLOBAL", "_codecs.encode", 2},
		"a number of numpy":            {global("numpy._core.multiarray", "scalar") + ".", "STACK_GLOBAL", "numpy._core.multiarray.scalar", 32},
		"a parameter":                  {global("torch._utils", "_rebuild_parameter") + ".", "STACK_GLOBAL", "torch._utils._rebuild_parameter", 34},
		"a shape of torch":             {global("torch", "Size") + ".", "STACK_GLOBAL", "torch.Size", 13},
		"big-endian elements":          {global("numpy", "dtype") + text(">f4") + "\x85R.", "REDUCE", "numpy.dtype(>f4)", 21},
		"a big-endian array":           {global("numpy", "dtype") + text("f4") + "\x85R(K\x03" + text(">") + "NNNtb.", "BUILD", "numpy.dtype", 31},
		"BUILD on a dict":              {"}}b.", "BUILD", "", 2},
		"BUILD on a list":              {"]}b.", "BUILD", "", 2},
		"BUILD on a class":             {"ccollections\nOrderedDict\n}b.", "BUILD", "collections.OrderedDict", 26},
		"BUILD on an OrderedDict":      {"ccollections\nOrderedDict\n)R}b.", "BUILD", "", 28},
		"a call of a value":            {"K\x01)R.", "REDUCE", "", 3},
		"a call of a class":            {"ctorch\nFloatStorage\n)R.", "REDUCE", "torch.FloatStorage", 21},
		"a class as a value":           {"ccollections\nOrderedDict\n.", "STOP", "collections.OrderedDict", 25},
		"a class in a list":            {"](ccollections\nOrderedDict\ne.", "STOP", "collections.OrderedDict", 28},
		"a dtype as a value":           {"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R.", "STOP", "", 22},
		"an array of objects":          {"cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R.", "REDUCE", "numpy.dtype(O8)", 23},
		"an array of texts":            {"cnumpy\ndtype\nX\x02\x00\x00\x00U1\x89\x88\x87R.", "REDUCE", "numpy.dtype(U1)", 23},
		"an array of records":          {"cnumpy\ndtype\nX\x02\x00\x00\x00V4\x89\x88\x87R.", "REDUCE", "numpy.dtype(V4)", 23},
		"a matrix":                     {"cnumpy\nmatrix\n.", "GLOBAL", "numpy.matrix", 0},
		"another kind of array":        {"cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\n(K\x00tC\x01b\x87R.", "REDUCE", "numpy.dtype", 57},
		"a quantized tensor":           {"ctorch._utils\n_rebuild_qtensor\n.", "GLOBAL", "torch._utils._rebuild_qtensor", 0},
		"another structure":            {"c_ctypes\n_unpickle\ncctypes\nc_int\n.", "GLOBAL", "ctypes.c_int", 19},
		"a zip of torch.save":          {global("torch.storage", "_load_from_bytes") + "C\x06PK\x03\x04xx\x85R.", "REDUCE", "torch.save", 43},
		"os.system in a storage":       {torchSaved("cos\nsystem\n.", "") + ".", "GLOBAL", "os.system", 97},
		"a persistent id in a storage": {torchSaved("K\x01Q.", "") + ".", "BINPERSID", "", 89},
		"a class that is no storage":   {torchSaved("(X\x07\x00\x00\x00storageccollections\nOrderedDict\nNNK\x01NtQ.", "") + ".", "BINPERSID", "collections.OrderedDict", 131},
		"a storage as a value":         {torchSaved(floatStorage, "].\x02\x00\x00\x00\x00\x00\x00\x0012345678") + ".", "STOP", "", -1},
		"a tensor with metadata": {
			global("torch._utils", "_rebuild_tensor_v2") + "(" + torchSaved(floatStorage, "].\x02\x00\x00\x00\x00\x00\x00\x0012345678") +
				"K\x00K\x02\x85K\x01\x85\x89}}" + text("conj") + "\x88stR.", "REDUCE", "torch.Tensor", -1,
		},
		"a tensor with hooks": {
			global("torch._utils", "_rebuild_tensor_v2") + "(" + torchSaved(floatStorage, "].\x02\x00\x00\x00\x00\x00\x00\x0012345678") +
				"K\x00K\x02\x85K\x01\x85\x89}K\x01K\x02stR.", "REDUCE", "torch.Tensor", -1,
		},
		"a list that holds itself":    {"]q\x00h\x00a.", "STOP", "", 6},
		"a dict that holds itself":    {"}q\x00K\x01h\x00s.", "STOP", "", 8},
		"a tuple in a list in itself": {"]q\x00h\x00\x85a.", "STOP", "", 7},
	} {
		_, err := pickle.Parse([]byte(c.pickle))
		require.ErrorIs(t, err, pickle.ErrRefused, what)
		e, ok := errors.AsType[*pickle.Error](err)
		require.True(t, ok)
		require.Equal(t, c.name, e.Name, "%s: %v", what, err)
		require.Equal(t, c.op, e.Op, "%s: %v", what, err)
		require.Contains(t, err.Error(), fmt.Sprintf("(%s at offset %d)", e.Op, e.Offset))
		if c.name != "" {
			require.Contains(t, err.Error(), c.name)
		}
		if c.offset >= 0 {
			require.Equal(t, c.offset, e.Offset, "%s: %v", what, err)
		}
	}
}

func TestMalformed(t *testing.T) {
	dtype := "cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R"
	state := func(s string) string { return dtype + s + "b." }
	array := func(args string) string { return global("numpy", "ndarray") + args + "R." }
	tensor := func(saved, args string) string {
		return global("torch._utils", "_rebuild_tensor_v2") + "(" + saved + args + "tR."
	}
	two := torchSaved(floatStorage, "].\x02\x00\x00\x00\x00\x00\x00\x0012345678")
	for what, p := range map[string]string{
		"nothing":                        "",
		"only a STOP":                    ".",
		"two values":                     "NN.",
		"an open mark":                   "N(.",
		"an unknown opcode":              "\xff.",
		"zero":                           "\x00.",
		"protocol 6":                     "\x80\x06N.",
		"a frame that is not there":      "\x80\x04\x95" + u64(3) + "N.",
		"a huge frame":                   "\x80\x04\x95" + u64(1<<63) + "N.",
		"a pop of nothing":               "0N.",
		"a mark that is not there":       "1N.",
		"a pop below a mark":             "N(aN.",
		"a tuple below a mark":           "N(\x85.",
		"a tuple of nothing":             "\x87.",
		"a memo that is empty":           "h\x00.",
		"a memo that has gaps":           "Nq\x02h\x01.",
		"a memo number far away":         "Nr\xff\xff\xff\xff.",
		"a memo of a mark":               "(q\x00.",
		"a duplicate of nothing":         "2.",
		"no end of line":                 "I12",
		"a str that is no UTF-8":         "\x8c\x01\xff.",
		"a surrogate":                    "\x8c\x03\xed\xa0\x80.",
		"a key without value":            "}(K\x01u.",
		"an append to a tuple":           ")Na.",
		"appends to a dict":              "}(Ne.",
		"keys in a list":                 "]NNs.",
		"a list as a key":                "}]Ns.",
		"a dict as a key":                "}}Ns.",
		"a bytearray as a key":           "}\x96" + u64(0) + "Ns.",
		"a tuple of a list as a key":     "}]\x85Ns.",
		"NaN as a key":                   "}G\x7f\xf8\x00\x00\x00\x00\x00\x00Ns.",
		"an array as a key":              "}" + strings.TrimSuffix(array(")"+text("<f4")+"C\x041234\x87"), ".") + "Ns.",
		"a name that is no text":         "K\x01K\x02\x93.",
		"a call with a list":             "ccollections\nOrderedDict\n]R.",
		"a bytearray of a number":        "cbuiltins\nbytearray\nK\x05\x85R.",
		"an OrderedDict of a list":       "ccollections\nOrderedDict\n]\x85R.",
		"a structure of one":             "c_ctypes\n_unpickle\n)R.",
		"a structure that is too short":  global("_ctypes", "_unpickle") + global("vllm.distributed.device_communicators.pynccl_wrapper", "ncclUniqueId") + "}C\x01b\x86\x86R.",
		"a dtype of a number":            "cnumpy\ndtype\nK\x05\x85R.",
		"a dtype of two":                 "cnumpy\ndtype\nNN\x86R.",
		"the state of a dtype":           state("K\x05"),
		"a short state of a dtype":       state("(K\x03t"),
		"a dtype with a strange order":   state("(K\x03" + text("!") + "NNNt"),
		"a dtype with no order":          state("(K\x03NNNNt"),
		"the state of a dtype twice":     dtype + "(K\x03" + text("<") + "NNNtb(K\x03" + text("<") + "NNNtb.",
		"an array of nothing":            array(")"),
		"an array of a list":             array(")" + text("<f4") + "]\x87"),
		"an array in a shape of a list":  array("]" + text("<f4") + "C\x041234\x87"),
		"an array of text axes":          array(text("a") + "\x85" + text("<f4") + "C\x041234\x87"),
		"an array with a negative axis":  array("J\xff\xff\xff\xff\x85" + text("<f4") + "C\x00\x87"),
		"an array that is too short":     array("K\x02\x85" + text("<f4") + "C\x041234\x87"),
		"an array that is too long":      array(")" + text("<f4") + "C\x0512345\x87"),
		"an array of a huge shape":       array("\x8a\x08" + u64(1<<62) + "\x8a\x08" + u64(1<<62) + "\x86" + text("<f4") + "C\x00\x87"),
		"an array of no dtype":           array(")NC\x041234\x87"),
		"an array without its state":     "cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(K\x00tC\x01b\x87R}b.",
		"reconstruct of nothing":         "cnumpy.core.multiarray\n_reconstruct\n)R.",
		"frombuffer of nothing":          "cnumpy.core.numeric\n_frombuffer\n)R.",
		"frombuffer in a strange order":  "cnumpy.core.numeric\n_frombuffer\n(C\x041234" + dtype + ")" + text("X") + "tR.",
		"axes that are there twice":      "cnumpy.core.numeric\n_frombuffer\n(C\x041234" + dtype + "K\x01K\x01\x86" + text("K") + "K\x00K\x00\x86tR.",
		"axes that are not there":        "cnumpy.core.numeric\n_frombuffer\n(C\x041234" + dtype + "K\x01\x85" + text("K") + "K\x01\x85tR.",
		"too few axes":                   "cnumpy.core.numeric\n_frombuffer\n(C\x041234" + dtype + "K\x01\x85" + text("K") + ")tR.",
		"too many axes":                  "cnumpy.core.numeric\n_frombuffer\n(C\x041234" + dtype + ")" + text("K") + "K\x00\x85tR.",
		"a storage of a number":          global("torch.storage", "_load_from_bytes") + "K\x01\x85R.",
		"a storage of nothing":           global("torch.storage", "_load_from_bytes") + ")R.",
		"a storage of no format":         global("torch.storage", "_load_from_bytes") + "C\x02N.\x85R.",
		"a storage of another version":   global("torch.storage", "_load_from_bytes") + "C\x15\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02K\x01.\x85R.",
		"a storage that is a number":     torchSaved("K\x01.", "") + ".",
		"a storage of a class of text":   torchSaved("(X\x07\x00\x00\x00storageNNNK\x01NtQ.", "") + ".",
		"a storage of too many elements": torchSaved(strings.Replace(floatStorage, "K\x02", "M\xff\xff", 1), "") + ".",
		"a storage that ends":            torchSaved(floatStorage, "].\x02\x00\x00") + ".",
		"a storage that is short":        torchSaved(floatStorage, "].\x02\x00\x00\x00\x00\x00\x00\x001234567") + ".",
		"a storage that is long":         torchSaved(floatStorage, "].\x02\x00\x00\x00\x00\x00\x00\x00123456789012") + ".",
		"a storage that says otherwise":  torchSaved(floatStorage, "].\x01\x00\x00\x00\x00\x00\x00\x0012345678") + ".",
		"a tensor of nothing":            tensor("", ""),
		"a tensor of no storage":         tensor("N", "K\x00K\x02\x85K\x01\x85\x89}"),
		"a tensor from far away":         tensor(two, "K\xffK\x02\x85K\x01\x85\x89}"),
		"a tensor that is too long":      tensor(two, "K\x00K\x03\x85K\x01\x85\x89}"),
		"a tensor that strides out":      tensor(two, "K\x00K\x02\x85K\x02\x85\x89}"),
		"a tensor with an offset out":    tensor(two, "K\x01K\x02\x85K\x01\x85\x89}"),
		"a tensor with huge strides":     tensor(two, "K\x00K\x02K\x02\x86\x8a\x08"+u64(1<<61)+"\x8a\x08"+u64(1<<62)+"\x86\x89}"),
		"a tensor with other strides":    tensor(two, "K\x00K\x02\x85)\x89}"),
		"a tensor with no strides":       tensor(two, "K\x00K\x02\x85N\x89}"),
		"a tensor with no shape":         tensor(two, "K\x00NK\x02\x85\x89}"),
		"a tensor of a huge shape":       tensor(two, "K\x00\x8a\x08"+u64(1<<62)+"\x8a\x08"+u64(1<<62)+"\x86K\x00K\x00\x86\x89}"),
		"a v3 of nothing":                global("torch._utils", "_rebuild_tensor_v3") + ")R.",
		"a v3 of no dtype":               global("torch._utils", "_rebuild_tensor_v3") + "(" + two + "K\x00K\x02\x85K\x01\x85\x89}NtR.",
	} {
		_, err := pickle.Parse([]byte(p))
		require.ErrorIs(t, err, pickle.ErrMalformed, what)
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
