package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/merge"
	"github.com/muster-pg/muster/tensor/checkpoint"
	"github.com/muster-pg/muster/tensor/safetensors"
	"github.com/spf13/cobra"
)

// merging holds the options of gather.
type merging struct {
	paths     []string
	out       string
	axes      merge.Axes
	shards    int
	like      string
	shardSize size
	verify    bool
	force     bool
	log       io.Writer

	shapesKnown bool // the shapes of all tensors, from like
}

func newGather() *cobra.Command {
	o := &merging{}
	cmd := &cobra.Command{
		Use:   "gather -o OUT [--axis NAME=AXIS …] CHECKPOINT…",
		Short: "Join the parts of a checkpoint into whole safetensors files",
		Long: `Join the parts of a checkpoint, which the ranks of a job have written, into whole safetensors
files. CHECKPOINT is

- a directory of torch.distributed.checkpoint.save (.metadata and .distcp files);
- a directory of shards of PyTorch's HuggingFaceStorageWriter, or such shards;
- a model, of which several can be joined: a .safetensors file, the index of several, or a
  directory with one of these.

The first two say how their parts fit. A part that is missing, overlaps another one, or is of
another dtype is an error. Shards do not say how many there are: if the last one is missing,
tensors end early. --shards or --like makes that an error.

Of models, a tensor that --axis names is joined along that axis, from all models that have it, in
the order of the command line. In NAME, * is any text; an exact name wins over those, and of
several the first that fits counts. Any other tensor may be in one model, or be the same in
several, to the last byte: a replica that has diverged is an error.

Metadata is kept where all files that have a key agree on its value. The other keys are left out,
with a note. So are values that are no tensors.

With --shard-size, OUT is a directory for files of at most that size, or of one tensor, and
model.safetensors.index.json, which is written last. Otherwise it is a file.

A file appears once all are complete and synced; until then, their data is in files .muster-… in
the same directory. The same command goes on with them after it was killed, if no input has changed.
A file that is there is not overwritten unless --force says so; never if it is one to be read.`,
		Example: `  muster gather -o model.safetensors checkpoint/
  muster gather -o model/ --shard-size 4GiB --like original/ checkpoint/
  muster gather -o model/ --verify checkpoint/       # compare them
  muster gather -o model.safetensors --axis '*.q_proj.weight=0' --axis '*.o_proj.weight=1' rank-*
  muster gather -o whole.safetensors stage-0/ stage-1/
  muster gather -o one.safetensors model.safetensors.index.json   # several files become one`,
		Args: operands("CHECKPOINT…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.paths = args
			if err := o.check(cmd); err != nil {
				return err
			}
			o.log = cmd.ErrOrStderr()
			return o.run(cmd.OutOrStdout())
		},
	}
	cmd.DisableFlagsInUseLine = true
	cmd.ValidArgsFunction = completeModels
	f := cmd.Flags()
	f.StringVarP(&o.out, "output", "o", "", "`file` or directory to write; required")
	f.Var(&o.axes, "axis", "join tensors of models with this name along this axis; may be repeated")
	f.IntVar(&o.shards, "shards", 0, "fail unless there are so many shards, or models")
	f.StringVar(&o.like, "like", "", "fail unless the names and shapes of tensors are those of this `model`; an index alone has no shapes")
	f.Var(&o.shardSize, "shard-size", "write files of at most this size, and their index, into the directory OUT")
	f.BoolVar(&o.verify, "verify", false, "write nothing; compare the tensors of OUT with the parts")
	f.BoolVar(&o.force, "force", false, "overwrite OUT if it exists")
	return cmd
}

func (o *merging) check(cmd *cobra.Command) error {
	switch {
	case o.out == "":
		return usagef(cmd, "the output is missing: set -o OUT")
	case o.out == "-":
		return usagef(cmd, "-o -: OUT is a file, which appears when it is whole")
	case strings.HasSuffix(o.out, "/") && o.shardSize == 0 && !o.verify:
		return usagef(cmd, "-o %s: OUT is a file, unless --shard-size is set", o.out)
	case cmd.Flags().Changed("shards") && o.shards == 0, cmd.Flags().Changed("shard-size") && o.shardSize == 0:
		return usagef(cmd, "--shards and --shard-size must be at least 1")
	case o.verify && (o.force || o.shardSize > 0):
		return usagef(cmd, "--verify writes nothing: leave --force and --shard-size out")
	}
	return nil
}

// run checks all inputs before it writes anything.
func (o *merging) run(out io.Writer) error {
	start := time.Now()
	opened := &checkpoint.Options{Shards: o.shards}
	if len(o.axes) > 0 {
		opened.Axis = o.axes.Of
	}
	set, err := checkpoint.Open(opened, o.paths...)
	if err != nil {
		return err
	}
	defer set.Close()
	if err := o.axes.CheckUsed(); err != nil {
		return err
	}
	if err := o.compareNames(set); err != nil {
		return err
	}
	o.note(set)
	ctx, end := untilSignal(context.Background())
	defer end()
	did, tensors, total := "", len(set.Names()), int64(0)
	if o.verify {
		did = "the same: "
		total, err = verify(ctx, set, o.out)
	} else {
		signal.Ignore(syscall.SIGXFSZ) // a file beyond the size limit is then an error of the write
		total, err = o.write(ctx, set)
	}
	if s, ok := errors.AsType[signalled](context.Cause(ctx)); ok && err != nil {
		number, _ := s.Signal.(syscall.Signal)
		text := fmt.Sprintf("%v: %s is not written; the same command goes on with it", s, o.out)
		if o.verify {
			text = fmt.Sprintf("%v: %s is not compared", s, o.out)
		}
		return &exit{code: 128 + int(number), err: err, text: text}
	}
	if err != nil {
		return err
	}
	took := time.Since(start)
	_, err = fmt.Fprintf(out, "%s: %s%s, %s in %s, %s GB/s\n", printable(o.out), did, count(int64(tensors), "tensor"), count(total, "byte"),
		short(took), digits(float64(total)/1e9/took.Seconds()))
	return err
}

