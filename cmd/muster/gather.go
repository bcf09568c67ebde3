package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/merge"
	"github.com/muster-pg/muster/tensor/safetensors"
	"github.com/spf13/cobra"
)

// merging holds the options of gather.
type merging struct {
	shards []string
	out    string
	axes   merge.Axes
	force  bool
	log    io.Writer
}

func newGather() *cobra.Command {
	o := &merging{}
	cmd := &cobra.Command{
		Use:   "gather -o OUT [--axis NAME=AXIS …] SHARD…",
		Short: "Merge the shards of a model into one safetensors file",
		Long: `Merge the shards of a model into one safetensors file: tensor-parallel shards along axes, pipeline
stages by names, both at once. SHARD is a .safetensors file, the index of several, or a directory
with one of them.

A tensor that --axis names is joined along that axis, from all shards that have it, in the order
of the command line. In NAME, * is any text; an exact name wins over those, and of several the
first that fits counts. Any other tensor may be in one shard, or be the same in several, to the
last byte: a replica that has diverged is an error.

Metadata is kept where all files that have a key agree on its value. The other keys are left out,
with a note.

OUT appears once it is complete and synced; until then, and after a kill -9, its data is in a file
.muster-….part in the same directory. One that is there is not overwritten unless --force says so;
never if it is a file of a shard.`,
		Example: `  muster gather -o model.safetensors --axis '*.q_proj.weight=0' --axis '*.o_proj.weight=1' rank-*
  muster gather -o whole.safetensors stage-0/ stage-1/
  muster gather -o one.safetensors model.safetensors.index.json   # several files become one`,
		Args: operands("SHARD…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.shards = args
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
	f.StringVarP(&o.out, "output", "o", "", "`file` to write; required")
	f.Var(&o.axes, "axis", "join tensors with this name along this axis; may be repeated")
	f.BoolVar(&o.force, "force", false, "overwrite OUT if it exists")
	return cmd
}

func (o *merging) check(cmd *cobra.Command) error {
	switch o.out {
	case "":
		return usagef(cmd, "the output is missing: set -o OUT")
	case "-":
		return usagef(cmd, "-o -: OUT is a file, which appears when it is whole")
	}
	return nil
}

// run checks all inputs before it writes anything.
func (o *merging) run(out io.Writer) error {
	start := time.Now()
	models, err := openModels(o.shards)
	if err != nil {
		return err
	}
	defer closeModels(models)
	if err := o.distinct(models); err != nil {
		return err
	}
	shards := make([]merge.Shard, len(models))
	for i, m := range models {
		shards[i] = merge.Shard{Name: m.path, Model: m.Model}
	}
	axes, err := o.axes.Of(shards)
	if err != nil {
		return err
	}
	metadata, differ := merge.Metadata(shards)
	if len(differ) > 0 {
		for i, k := range differ {
			differ[i] = preview([]byte(k))
		}
		_, _ = fmt.Fprintf(o.log, "metadata left out, since the shards differ: %s\n", strings.Join(differ, ", "))
	}
	plan, err := merge.New(shards, axes)
	if err != nil {
		return err
	}
	tensors, total, err := o.write(plan, models, metadata)
	if err != nil {
		return err
	}
	took := time.Since(start)
	_, err = fmt.Fprintf(out, "%s: %s, %s in %s, %s GB/s\n", printable(o.out), count(int64(tensors), "tensor"), count(total, "byte"),
		short(took), digits(float64(total)/1e9/took.Seconds()))
	return err
}

// write writes OUT, unless a signal stops it.
func (o *merging) write(plan *merge.Plan, models []*model, metadata map[string]string) (tensors int, total int64, err error) {
	ctx, end := untilSignal(context.Background())
	defer end()
	signal.Ignore(syscall.SIGXFSZ) // a file beyond the size limit is then an error of the write
	file, err := createOutput(o.out, 0o666, o.force)
	if err != nil {
		return 0, 0, err
	}
	defer file.discard() // does nothing after a commit
	err = plan.Write(ctx, file, metadata, func(h *safetensors.Header) { tensors, total = h.Len(), h.Size() })
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = file.commit()
	}
	return tensors, total, o.explain(err, models)
}

// explain adds to err why OUT was not written.
func (o *merging) explain(err error, models []*model) error {
	if s, ok := errors.AsType[signalled](err); ok {
		number, _ := s.Signal.(syscall.Signal)
		return &exit{code: 128 + int(number), err: err, text: fmt.Sprintf("%v: %s is not written", s, o.out)}
	}
	for _, m := range models {
		if path := m.cutOff(); err != nil && path != "" { // a truncated file causes various errors
			return &exit{code: exitFailed, err: err, text: path + " was cut off while it was read"}
		}
	}
	return err
}

// distinct rejects a file that is in two shards, and an OUT that must not be written.
func (o *merging) distinct(models []*model) error {
	out, err := os.Stat(o.out)
	if err == nil && out.IsDir() {
		return &exit{code: exitFailed, text: o.out + " is a directory: name a file in it"}
	}
	type owner struct {
		os.FileInfo
		*model
	}
	var all []owner
	for _, m := range models {
		for file := range m.Files() {
			st, err := os.Stat(m.pathOf(file))
			if err != nil {
				return err
			}
			if out != nil && os.SameFile(st, out) {
				return &exit{code: exitFailed, text: fmt.Sprintf("-o %s: that is a file of %s, to be read: name another one", o.out, m.path)}
			}
			for _, other := range all {
				if other.model != m && os.SameFile(st, other.FileInfo) {
					return fmt.Errorf("%s and %s have the same file: name it once", other.path, m.path)
				}
			}
			all = append(all, owner{st, m})
		}
	}
	if _, err := os.Lstat(o.out); err == nil && !o.force {
		return &exit{code: exitFailed, text: o.out + " is there already: name another file, or add --force to overwrite it"}
	}
	return nil
}
