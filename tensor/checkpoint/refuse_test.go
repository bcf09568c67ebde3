package checkpoint_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/checkpoint"
	"github.com/muster-pg/muster/tensor/safetensors"
)

func text(numbers ...int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ", "), "[]")
}

// shard writes a shard as HuggingFaceStorageWriter does.
func shard(t *testing.T, dir string, number int, ts map[string]*tensor.Tensor, sharding string) {
	t.Helper()
	name := filepath.Join(dir, fmt.Sprintf("shard-%05d-model-00001-of-00001.safetensors", number))
	require.NoError(t, safetensors.WriteFile(name, ts, map[string]string{"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": sharding}))
}

// TestRefusesShards checks the errors of shards that do not make up tensors.
func TestRefusesShards(t *testing.T) {
	ones := func(shape ...int) map[string]*tensor.Tensor {
		return map[string]*tensor.Tensor{"x": tensor.New(tensor.U8, shape...)}
	}
	at := func(ns ...int) string { return `{"x": {"saved_offsets": [` + text(ns...) + `]}}` }
	for name, c := range map[string]struct {
		write func(dir string)
		o     checkpoint.Options
		want  string
	}{
		"a hole": {func(dir string) {
			shard(t, dir, 1, ones(2, 2), at(0, 0))
			shard(t, dir, 2, ones(2, 2), at(2, 2))
		}, checkpoint.Options{}, `tensor "x": nobody has its element [0,2]: 8 elements are missing`},
		"a hole of rows": {func(dir string) {
			shard(t, dir, 1, ones(2, 2), at(0, 0))
			shard(t, dir, 3, ones(2, 2), at(3, 0))
		}, checkpoint.Options{}, `nobody has its element [2,0]: 2 elements are missing`},
		"an overlap": {func(dir string) {
			shard(t, dir, 1, ones(2, 2), at(0, 0))
			shard(t, dir, 2, ones(2, 2), at(1, 0))
		}, checkpoint.Options{}, "1.safetensors has its part [2,2] at [0,0], and DIR/shard-00002-model-00001-of-00001.safetensors its part [2,2] at [1,0], which overlap"},
		"another dtype": {func(dir string) {
			shard(t, dir, 1, ones(2), at(0))
			shard(t, dir, 2, map[string]*tensor.Tensor{"x": tensor.New(tensor.I8, 2)}, at(2))
		}, checkpoint.Options{}, `shard-00002-model-00001-of-00001.safetensors: tensor "x": it has I8[2], which is no part of what DIR/shard-00001`},
		"other axes": {func(dir string) {
			shard(t, dir, 1, ones(2), at(0))
			shard(t, dir, 2, ones(2, 1), at(2, 0))
		}, checkpoint.Options{}, "it has U8[2,1], which is no part of"},
		"no place":            {func(dir string) { shard(t, dir, 1, ones(2), `{}`) }, checkpoint.Options{}, `tensor "x": its DCP_SHARDING_INFO lacks it`},
		"a place of two axes": {func(dir string) { shard(t, dir, 1, ones(2), at(0, 0)) }, checkpoint.Options{}, "a part of 1 axes begins at 2 numbers"},
		"a place below 0":     {func(dir string) { shard(t, dir, 1, ones(2), at(-1)) }, checkpoint.Options{}, "a part [2] at [-1]"},
		"a place far away":    {func(dir string) { shard(t, dir, 1, ones(2), at(1<<63-2)) }, checkpoint.Options{}, "a part [2] at [9223372036854775806]"},
		"a large hole":        {func(dir string) { shard(t, dir, 1, ones(2, 2), at(1<<40, 1<<40)) }, checkpoint.Options{}, `tensor "x"`},
		"no JSON":             {func(dir string) { shard(t, dir, 1, ones(2), `{"x": [`) }, checkpoint.Options{}, "its DCP_SHARDING_INFO: unexpected end"},
		"a shard that says nothing": {func(dir string) {
			shard(t, dir, 1, ones(2), at(0))
			require.NoError(t, safetensors.WriteFile(dir+"/other.safetensors", ones(2), nil))
		}, checkpoint.Options{}, "says how it fits (DCP_SHARDING_INFO), and other.safetensors does not"},
		"two saves": {func(dir string) {
			shard(t, dir, 1, ones(2), at(0))
			require.NoError(t, os.Rename(dir+"/shard-00001-model-00001-of-00001.safetensors", dir+"/shard-00001-model-00001-of-00002.safetensors"))
			shard(t, dir, 2, ones(2), at(2))
		}, checkpoint.Options{}, "they are of two saves"},
		"no shard of a file": {func(dir string) {
			shard(t, dir, 1, ones(2), at(0))
			require.NoError(t, os.Rename(dir+"/shard-00001-model-00001-of-00001.safetensors", dir+"/shard-00001-model-00001-of-00002.safetensors"))
		}, checkpoint.Options{}, "no shard is of file 2 of the model's 2"},
		"the last shard is missing": {func(dir string) { shard(t, dir, 1, ones(2), at(0)) }, checkpoint.Options{Shards: 2}, "there is no shard 2 of 2"},
		"too many shards": {func(dir string) {
			shard(t, dir, 1, ones(2), at(0))
			shard(t, dir, 2, ones(2), at(2))
		}, checkpoint.Options{Shards: 1}, "there are shards of 2 ranks, not of 1"},
		"an axis": {func(dir string) { shard(t, dir, 1, ones(2), at(0)) }, checkpoint.Options{Axis: func(string) (int, bool) { return 0, true }}, "axes are for models"},
		"no such tensor": {func(dir string) {
			shard(t, dir, 1, ones(2), `{"x": {"saved_offsets": [0]}, "y": {"saved_offsets": [0]}}`)
		}, checkpoint.Options{}, `tensor "y": its DCP_SHARDING_INFO has it, and the file has not`},
		"another version": {func(dir string) {
			require.NoError(t, safetensors.WriteFile(dir+"/x.safetensors", ones(2), map[string]string{"DCP_VERSION": "2.0", "DCP_SHARDING_INFO": at(0)}))
		}, checkpoint.Options{}, `its DCP_VERSION is "2.0", and 1.0 is known`},
		"packed columns": {func(dir string) {
			shard(t, dir, 1, map[string]*tensor.Tensor{"x": tensor.New(tensor.F6E2M3, 4, 3)}, at(0, 1))
		}, checkpoint.Options{}, `tensor "x"`},
	} {
		dir := t.TempDir()
		c.write(dir)
		_, err := checkpoint.Open(&c.o, dir)
		require.ErrorContains(t, err, strings.ReplaceAll(c.want, "DIR", dir), name)
	}
}

