package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

const (
	tensorParallel = 2
	pipelineStages = 2
)

// coded returns a tensor whose bytes are all different.
func coded(t *testing.T, dt tensor.DType, shape ...int) *tensor.Tensor {
	t.Helper()
	x := tensor.New(dt, shape...)
	for i := range x.Data {
		x.Data[i] = byte(16*i + 1)
	}
	return x
}

// smallModel returns a complete model of two layers.
func smallModel(t *testing.T) tensors {
	t.Helper()
	ts := tensors{"embed_tokens.weight": normal(1, 50, 32), "norm.weight": normal(2, 32)}
	for layer := range 2 * pipelineStages {
		name := fmt.Sprintf("layers.%d.", layer)
		ts[name+"self_attn.q_proj.weight"] = normal(uint64(10+layer), 64, 32)
		ts[name+"self_attn.o_proj.weight"] = normal(uint64(20+layer), 32, 64)
		ts[name+"input_layernorm.weight"] = normal(uint64(30+layer), 32)
		ts[name+"experts"] = coded(t, tensor.F8E4M3, 3, 2, 2)
		ts[name+"packed"] = coded(t, tensor.F4, 2, 4)
	}
	ts["scalar"] = &tensor.Tensor{DType: tensor.I64, Data: []byte("12345678")}
	return ts
}

// axes are the axes along which the ranks of a tensor-parallel group share tensors.
var axes = map[string]int{"q_proj.weight": 0, "o_proj.weight": 1, "experts": 1, "packed": 1, "embed_tokens.weight": 0}

var axisFlags = []string{"--axis", "*.q_proj.weight=0", "--axis", "*.o_proj.weight=1", "--axis", "*experts=1", "--axis", "*packed=1", "--axis", "embed_tokens.weight=0"}

// shardOf returns the part of a model that one of the training processes holds.
func shardOf(t *testing.T, ts tensors, stage, part int) tensors {
	t.Helper()
	shard := tensors{}
	for name, x := range ts {
		var layer int
		if _, err := fmt.Sscanf(name, "layers.%d.", &layer); err == nil && layer/2 != stage {
			continue
		}
		for suffix, axis := range axes {
			if strings.HasSuffix(name, suffix) {
				n := x.Shape[axis] / tensorParallel
				var err error
				if x, err = x.Slice(axis, part*n, (part+1)*n); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		if strings.HasPrefix(name, "embed") && stage > 0 {
			continue
		}
		shard[name] = x
	}
	return shard
}

// modelShards writes the shards of a small model, and returns their paths in the order of the
// ranks.
func (d desk) modelShards(t *testing.T, ts tensors) (paths []string) {
	t.Helper()
	for stage := range pipelineStages {
		for part := range tensorParallel {
			name := fmt.Sprintf("pp%d-tp%d.safetensors", stage, part)
			paths = append(paths, d.file(t, name, shardOf(t, ts, stage, part), map[string]string{"format": "pt", "rank": name}))
		}
	}
	return paths
}

func fileOf(t *testing.T, ts tensors, metadata map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, ts, metadata))
	return b.Bytes()
}

func (d desk) same(t *testing.T, name string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(d.path(name))
	require.NoError(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, and not the %d that it should have", name, len(got), len(want))
	}
}

// has checks which files are in the desk.
func (d desk) has(t *testing.T, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(string(d))
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("there are %v, not %v", got, want)
	}
}

var gathered = regexp.MustCompile(`^\S+: \d+ tensors, \d+ bytes in \S+ \S+, \S+ GB/s\n$`)

func TestGather(t *testing.T) {
	t.Parallel()
	whole := smallModel(t)
	want := fileOf(t, whole, map[string]string{"format": "pt"})
	for _, flags := range []string{"", "--timeout 1m"} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			d := emptyDesk(t)
			args := append([]string{"gather", "-o", d.path("out.safetensors")}, axisFlags...)
			args = append(args, strings.Fields(flags)...)
			r := run(t, append(args, d.modelShards(t, whole)...)...)
			if r.code != 0 || r.stderr != "metadata left out, since the shards differ: rank\n" || !gathered.MatchString(r.stdout) {
				t.Errorf("%+v", r)
			}
			d.same(t, "out.safetensors", want)
			d.has(t, "out.safetensors", "pp0-tp0.safetensors", "pp0-tp1.safetensors", "pp1-tp0.safetensors", "pp1-tp1.safetensors")
		})
	}
}