// note prints what the result lacks, and what the files do not say.
func (o *merging) note(set *checkpoint.Set) {
	for _, n := range []struct {
		text  string
		names []string
	}{
		{"metadata left out, since the files differ: ", set.Differ},
		{"left out, since they are no tensors: ", set.Others},
	} {
		if len(n.names) > 0 {
			_, _ = fmt.Fprintln(o.log, n.text+someNames(n.names))
		}
	}
	if set.Assumed != "" && !o.shapesKnown {
		_, _ = fmt.Fprintf(o.log, "assumed: %s (--shards or --like makes it an error)\n", set.Assumed)
	}
}

// someNames formats names, but for those beyond the first.
func someNames(names []string) string {
	const most = 8
	var some []string
	for _, name := range names[:min(len(names), most)] {
		some = append(some, preview([]byte(name)))
	}
	text := strings.Join(some, ", ")
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text
}

// compareNames returns an error unless the tensors are those of the model that they should be like.
func (o *merging) compareNames(set *checkpoint.Set) error {
	if o.like == "" {
		return nil
	}
	like, err := o.modelLike()
	if err != nil {
		return err
	}
	o.shapesKnown = true
	var missing, more []string
	for name, shape := range like {
		info, ok := set.Info(name)
		switch {
		case !ok:
			missing = append(missing, name)
		case shape == nil:
			o.shapesKnown = false
		case !slices.Equal(shape, info.Shape):
			return fmt.Errorf("tensor %s is %v, and in %s its shape is %v: a part is missing, or it is another model", preview([]byte(name)), info, o.like, shape)
		}
	}
	for _, name := range set.Names() {
		if _, ok := like[name]; !ok {
			more = append(more, name)
		}
	}
	slices.Sort(missing)
	switch {
	case len(missing) > 0:
		return fmt.Errorf("%s has tensors that the checkpoint lacks: %s", o.like, someNames(missing))
	case len(more) > 0:
		return fmt.Errorf("the checkpoint has tensors that %s lacks: %s", o.like, someNames(more))
	}
	return nil
}

// modelLike returns the shapes of the model's tensors by name. They are nil if only its index is there.
func (o *merging) modelLike() (map[string][]int, error) {
	like := map[string][]int{}
	set, err := checkpoint.Open(nil, o.like)
	if err == nil {
		defer set.Close()
		for _, name := range set.Names() {
			info, _ := set.Info(name)
			like[name] = info.Shape
		}
		return like, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	path := o.like
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		path = filepath.Join(path, safetensors.IndexName)
	}
	text, reading := os.ReadFile(path)
	var index struct {
		Files map[string]string `json:"weight_map"`
	}
	if reading != nil || json.Unmarshal(text, &index) != nil || len(index.Files) == 0 {
		return nil, err
	}
	for name := range index.Files {
		like[name] = nil
	}
	return like, nil
}

// verify compares the tensors of the model at a path with the checkpoint.
func verify(ctx context.Context, set *checkpoint.Set, path string) (total int64, err error) {
	m, err := checkpoint.Open(nil, path)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	for _, name := range m.Names() {
		got, _ := m.Info(name)
		want, ok := set.Info(name)
		switch {
		case !ok:
			return 0, fmt.Errorf("%s: tensor %s is not in the checkpoint", path, preview([]byte(name)))
		case got.DType != want.DType || !slices.Equal(got.Shape, want.Shape):
			return 0, fmt.Errorf("%s: tensor %s is %v, and %v in the checkpoint", path, preview([]byte(name)), got, want)
		}
	}
	for _, name := range set.Names() {
		info, ok := m.Info(name)
		if !ok {
			return 0, fmt.Errorf("%s: it lacks the tensor %s of the checkpoint", path, preview([]byte(name)))
		}
		total += info.End
	}
	for _, name := range set.Names() {
		if err := same(ctx, set, m, name); errors.Is(err, errDiffers) {
			return 0, fmt.Errorf("%s: tensor %s differs from the checkpoint", path, preview([]byte(name)))
		} else if err != nil {
			return 0, err
		}
	}
	return total, errors.Join(set.CheckUnchanged(), m.CheckUnchanged())
}

var errDiffers = errors.New("other bytes")

// same returns an error unless a tensor has the same bytes in both sets.
func same(ctx context.Context, a, b *checkpoint.Set, name string) error {
	r, w := io.Pipe()
	read := make(chan struct{})
	go func() {
		w.CloseWithError(b.Stream(ctx, w, []string{name}, 0))
		close(read)
	}()
	err := a.Stream(ctx, &comparer{with: r}, []string{name}, 0)
	_ = r.Close()
	<-read
	return err
}

// comparer compares what is written with what it reads.
type comparer struct {
	with io.Reader
	buf  []byte
}

func (c *comparer) Write(p []byte) (int, error) {
	c.buf = append(c.buf[:0], p...)
	if _, err := io.ReadFull(c.with, c.buf); err != nil {
		return 0, err
	}
	if !bytes.Equal(c.buf, p) {
		return 0, errDiffers
	}
	return len(p), nil
}