// copyOf copies the directory of a checkpoint.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// damage changes a file so that it is not what was written, and names what an error must name.
var damages = map[string]func(r *rand.Rand, dir, file string, b []byte) (names string, err error){
	"cut off": func(r *rand.Rand, _, file string, b []byte) (string, error) {
		return filepath.Base(file), os.WriteFile(file, b[:r.IntN(len(b))], 0o600)
	},
	"missing": func(_ *rand.Rand, _, file string, _ []byte) (string, error) { return "", os.Remove(file) },
	"empty": func(_ *rand.Rand, _, file string, _ []byte) (string, error) {
		return filepath.Base(file), os.WriteFile(file, nil, 0o600)
	},
	"zeros": func(_ *rand.Rand, _, file string, b []byte) (string, error) {
		return filepath.Base(file), os.WriteFile(file, make([]byte, len(b)), 0o600)
	},
	"a directory": func(_ *rand.Rand, _, file string, _ []byte) (string, error) {
		return filepath.Base(file), errors.Join(os.Remove(file), os.Mkdir(file, 0o700))
	},
	"twice as long": func(_ *rand.Rand, _, file string, b []byte) (string, error) {
		if strings.HasSuffix(file, ".distcp") {
			return "", os.Remove(file) // more bytes than are read
		}
		return filepath.Base(file), os.WriteFile(file, append(b, b...), 0o600)
	},
}