func TestGatherOfOne(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	whole := smallModel(t)
	require.NoError(t, safetensors.WriteSharded(string(d), "model", 10_000, whole, map[string]string{"format": "pt", "a": "b"}))
	r := run(t, "gather", "-o", d.path("one.safetensors"), d.path("model.safetensors.index.json"))
	if r.code != 0 || r.stderr != "" || !gathered.MatchString(r.stdout) {
		t.Errorf("%+v", r)
	}
	d.same(t, "one.safetensors", fileOf(t, whole, map[string]string{"format": "pt", "a": "b"}))
}

func TestGatherOfNothing(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	a, b := d.file(t, "a", nil, nil), d.file(t, "b", nil, map[string]string{"format": "pt"})
	r := run(t, "gather", "-o", d.path("out"), a, b)
	if r.code != 0 || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	d.same(t, "out", fileOf(t, nil, map[string]string{"format": "pt"}))
}

func TestGatherRefuses(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	whole := smallModel(t)
	d.modelShards(t, whole)
	diverged := shardOf(t, whole, 0, 1)
	diverged["norm.weight"] = diverged["norm.weight"].Clone()
	diverged["norm.weight"].Data[77]++
	d.file(t, "diverged", diverged, nil)
	d.file(t, "odd", tensors{"layers.0.self_attn.q_proj.weight": normal(1, 64, 33)}, nil)
	d.file(t, "dir/model.safetensors", whole, nil)
	d.write(t, "there", "precious")
	d.write(t, "bad", "this is no file with tensors")
	require.NoError(t, os.Symlink("pp0-tp1.safetensors", d.path("link")))
	entries, err := os.ReadDir(string(d))
	require.NoError(t, err)
	const a, b = "pp0-tp0.safetensors", "pp0-tp1.safetensors"
	good := strings.Join(axisFlags, " ")
	for args, want := range map[string]struct {
		code   int
		stderr []string
	}{
		a:                                        {2, []string{"-o OUT"}},
		"-o out":                                 {2, []string{"SHARD… is missing"}},
		"-o - " + a:                              {2, []string{"-o -"}},
		"-o out --axis x " + a:                   {2, []string{"NAME=AXIS"}},
		"-o out --axis x=-1 " + a:                {2, []string{`"-1"`}},
		"-o out --axis x=1.5 " + a:               {2, []string{`"1.5"`}},
		"-o out --axis x=1 --axis x=0 " + a:      {2, []string{`"x" is there twice`}},
		"-o out --timeout -1s " + a:              {2, []string{"--timeout"}},
		"-o out none " + a:                       {1, []string{"none: no such file"}},
		"-o out " + a + " none":                  {1, []string{"none: no such file"}},
		"-o out " + a + " bad":                   {1, []string{"bad: the header has"}},
		"-o there " + a:                          {1, []string{"there is there already", "--force"}},
		"-o dir " + a:                            {1, []string{"dir is a directory"}},
		"-o " + b + " --force " + a + " " + b:    {1, []string{b + ": that is a file of " + d.path(b), "name another"}},
		"-o link --force " + a + " " + b:         {1, []string{"link: that is a file of " + d.path(b)}},
		"-o dir/model.safetensors --force dir":   {1, []string{"that is a file of " + d.path("dir")}},
		"-o out " + b + " link":                  {1, []string{b + " and ", "link have the same file"}},
		"-o none/out " + a:                       {1, []string{"none/out: no such file or directory"}},
		"-o there/out " + a:                      {1, []string{"not a directory"}},
		"-o out " + a + " " + b:                  {1, []string{b + " has other bytes than ", a + ", and no axis to join them along"}},
		"-o out --axis *.none=0 " + a + " " + b:  {1, []string{"--axis *.none=0: no shard has"}},
		"-o out --axis norm=0 " + a + " " + b:    {1, []string{"--axis norm=0: no shard has"}},
		"-o out --axis *.q_proj.weight=2 " + a:   {1, []string{a + " has F32[", "no axis 2"}},
		"-o out " + good + " " + a + " diverged": {1, []string{`tensor "norm.weight": ` + d.path("diverged") + " has other bytes than " + d.path(a)}},
		"-o out " + good + " " + a + " odd":      {1, []string{`q_proj.weight": ` + d.path("odd") + " has F32[64,33], and " + d.path(a), "axis 0 only"}},
	} {
		var argv []string
		for i, arg := range strings.Fields(args) {
			before := ""
			if i > 0 {
				before = strings.Fields(args)[i-1]
			}
			if arg != "-" && arg[0] != '-' && before != "--axis" && before != "--timeout" || arg == "none/out" {
				arg = d.path(arg)
			}
			argv = append(argv, arg)
		}
		r := run(t, append([]string{"gather"}, argv...)...)
		_, r.stderr = notesOf(r.stderr)
		for _, w := range want.stderr {
			r.wants(t, want.code, "", w)
		}
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	d.has(t, names...)
	d.same(t, "there", []byte("precious"))
}

// notesOf separates the notes in stderr from the error.
func notesOf(stderr string) (notes, rest string) {
	if notes, rest, ok := strings.Cut(stderr, "\n"); ok && strings.HasPrefix(notes, "metadata left out") {
		return notes, rest
	}
	return "", stderr
}

func TestGatherRules(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	a := d.file(t, "a", tensors{"x.w": normal(1, 2, 2), "y.w": normal(2, 2, 2), "z.w=0": normal(3, 2, 2)}, nil)
	b := d.file(t, "b", tensors{"x.w": normal(4, 2, 2), "y.w": normal(5, 2, 2), "z.w=0": normal(6, 2, 2)}, nil)
	for flags, want := range map[string]string{
		"*=0": "x.w 4×2, y.w 4×2, z.w=0 4×2",
		// the exact name has priority over an earlier glob
		"*=1 x.w=0":           "x.w 4×2, y.w 2×4, z.w=0 2×4",
		"*.w=1 y*=0 *=0":      "x.w 2×4, y.w 2×4, z.w=0 4×2", // the first glob counts
		"x.w=0 y.w=1 z.w=0=1": "x.w 4×2, y.w 2×4, z.w=0 2×4",
	} {
		args := []string{"gather", "--force", "-o", d.path("out"), a, b}
		for f := range strings.FieldsSeq(flags) {
			args = append(args, "--axis", f)
		}
		if r := run(t, args...); r.code != 0 || r.stderr != "" {
			t.Fatalf("%s: %+v", flags, r)
		}
		var got []string
		for _, l := range listJSON(t, d.path("out")) {
			got = append(got, fmt.Sprintf("%s %d×%d", l.Name, l.Shape[0], l.Shape[1]))
		}
		assert.Equal(t, want, strings.Join(got, ", "), flags)
	}
}

func TestGatherOverwrites(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	one := tensors{"w": normal(1, 10)}
	a := d.file(t, "a", one, nil)
	d.write(t, "old", "old")
	require.NoError(t, os.Symlink("old", d.path("out")))
	run(t, "gather", "-o", d.path("out"), a).wants(t, 1, "", "there already")
	if r := run(t, "gather", "--force", "-o", d.path("out"), a); r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	d.same(t, "out", fileOf(t, one, nil))
	d.same(t, "old", []byte("old"))
	d.has(t, "a", "old", "out")
}

func TestGatherTimesOut(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	shard := d.file(t, "a", tensors{"w": normal(1, 4<<20)}, nil)
	for _, timeout := range []string{"1ns", "10us", "100us"} {
		run(t, "gather", "-o", d.path("out"), shard, "--timeout", timeout).wants(t, 4, "", "out is not written; --timeout gives it more time")
		d.has(t, "a")
	}
}

// TestGatherOutputWithAName runs the tests of the output on systems where every file has a name.
func TestGatherOutputWithAName(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	out, part := d.path("out"), d.path(".part")
	write := func(text string, force, commit bool) error { return muster.WriteNamed(out, part, text, force, commit) }
	require.NoError(t, write("given up", false, false))
	d.has(t)
	require.NoError(t, write("one", false, true))
	d.same(t, "out", []byte("one"))
	if err := write("two", false, true); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), out) {
		t.Error(err)
	}
	d.same(t, "out", []byte("one"))
	require.NoError(t, write("three", true, true))
	d.same(t, "out", []byte("three"))
	d.has(t, "out")
	assert.ErrorIs(t, muster.WriteNamed(d.path("none/out"), d.path("none/.part"), "", false, true), fs.ErrNotExist)
}