// TestDamage damages checkpoints at random, and checks that none is taken for a whole one: an error has
// the file, or a tensor of which a part is missing.
func TestDamage(t *testing.T) {
	for n := range testcluster.Form(200, 5000) {
		r := rand.New(rand.NewPCG(uint64(n), 0))
		dirs := saved(t)
		from := dirs[r.IntN(len(dirs))]
		dir := filepath.Join(t.TempDir(), filepath.Base(from))
		require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
		var files []string
		require.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
			if !d.IsDir() {
				files = append(files, filepath.Join(dir, path))
			}
			return err
		}))
		file := files[r.IntN(len(files))]
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		for what, damage := range damages {
			if r.IntN(3) > 0 {
				continue
			}
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
			names, err := damage(r, dir, file, b)
			require.NoError(t, err)
			_, err = checkpoint.Open(&checkpoint.Options{Shards: shards(dir)}, dir)
			require.Error(t, err, "%s %s", file, what)
			require.Contains(t, err.Error(), names, "%s %s", file, what)
		}
	}
}

// shards returns how many shards there must be.
func shards(dir string) int {
	if filepath.Base(dir) == "hf" {
		return 4
	}
	return 0
}

// TestFlippedBytes flips bytes of what describes the tensors. The checkpoint may be refused, or be another
// valid one; reading it does not fail in other ways.
func TestFlippedBytes(t *testing.T) {
	for n := range testcluster.Form(300, 20000) {
		r := rand.New(rand.NewPCG(uint64(n), 1))
		dirs := saved(t)
		from := dirs[r.IntN(len(dirs))]
		dir := copyOf(t, from)
		file, size := filepath.Join(dir, ".metadata"), 1<<20
		if filepath.Base(from) == "hf" || r.IntN(4) == 0 {
			files, err := filepath.Glob(dir + "/*s*")
			require.NoError(t, err)
			file = files[r.IntN(len(files))]
		}
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		for range 1 + r.IntN(3) {
			b[r.IntN(min(len(b), size))] ^= 1 << r.IntN(8)
		}
		require.NoError(t, os.WriteFile(file, b, 0o600))
		s, err := checkpoint.Open(nil, dir)
		if err != nil {
			require.NotContains(t, err.Error(), "runtime error")
			continue
		}
		for _, name := range s.Names() {
			_, _ = s.ReadTensor(t.Context(), name)
		}
		require.NoError(t, s.Close())
	}
}

// TestRefusesClasses checks that a pickle with any other class, or that calls anything, is refused by name.
func TestRefusesClasses(t *testing.T) {
	for name, metadata := range map[string]string{
		"posix.system":                    "\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R.",
		"builtins.eval":                   "\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
		"torch.load":                      "\x80\x04\x8c\x05torch\x8c\x04load\x93.",
		"torch._utils._rebuild_tensor_v2": "\x80\x04\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93)R.",
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(dir+"/.metadata", []byte(metadata), 0o600))
		_, err := checkpoint.Open(nil, dir)
		require.ErrorContains(t, err, dir+"/.metadata: pickle: ", name)
		var refused *pickle.Error
		if errors.As(err, &refused) && errors.Is(err, pickle.ErrRefused) {
			require.Equal(t, name, refused.Name)
		}
	}
}