func TestGatherWhereTheDiskIsFull(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	a, b := d.file(t, "a", tensors{"w": normal(1, 1<<20)}, nil), d.file(t, "b", tensors{"w": normal(1, 1<<20)}, nil)
	for _, flags := range [][]string{{"--axis", "w=0"}, {"--axis", "w=0", "--force"}} {
		// A limit of the process simulates a full disk, so that the test needs no rights.
		args := append([]string{"-c", `ulimit -f 4096; exec "$0" "$@"`, self(t), "gather", "-o", d.path("out"), a, b}, flags...)
		cmd := exec.CommandContext(t.Context(), "sh", args...)
		cmd.Env = append(os.Environ(), role+"="+roleMuster)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}.wants(t, 1, "", "out: file too large")
		d.has(t, "a", "b")
	}
}

func TestGatherExamplesWork(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	whole := smallModel(t)
	for rank := range 2 {
		shard := tensors{}
		for name, x := range shardOf(t, whole, 0, rank) {
			if strings.Contains(name, "_proj") || strings.Contains(name, "norm") {
				shard[name] = x
			}
		}
		d.file(t, fmt.Sprintf("rank-%d.safetensors", rank), shard, nil)
		d.file(t, fmt.Sprintf("stage-%d/model.safetensors", rank), tensors{fmt.Sprintf("layers.%d.w", rank): normal(1, 3)}, nil)
	}
	require.NoError(t, os.Mkdir(d.path("bin"), 0o777))
	d.write(t, "bin/muster", "#!/bin/sh\n"+role+"="+roleMuster+" exec "+self(t)+` "$@"`)
	require.NoError(t, os.Chmod(d.path("bin/muster"), 0o700))
	for _, verb := range []string{"gather", "tensors"} {
		cmd, _, err := muster.NewRoot().Find([]string{verb})
		require.NoError(t, err)
		for line := range strings.Lines(cmd.Example) {
			if strings.Contains(line, "index.json") {
				// written by the previous example
				_ = os.Remove(d.path("model.safetensors"))
				// when the loop comes to tensors, the files of gather exist already
				if err := safetensors.WriteSharded(string(d), "model", 5000, whole, nil); err != nil && verb == "gather" {
					t.Fatal(err)
				}
			}
			if verb == "tensors" {
				d.file(t, "model.safetensors", whole, nil)
				d.file(t, "checkpoint/model.safetensors", whole, nil)
			}
			sh := exec.CommandContext(t.Context(), "sh", "-c", line)
			sh.Dir = string(d)
			sh.Env = append(os.Environ(), "PATH="+d.path("bin")+":"+os.Getenv("PATH"))
			if out, err := sh.CombinedOutput(); err != nil && !strings.Contains(string(out), "jq: ") {
				t.Errorf("%s: %v, %s", line, err, out)
			}
		}
	}
	d.same(t, "one.safetensors", fileOf(t, whole, nil))
}

func TestBarLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		done, total int64
		took        time.Duration
		want        string
	}{
		{0, 3 << 30, time.Second, "   0 %  0 B of 3.00 GiB"},
		{1 << 30, 4 << 30, time.Second, "  25 %  1.00 GiB of 4.00 GiB  1.07 GB/s  3s left"},
		{1 << 20, 4 << 30, time.Millisecond, "   0 %  1.00 MiB of 4.00 GiB"},
		{4 << 30, 4 << 30, time.Second, " 100 %  4.00 GiB of 4.00 GiB  to the disk"},
	} {
		assert.Equal(t, test.want, muster.BarLine(test.done, test.total, test.took))
	}
}