// TestRefusesManyObjects checks that a short pickle does not make objects of any size in memory.
func TestRefusesManyObjects(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/.metadata", []byte("\x80\x04("+strings.Repeat("NQ", 300_000)+"l."), 0o600))
	_, err := checkpoint.Open(nil, dir)
	require.ErrorIs(t, err, pickle.ErrTooLarge)
	_, err = checkpoint.Open(nil)
	require.EqualError(t, err, "checkpoint: no path of a checkpoint")
}

// TestRefusesPlaces checks .metadata whose parts are not where it says, or not in the directory.
func TestRefusesPlaces(t *testing.T) {
	const from = "testdata/torch-2.15/dcp"
	replace := func(old, with string) string {
		dir := copyOf(t, from)
		b, err := os.ReadFile(dir + "/.metadata")
		require.NoError(t, err)
		require.Contains(t, string(b), old)
		again := strings.ReplaceAll(string(b), old, with)
		if strings.HasPrefix(again[2:], "\x95") { // the length of the frame
			again = again[:3] + string(binary.LittleEndian.AppendUint64(nil, uint64(len(again)-11))) + again[11:]
		}
		require.NoError(t, os.WriteFile(dir+"/.metadata", []byte(again), 0o600))
		return dir
	}
	for want, dir := range map[string]string{
		`it has a part in "../_0.distcp", which is not in the directory`: replace("__1_0.distcp", "../_0.distcp"),
		`__9_0.distcp: no such file`:                                     replace("__1_0.distcp", "__9_0.distcp"),
		`"torch.strided": it would be imported`:                          replace("\x8c\x07float32", "\x8c\x07strided"),
		`"torch.distributed.checkpoint.metadata.ChunkStorageMetadatX"`:   replace("ChunkStorageMetadata", "ChunkStorageMetadatX"),
	} {
		_, err := checkpoint.Open(nil, dir)
		require.ErrorContains(t, err, want)
	}
}

// TestRefusesStorages checks tensors that are not in their storage, or not what it has.
func TestRefusesStorages(t *testing.T) {
	const most = 1<<63 - 1
	ns := func(ns ...int64) []int64 { return ns }
	require.NoError(t, checkpoint.InStorage(24, 6, 0, ns(2, 3), ns(3, 1), nil))
	require.NoError(t, checkpoint.InStorage(24, 6, 2, ns(2, 2), ns(1, 2), nil))
	require.NoError(t, checkpoint.InStorage(24, 6, 6, ns(0, most), ns(1, most), nil))
	for name, c := range map[string]struct {
		size             int
		elements, offset int64
		shape, strides   []int64
		flags            pickle.Dict
		want             string
	}{
		"beyond the end":         {24, 6, 1, ns(2, 3), ns(3, 1), nil, "from element 1 is not within its storage of 24 bytes"},
		"far beyond the end":     {24, 6, most, ns(1), ns(1), nil, "is not within its storage"},
		"large strides":          {24, 6, 0, ns(2), ns(1 << 61), nil, "is not within its storage"},
		"larger strides":         {24, 6, 0, ns(3, 3), ns(most, most), nil, "is not within its storage"},
		"a repeated element":     {24, 6, 0, ns(1 << 40), ns(0), nil, "has elements that share their bytes"},
		"shared elements":        {24, 6, 0, ns(2, 4), ns(1, 1), nil, "has elements that share their bytes"},
		"more than there can be": {24, 6, 0, ns(1<<40, 1<<40), ns(0, 0), nil, "has more elements than can be counted"},
		"another size":           {24, 7, 0, ns(2), ns(1), nil, "its storage has 24 bytes of 7 elements of 4 bytes"},
		"any size":               {24, most, 0, ns(2), ns(1), nil, "its storage has 24 bytes"},
		"a negative size":        {24, -6, 0, ns(2), ns(1), nil, "its storage has no size"},
		"other strides":          {24, 6, 0, ns(2, 3), ns(1), nil, "its strides are not those of its shape"},
		"a negative view":        {24, 6, 0, ns(2, 3), ns(3, 1), pickle.Dict{{Key: "neg", Value: true}}, "it is a view whose elements are not those of its storage (neg)"},
	} {
		require.ErrorContains(t, checkpoint.InStorage(c.size, c.elements, c.offset, c.shape, c.strides, c.flags), c.want, name)
	}
}
